"""Engines of one's own for the live tests: what they were told, and on which threads they were called, is written
down."""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from edgeserve.engines.base import Batch, Engine, Footprint, LaneInfo, Pending, Result, Session
from edgeserve.engines.synthetic import SyntheticEngine
from edgeserve.errors import DeviceLost, EngineError

BATCH_NS = 3_000_000

calls: List[Tuple[str, str, str]] = []
"""(what, model, thread), in order."""

launched_max: Dict[str, int] = {}
"""Lane -> the largest number of batches that were launched and not over."""


def forget() -> None:
    calls.clear()
    launched_max.clear()


class Echo(Engine):
    """Returns what it is given."""

    def load(self) -> Footprint:
        return Footprint(1)

    def unload(self) -> None:
        pass

    def example(self) -> Dict[str, Any]:
        return {"x": 1}

    def run(self, batch: Batch) -> List[Result]:
        return [Result(item) for item in batch.items]


class Device(Engine):
    """Doubles ``x``; a lane's batches run one after the other, 3 ms each. ``options.lost = "LANE"`` loses that lane's
    device with the first request whose ``x[0]`` is 1."""

    def __init__(self, model: Any, lanes: Any, directory: str) -> None:
        self.name = model.name
        self.lost = model.options.get("lost", "")
        self.lanes = [lane.name for lane in lanes]
        self.loaded = False

    def note(self, what: str) -> None:
        calls.append((what, self.name, threading.current_thread().name))

    def load(self) -> Footprint:
        self.note("load")
        self.loaded = True
        return Footprint(1000)

    def unload(self) -> None:
        self.note("unload")
        self.loaded = False

    def example(self) -> Dict[str, Any]:
        return {"x": np.zeros(4, np.float32)}

    def open(self, lane: LaneInfo) -> Session:
        self.note("open")
        return Stream(self, lane)


lose = threading.Event()
"""Set: the next step of a :class:`LosesLane` loses its lane's device."""


class LosesLane(SyntheticEngine):
    """A synthetic engine whose devices are lost when a test says so."""

    def __init__(self, model: Any, lanes: Any, directory: str) -> None:
        super().__init__(model, self.pass_time)

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)
        if lose.is_set():
            lose.clear()
            raise DeviceLost("the device was lost, as the test said")


class Stream(Session):
    def __init__(self, engine: Device, lane: LaneInfo) -> None:
        assert lane.common is not None
        self.engine = engine
        self.lane = lane
        self.flight = lane.common.setdefault("flight", {"free_ns": 0, "pending": []})

    def launch(self, batch: Batch) -> Pending:
        if not self.engine.loaded:
            raise EngineError(f"model {self.engine.name!r} is not loaded")
        self.engine.note("launch")
        flight = self.flight
        flight["pending"] = [pending for pending in flight["pending"] if not pending.done()]
        began_ns = max(time.monotonic_ns(), flight["free_ns"])
        flight["free_ns"] = began_ns + BATCH_NS
        pending = Running(self, batch, (began_ns, flight["free_ns"]))
        flight["pending"].append(pending)
        name = self.lane.name
        launched_max[name] = max(launched_max.get(name, 0), len(flight["pending"]))
        return pending


class Running(Pending):
    def __init__(self, stream: Stream, batch: Batch, span: Tuple[int, int]) -> None:
        self.stream = stream
        self.batch = batch
        self.span = span

    def done(self) -> bool:
        return time.monotonic_ns() >= self.span[1]

    def wait(self, timeout_s: float) -> bool:
        time.sleep(max(0.0, min(timeout_s, (self.span[1] - time.monotonic_ns()) / 1e9)))
        return self.done()

    def result(self) -> List[Result]:
        engine = self.stream.engine
        if self.stream.lane.name == engine.lost and any(item["x"][0] == 1 for item in self.batch.items):
            raise DeviceLost(f"model {engine.name!r}: it fell off the bus")
        return [Result({"y": item["x"] * 2}) for item in self.batch.items]

    def times(self) -> Optional[Tuple[int, int]]:
        return self.span
