"""Questions to a GPU and its double through ``trt_on_cuda.py``: the contract of engines in several settings, right
answers while lanes work side by side, CUDA graphs before and after another shape."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import pytest
import trt_on_cuda
import trt_worlds
from trt_on_cuda import Gpu, plan
from vector_items import VectorItems

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Engine, LaneInfo, Pending, Result, Values, run_batch
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.testing.engine_conformance import ECHO_SHAPE, ECHO_SIZES, EngineConformance

CROPPED = {"pad": {"x": 0.0}, "options": {"crop_outputs": {"y": {"axis": 0, "like": "x", "of": 0}}}}
"""Settings of a model that computes each number by itself, for items of any length."""

TYPES = {"float32": "FLOAT", "float16": "HALF", "int64": "INT64"}


def engine_of(directory: str, data: bytes, lanes: int = 1, **settings: Any) -> Engine:
    """An engine on a plan."""
    name = settings.pop("name", "m")
    with open(os.path.join(directory, f"{name}.plan"), "wb") as file:
        file.write(data)
    return make_engine(
        ModelConfig(name, "tensorrt", file=f"{name}.plan", **settings), [trt_worlds.LANE] * lanes, directory
    )


class KernelModel(VectorItems, EngineConformance):
    """y = 2 x + 1 of four floats."""

    name = "vec"
    lane = LaneInfo("cuda", depth=2)
    about: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}

    def gpu(self) -> Gpu:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch: Any) -> Iterator[None]:
        with trt_on_cuda.installed(monkeypatch, self.gpu()):
            yield

    def plan(self) -> bytes:
        return plan("affine", "xy", self.sizes, [4], **self.about)

    def make(self, directory: str) -> Engine:
        return engine_of(directory, self.plan(), 4, name=self.name, batch=self.sizes, **self.settings)

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        if dtype not in TYPES or self.about or self.settings:
            return None
        data = plan("affine", "xy", ECHO_SIZES, list(ECHO_SHAPE[:rank]), TYPES[dtype], w=1, b=0)
        return engine_of(directory, data, 4, name="echo", batch=ECHO_SIZES)


class OfNumbers(KernelModel):
    """int64."""

    def plan(self) -> bytes:
        return plan("affine", "xy", self.sizes, [4], "INT64")

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        return None

    def items(self, count: int) -> List[Values]:
        return [{"x": np.arange(4) + 2**40 + index} for index in range(count)]

    def wrong_items(self) -> Dict[str, Values]:
        x = np.zeros(4, np.int64)
        return {"wrong name": {"z": x}, "wrong dtype": {"x": x.astype(np.float32)}, "wrong length": {"x": x[:3]}}


class WithState(KernelModel):
    """y = x + state."""

    stateful = True
    settings = {"state": {"state": "stateN"}, "shapes": {"state": (4,)}}

    def plan(self) -> bytes:
        return plan("two", ("x", "state", "y", "stateN"), self.sizes, [4])


class OfLengths(KernelModel):
    """Items of 1 to 24 numbers."""

    settings = {**CROPPED, "shapes": {"x": (8,)}}

    def plan(self) -> bytes:
        return plan("affine", "xy", self.sizes, [[1], [8], [24]])

    def items(self, count: int) -> List[Values]:
        return [{"x": np.arange(3 + 5 * index, dtype=np.float32)} for index in range(count)]

    def wrong_items(self) -> Dict[str, Values]:
        x = self.items(1)[0]["x"]
        return {
            "wrong dtype": {"x": x.astype(np.int64)},
            "wrong rank": {"x": x[None]},
            "too long": {"x": np.ones(25, "f")},
        }


SETTINGS: Dict[str, Tuple[type, Dict[str, Any]]] = {
    "Plain": (KernelModel, {}),
    "LongKernels": (KernelModel, {"about": {"us": 400}}),
    "WithoutGraphs": (KernelModel, {"settings": {"options": {"graph": False}}}),
    "Mapped": (KernelModel, {"settings": {"options": {"mapped": "yes"}}}),
    "StreamsBeside": (KernelModel, {"about": {"aux": 2}, "settings": {"options": {"graph": False}}}),
    "DeepLane": (KernelModel, {"lane": LaneInfo("cuda", depth=4)}),
    "Numbers": (OfNumbers, {}),
    "State": (WithState, {}),
    "Lengths": (OfLengths, {}),
}
"""The classes of a suite: :func:`suite` makes them for a GPU."""


def suite(make_gpu: Any, *marks: Any) -> Dict[str, type]:
    """A test class for each of :data:`SETTINGS`, on the GPU that the function makes for each test."""
    made: Dict[str, type] = {}
    for name, (base, values) in SETTINGS.items():
        made[f"Test{name}"] = type(
            f"Test{name}", (base,), {**values, "gpu": lambda self: make_gpu(), "pytestmark": [*marks]}
        )
    return made


SIZES = (1, 2, 4, 8)
WORLDS: Dict[str, Tuple[Tuple[Any, ...], Dict[str, Any]]] = {
    "copied": (("affine", "xy", SIZES, [100]), {}),
    "mapped": (("affine", "xy", SIZES, [100]), {"options": {"mapped": "yes"}}),
    "half": (("affine", "xy", SIZES, [101], "HALF"), {}),
    "two": (("two", "pqsd", SIZES, [100]), {}),
    "lengths": (("affine", "xy", SIZES, [[1], [50], [100]]), {**CROPPED, "shapes": {"x": (50,)}}),
}


def wrong_answers(directory: str, name: str, batches: int, lanes: int = 3, **about: Any) -> List[str]:
    """The faults in the answers of lanes that work side by side, two batches in flight on each."""
    (kind, names, *rest), settings = WORLDS[name]
    engine = engine_of(directory, plan(kind, names, *rest, **about), lanes, batch=SIZES, **settings)
    engine.load()
    wrong: List[str] = []
    threads = [threading.Thread(target=_lane, args=(engine, name, batches, seed, wrong)) for seed in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    engine.unload()
    return wrong


def _lane(engine: Engine, name: str, batches: int, seed: int, wrong: List[str]) -> None:
    draw, lane = np.random.RandomState(seed), trt_worlds.new_lane(name=f"lane{seed}")
    flight: Deque[Tuple[List[Values], Pending]] = deque()
    try:
        session = engine.open(lane)
        for _ in range(batches):
            count = draw.randint(1, 9)
            length = [
                draw.randint(1, 101) if name == "lengths" else 101 if name == "half" else 100 for _ in range(count)
            ]
            dtype = np.float16 if name == "half" else np.float32
            inputs = "pq" if name == "two" else "x"
            items = [{key: draw.randint(-99, 99, size).astype(dtype) for key in inputs} for size in length]
            if len(flight) == 2:
                _check(*flight.popleft(), wrong)
            flight.append((items, session.launch(Batch(items, count))))
        while flight:
            _check(*flight.popleft(), wrong)
    except BaseException as error:  # noqa: BLE001 of a thread: the test's own has to see it
        wrong.append(f"lane {seed}: {error!r}")
    finally:
        trt_worlds.close(lane)


def _check(items: List[Values], pending: Pending, wrong: List[str]) -> None:
    while not pending.wait(0.05):
        pass
    results: List[Result] = pending.result()
    for item, result in zip(items, results):
        if "x" in item:
            right = {"y": item["x"] * item["x"].dtype.type(2) + item["x"].dtype.type(1)}
        else:
            right = {"s": item["p"] + item["q"], "d": item["p"] - 2 * item["q"]}
        if not all(np.array_equal(result.outputs[name], value) for name, value in right.items()):
            wrong.append(f"{result.error or result.outputs} for {item}")


def graphs_after_another_shape(directory: str) -> List[Tuple[int, int]]:
    """(captured, replayed) of CUDA graphs after 40 batches of one shape, one of another, and 40 of the first again."""
    (kind, names, *rest), settings = WORLDS["lengths"]
    engine, lane = engine_of(directory, plan(kind, names, *rest), batch=(1,), **settings), trt_worlds.new_lane()
    engine.load()
    session, seen = engine.open(lane), []
    for length, batches in ((50, 40), (60, 1), (50, 40)):
        x = np.arange(length, dtype=np.float32)
        for _ in range(batches):
            (result,) = run_batch(session, Batch([{"x": x}], 1))[0]
            assert np.array_equal(result.outputs["y"], 2 * x + 1)
        told = engine.figures()["graphs"]
        seen.append((told["captured"], told["replayed"]))
    engine.unload()
    trt_worlds.close(lane)
    return seen


def memory_of_lives(directory: str, driver: Any, lives: int = 4) -> List[Tuple[int, int]]:
    """(what the model says that it occupies, by how much the device's free memory fell) while it is loaded, has a lane
    and has run, once for each of its lives; and at last (0, what is missing after them all)."""
    data = plan("affine", "xy", SIZES, [1 << 20])
    lane, seen = trt_worlds.new_lane(), []
    device = CudaDevice(driver)  # its context comes before the first look
    try:
        before = device.memory()[0]
        for _ in range(lives):
            engine = engine_of(directory, data, batch=SIZES)
            footprint = engine.load()
            session = engine.open(lane)
            x = np.arange(1 << 20, dtype=np.float32)
            for size in SIZES:
                results, _ = run_batch(session, Batch([{"x": x}] * size, size))
                assert [result.error for result in results] == [None] * size
            seen.append((sum(footprint), before - device.memory()[0]))
            engine.unload()
        trt_worlds.close(lane)
        return [*seen, (0, before - device.memory()[0])]
    finally:
        device.close()
