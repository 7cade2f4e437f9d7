"""Benches of the engines on a GPU: overhead over the bare call, overlap of copies, times by batch size, and how much
less predictable batches become when they run at once (Clockwork, OSDI 2020, Figure 2).

Each bench drives an engine through its sessions, as a lane does. The networks are convolutional ones written here, with
drawn weights: times do not depend on the weights' values. On the CPU the same code runs as a rehearsal of itself.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import torch

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Engine, LaneInfo, Pending, Session, Values, run_batch
from edgeserve.errors import EngineError
from lib.lane_timing import Setting, close, ended, timed_ms

SCRIPTS = Path(__file__).resolve().parents[1]
SIZES = (1, 2, 4, 8, 16, 32)
AT_ONCE = (1, 2, 4, 8, 16)


class Residual(torch.nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al., 2016, Figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = torch.nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(outputs), torch.nn.BatchNorm2d(outputs)])
        self.shortcut = torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(inner)) + self.shortcut(x))


class Resnet(torch.nn.Module):
    """A residual network of 18 layers, as ImageNet's (He et al., 2016, Table 1); ``large_outputs`` returns as many
    numbers as went in besides, for copies in both directions."""

    def __init__(self, large_outputs: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        widths = (64, 64, 128, 128, 256, 256, 512, 512)
        self.stem = torch.nn.Conv2d(3, 64, 7, 2, 3)
        self.blocks = torch.nn.ModuleList(
            [Residual(before, width, 2 if width != before else 1) for before, width in zip((64, *widths), widths)]
        )
        self.head = torch.nn.Linear(512, 1000)
        self.large_outputs = large_outputs

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        inner = torch.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)
        for block in self.blocks:
            inner = block(inner)
        answers = {"classes": self.head(inner.mean((2, 3)))}
        return {**answers, "picture": x * 2} if self.large_outputs else answers


def engine_of(setting: Setting, lanes: Sequence[LaneInfo], sizes: Sequence[int], large_outputs: bool = False) -> Engine:
    """The network in the engine under test, loaded."""
    side = setting.side
    model = ModelConfig(
        "net",
        "torch",
        function="lib.gpu_benches:Resnet",
        batch=tuple(sizes),
        shapes={"x": (3, side, side)},
        options={
            "arguments": {"large_outputs": large_outputs},
            "outputs": ["classes", "picture"] if large_outputs else ["classes"],
        },
    )
    engine = make_engine(model, lanes, str(SCRIPTS))
    engine.load()
    return engine


def items_of(setting: Setting, count: int) -> List[Values]:
    """Pictures of drawn numbers."""
    random = np.random.default_rng(1)
    return [{"x": random.random((3, setting.side, setting.side), np.float32)} for _ in range(count)]


# --- overhead ---------------------------------------------------------------------------------------------------------


def overhead(setting: Setting) -> Dict[str, Any]:
    """The engine beside the call that a program without an engine makes: the input to the device, the network, the
    output back. They take turns; the medians."""
    lane = setting.lane()
    device = torch.device("cuda", setting.index) if setting.kind == "cuda" else torch.device("cpu")
    network = Resnet().eval().to(device)
    rows = []
    torch.set_num_threads(1)
    for size in SIZES:
        items = items_of(setting, size)
        array = torch.from_numpy(np.stack([item["x"] for item in items]))
        engine = engine_of(setting, [lane], [size])
        session, batch = engine.open(lane), Batch(items, size)

        def bare(array: torch.Tensor = array) -> np.ndarray:
            with torch.inference_mode():
                returned: np.ndarray = network(array.to(device))["classes"].cpu().numpy()
                return returned

        def served(session: Session = session, batch: Batch = batch) -> Any:
            return run_batch(session, batch)

        took: Dict[str, List[float]] = {"bare": [], "engine": []}
        for _ in range(5):
            for name, call in (("bare", bare), ("engine", served)):
                took[name] += timed_ms(call, max(3, setting.runs // 20))
        bare_ms, engine_ms = statistics.median(took["bare"]), statistics.median(took["engine"])
        rows.append({"batch": size, "bare_ms": bare_ms, "engine_ms": engine_ms, "overhead": engine_ms / bare_ms - 1})
        engine.unload()
    close([lane])
    return {"rows": rows}


# --- overlap ----------------------------------------------------------------------------------------------------------


def overlap(setting: Setting) -> Dict[str, Any]:
    """Batches with large inputs and outputs, one or two launched at a time: how much more is done, and how long the
    device waits between two batches."""
    rows = []
    for depth in (1, 2):
        lane = setting.lane(depth)
        engine = engine_of(setting, [lane], [8], large_outputs=True)
        session, batch = engine.open(lane), Batch(items_of(setting, 8), 8)
        for _ in range(3):
            run_batch(session, batch)
        flight: List[Pending] = []
        spans = []
        begun_ns = time.monotonic_ns()
        for _ in range(setting.runs):
            flight.append(session.launch(batch))
            if len(flight) == depth:
                spans.append(ended(flight.pop(0)))
        spans += [ended(pending) for pending in flight]
        seconds = (time.monotonic_ns() - begun_ns) / 1e9
        gaps = [(two[0] - one[1]) / 1e6 for one, two in zip(spans, spans[1:])]
        rows.append(
            {
                "depth": depth,
                "batches_per_s": setting.runs / seconds,
                "gap_ms": statistics.median(gaps),
                "device_ms": statistics.median((end - start) / 1e6 for start, end in spans),
            }
        )
        engine.unload()
        close([lane])
    return {"rows": rows, "gain": rows[1]["batches_per_s"] / rows[0]["batches_per_s"]}


# --- times by batch size ----------------------------------------------------------------------------------------------


def profile(setting: Setting) -> Dict[str, Any]:
    """The device's time of a batch by its size."""
    lane = setting.lane()
    engine = engine_of(setting, [lane], SIZES)
    session = engine.open(lane)
    rows = []
    for size in SIZES:
        batch = Batch(items_of(setting, size), size)
        took = []
        for run in range(setting.runs + 3):
            begun_ns = time.monotonic_ns()
            pending = session.launch(batch)
            start, end = ended(pending)
            if pending.times() is None:
                start, end = begun_ns, time.monotonic_ns()
            if run >= 3:
                took.append((end - start) / 1e6)
        took.sort()
        rows.append(
            {
                "batch": size,
                "median_ms": statistics.median(took),
                "p99_ms": took[int(0.99 * (len(took) - 1))],
                "per_item_ms": statistics.median(took) / size,
            }
        )
    engine.unload()
    close([lane])
    return {"rows": rows}


