"""The HTTP front against a bare ZeroMQ echo and against the bus, side by side in one run on this machine.

    python research/bench/http_front.py [--quick] [--json FILE]

An app whose engine returns its 64 floats, asked over HTTP (binary tensors, and JSON) and over the bus; a bare pyzmq
ROUTER that returns its messages. One client process at a time, closed loop. Rounds alternate between the servers;
medians of rounds and of the ratios within a round are reported.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
import starlette
import uvicorn
from common import bus_load, http_load
from lib.checks import Checks, arguments

from bench import bus

X = np.arange(64, dtype=np.float32)
Loop = Callable[[int, float], List[float]]


class Front:
    """``edgeserve front http`` in a process of its own, on any free port."""

    def __init__(self, endpoint: str) -> None:
        command = [sys.executable, "-m", "edgeserve.cli", "front", "http"]
        command += ["--endpoint", endpoint, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = self.process.stderr.readline()
        found = re.search(r"http://(\S+?),", said)
        if found is None:
            raise SystemExit(f"the front said: {said}{self.process.stderr.read()}")
        self.place = found.group(1)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def bench(folder: str, count: int, seconds: float, checks: Checks) -> None:
    """Rates with 16 in flight, times with 1."""
    servers = [bus.edgeserve(folder, "echo", bus.ECHO_TOML), bus.by_hand(folder, "echo")]
    front = Front(servers[0].endpoint)
    message = bus_load.message("echo", X)
    requests = {kind: http_load.infer_request(front.place, "echo", X, kind == "binary") for kind in ("binary", "json")}
    loops: Dict[str, Loop] = {
        "bare": lambda depth, s: bus_load.closed_loop(servers[1].endpoint, message, depth, s),
        "bus": lambda depth, s: bus_load.closed_loop(servers[0].endpoint, message, depth, s),
        **{
            f"http {kind}": lambda depth, s, request=request: http_load.closed_loop(  # type: ignore[misc]
                front.place, request, depth, s
            )
            for kind, request in requests.items()
        },
    }
    try:
        rates = bus_load.rounds(count, loops, lambda loop: len(loop(16, seconds)) / seconds)
        bus.show("64 floats, 16 in flight, requests/s", rates)
        for kind in requests:
            checks.at_least(
                f"64 floats, 16 in flight, {kind}: rate to bare", bus.ratio(rates, f"http {kind}", "bare"), 0.06
            )
        p50 = bus_load.rounds(count, loops, lambda loop: statistics.median(loop(1, seconds)) * 1e3)
        bus.show("64 floats, 1 in flight, p50 ms", p50)
        added = statistics.median([http - over_bus for http, over_bus in zip(p50["http binary"], p50["bus"])])
        checks.at_most("64 floats, 1 in flight, binary: p50 ms that the front adds to the bus", added, 1.0)
    finally:
        front.stop()
        for server in servers:
            server.stop()


def main() -> int:
    parser = arguments(__doc__, quick="shorter rounds (same checks; noisier)")
    args = parser.parse_args()
    count, seconds = (3, 1.0) if args.quick else (5, 3.0)
    checks = Checks("research/bench/http_front.py")
    with tempfile.TemporaryDirectory() as folder:
        bench(folder, count, seconds, checks)
    versions: Dict[str, Any] = {
        "python": sys.version.split()[0],
        "starlette": starlette.__version__,
        "uvicorn": uvicorn.__version__,
        "machine": platform.machine(),
        "cores": len(bus.CORES),
        "rounds": count,
        "seconds": seconds,
        "load_average": round(os.getloadavg()[0], 1),
    }
    return checks.finish(args.json, versions)


if __name__ == "__main__":
    sys.exit(main())
