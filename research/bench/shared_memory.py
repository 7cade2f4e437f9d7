"""Large tensors over the bus: shared memory against frames, side by side in one run on this machine.

    python research/bench/shared_memory.py [--quick] [--json FILE]

One server whose engine returns its input (that of ``research/bench/bus.py``), asked by two clients of the same process
in turn, one with shared memory and one without; beside them a bare pyzmq ROUTER that returns its messages, asked by a
bare DEALER. ``shared`` copies an ordinary array into the memory for every request, ``in place`` sends arrays that the
client made there once (``Client.buffer``), each again when its answer has come; neither frames nor the bare DEALER copy
in Python. The order changes from round to round; medians of rounds and of the ratios within a round are reported.
"""

from __future__ import annotations

import itertools
import platform
import statistics
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
import psutil
import zmq
from common import bus_load as load
from lib.checks import Checks, arguments

from bench import bus
from edgeserve.client import Client

DEPTH = 16
IMAGE = (3, 224, 224)  # float32: 602 KB
FRAME = (1080, 1920, 3)  # uint8: 6.2 MB
TRITON = 0.51
"""What Triton reached with its system shared memory, as a share of bare frames, in a run of its own on a machine of the
same kind: the figure that this bench is to exceed."""


class Asker:
    """A client, and how it asks."""

    def __init__(self, endpoint: str, shared: bool) -> None:
        self.client = Client(endpoint, shared_memory=shared)

    def buffers(self, x: np.ndarray, count: int) -> List[np.ndarray]:
        """So many copies of an array in the memory that is shared."""
        made = [self.client.buffer(x.shape, x.dtype) for _ in range(count)]
        for one in made:
            one[...] = x
            if not np.shares_memory(one, self.client._courier.slab.memory):  # type: ignore[union-attr]  # it is there
                raise SystemExit("no room for the arrays in the shared memory")
        return made

    def rate(self, x: np.ndarray, depth: int, seconds: float, in_place: bool = False) -> float:
        """Answers per second with ``depth`` requests in flight."""
        waiting: Deque[Any] = deque()
        arrays = itertools.cycle(self.buffers(x, depth) if in_place else [x])  # the oldest answer comes first
        done = 0
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            while len(waiting) < depth:
                waiting.append(self.client.submit("echo", {"x": next(arrays)}, copy=False))
            waiting.popleft().result(30)
            done += 1
        while waiting:
            waiting.popleft().result(30)
        return done / seconds

    def p50_us(self, x: np.ndarray, seconds: float) -> float:
        """The median time of one request alone."""
        took: List[float] = []
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            began = time.perf_counter()
            self.client.infer("echo", {"x": x})
            took.append(time.perf_counter() - began)
        return statistics.median(took) * 1e6

    def settle(self, x: np.ndarray) -> None:
        """Ask until the memory is there, where there is some; check that what comes back is what was sent."""
        ends = time.monotonic() + 10
        while True:
            answer = self.client.infer("echo", {"x": x})
            if not (answer["x"] == x).all():
                raise SystemExit("the answer is not what was sent")
            if self.client._courier.slab is not None or time.monotonic() > ends:
                return

    def has_memory(self) -> bool:
        """Whether it shares memory with the server."""
        return self.client._courier.slab is not None


def compare(
    server: bus.Server, bare: bus.Server, shared: Asker, frames: Asker, count: int, seconds: float, checks: Checks
) -> Dict[str, Dict[str, List[float]]]:
    """Rates of 602 KB and of a full-HD frame at 16 in flight, one request alone, and the server's CPU time."""
    image, frame = np.random.default_rng(1).random(IMAGE).astype(np.float32), np.zeros(FRAME, np.uint8)
    shared.settle(image)
    if not shared.has_memory():
        raise SystemExit("the server gives no shared memory: see its log")
    message = load.message("echo", image)
    cpu: Dict[str, List[float]] = {"shared": [], "in place": [], "frames": []}
    askers = {"shared": shared, "frames": frames}

    def measure(name: str) -> float:
        before = server.cpu_s()
        rate = (frames if name == "frames" else shared).rate(image, DEPTH, seconds, name == "in place")
        cpu[name].append((server.cpu_s() - before) / (rate * seconds) * 1e6)
        return rate

    found = {
        "602 KB, 16 in flight, requests/s": load.rounds(
            count,
            {
                "shared": lambda: measure("shared"),
                "in place": lambda: measure("in place"),
                "frames": lambda: measure("frames"),
                "bare": lambda: len(load.closed_loop(bare.endpoint, message, DEPTH, seconds)) / seconds,
            },
            lambda run: run(),
        )
    }
    found["602 KB, 16 in flight, server CPU per request, us"] = cpu
    found["602 KB, one request alone, p50 us"] = load.rounds(count, askers, lambda asker: asker.p50_us(image, seconds))
    found["6.2 MB, 4 in flight, requests/s"] = load.rounds(count, askers, lambda asker: asker.rate(frame, 4, seconds))
    for name, results in found.items():
        bus.show(name, results)
    rates, large = found["602 KB, 16 in flight, requests/s"], found["6.2 MB, 4 in flight, requests/s"]
    checks.at_least("602 KB, 16 in flight: rate of shared memory to frames", bus.ratio(rates, "shared", "frames"), 2.0)
    checks.at_least(
        "602 KB, 16 in flight: rate of shared memory in place to frames", bus.ratio(rates, "in place", "frames"), 2.0
    )
    checks.at_least(
        "602 KB, 16 in flight: rate of shared memory to bare frames", bus.ratio(rates, "shared", "bare"), TRITON
    )
    alone = found["602 KB, one request alone, p50 us"]
    checks.at_most("602 KB, one alone: p50 of shared memory to frames", bus.ratio(alone, "shared", "frames"), 1.0)
    checks.at_least("6.2 MB, 4 in flight: rate of shared memory to frames", bus.ratio(large, "shared", "frames"), 2.0)
    return found


def main() -> int:
    parser = arguments(__doc__, quick="shorter rounds (same checks; noisier)")
    args = parser.parse_args()
    count, seconds = (3, 1.0) if args.quick else (7, 3.0)
    checks = Checks("research/bench/shared_memory.py")
    load_before = psutil.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        server, bare = bus.edgeserve(folder, "echo", bus.ECHO_TOML), bus.by_hand(folder, "echo")
        shared, frames = Asker(server.endpoint, True), Asker(server.endpoint, False)
        try:
            found = compare(server, bare, shared, frames, count, seconds, checks)
        finally:
            shared.client.close()
            frames.client.close()
            server.stop()
            bare.stop()
    return checks.finish(
        args.json,
        {
            "python": sys.version.split()[0],
            "pyzmq": zmq.__version__,
            "libzmq": zmq.zmq_version(),
            "machine": platform.machine(),
            "cores": len(bus.CORES),
            "rounds": count,
            "seconds": seconds,
            "load_before": round(load_before, 2),
        },
        results=found,
    )


if __name__ == "__main__":
    sys.exit(main())