# --- predictability ---------------------------------------------------------------------------------------------------


def predictability(setting: Setting) -> Dict[str, Any]:
    """The latency of one batch at a time against several at once, each on a lane of its own (Clockwork, Figure 2: one
    at a time the 99.99th percentile was within 0.03 % of the median; 16 at once it was 100 times the median, for 25 %
    more throughput). Enough runs for the 99.9th percentile are made at full length alone."""
    rows = []
    for count in AT_ONCE:
        lanes = [setting.lane(number=number) for number in range(count)]
        engine = engine_of(setting, lanes, [1])
        took: List[List[float]] = [[] for _ in lanes]
        gate = threading.Barrier(count + 1)
        each = max(10, setting.runs * 10 // count)

        def work(
            number: int,
            took: Any = took,
            lanes: Any = lanes,
            engine: Engine = engine,
            gate: Any = gate,
            each: int = each,
        ) -> None:
            session, batch = engine.open(lanes[number]), Batch(items_of(setting, 1), 1)
            for _ in range(3):
                run_batch(session, batch)
            gate.wait()
            took[number] = timed_ms(lambda: run_batch(session, batch), each)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        gate.wait()
        begun_s = time.monotonic()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - begun_s
        all_ms = sorted(value for values in took for value in values)
        middle, high = statistics.median(all_ms), all_ms[int(0.999 * (len(all_ms) - 1))]
        rows.append(
            {
                "at_once": count,
                "median_ms": middle,
                "p999_ms": high,
                "p999_to_median": high / middle,
                "per_s": len(all_ms) / seconds,
            }
        )
        engine.unload()
        close(lanes)
    return {"rows": rows}


# --- lanes ------------------------------------------------------------------------------------------------------------


def lanes(setting: Setting) -> Dict[str, Any]:
    """Single pictures every 33 ms, as of a camera, beside the largest batches without a pause: in turn on one lane, on
    two, with priority, and each with multiprocessors of its own."""
    ways: Dict[str, Sequence[Dict[str, int]]] = {"alone": [{}], "one lane": [{}], "two lanes": [{}, {}]}
    ways["two lanes, one of priority 5"] = [{"priority": 5}, {}]
    for share in (0.125, 0.25) if setting.kind == "cuda" else ():
        own = max(1, int(share * torch.cuda.get_device_properties(setting.index).multi_processor_count))
        ways[f"two lanes, {own} multiprocessors for pictures"] = [{"sms": own}, {"sms": own * int(1 / share - 1)}]
    rows = []
    for way, options in ways.items():
        here = [setting.lane(number=number, **each) for number, each in enumerate(options)]
        try:
            rows.append({"way": way, **_beside_batches(setting, here, way != "alone")})
        except EngineError as error:  # a driver, or a device, that cannot be parted
            rows.append({"way": f"{way}: {error}", "p50_ms": None, "p99_ms": None, "batches_per_s": None})
        close(here)
    return {"rows": rows}


PICTURE_S = 1 / 30


def _beside_batches(setting: Setting, here: Sequence[LaneInfo], is_beside: bool) -> Dict[str, float]:
    engine = engine_of(setting, here, (1, SIZES[-1]))
    turn, over, failed = threading.Lock(), threading.Event(), []
    done = [0]

    def batches() -> None:
        try:
            session, batch = engine.open(here[-1]), Batch(items_of(setting, SIZES[-1]), SIZES[-1])
            while not over.is_set():
                with turn if len(here) == 1 else contextlib.nullcontext():
                    run_batch(session, batch)
                done[0] += 1
        except EngineError as error:
            failed.append(error)

    thread = threading.Thread(target=batches, daemon=True)
    try:
        session, picture, took = engine.open(here[0]), Batch(items_of(setting, 1), 1), []
        run_batch(session, picture)
        if is_beside:
            thread.start()
        begun_s = time.monotonic()
        for number in range(max(20, setting.runs // 2)):
            asked_s = begun_s + number * PICTURE_S
            time.sleep(max(0.0, asked_s - time.monotonic()))
            with turn if len(here) == 1 else contextlib.nullcontext():
                run_batch(session, picture)
            took.append(1e3 * (time.monotonic() - asked_s))
        seconds = time.monotonic() - begun_s
    finally:
        over.set()
        if thread.is_alive():
            thread.join(60.0)
        engine.unload()
    if failed:
        raise failed[0]
    took.sort()
    return {
        "p50_ms": statistics.median(took),
        "p99_ms": took[int(0.99 * (len(took) - 1))],
        "batches_per_s": done[0] / seconds,
    }


BENCHES: Dict[str, Callable[[Setting], Dict[str, Any]]] = {
    "overhead": overhead,
    "overlap": overlap,
    "profile": profile,
    "predictability": predictability,
    "lanes": lanes,
}
