"""What a request on the bus costs the server's processor, beside an earlier commit.

    python scripts/bench/price.py --before 5d4e2b0 [--rounds 200] [--json FILE]

An echo of 64 floats, 16 in flight and one in flight. Both servers run all the time, each from its own sources, and are
asked in turns of a fraction of a second by one plain client that sends both the same bytes. Counted is the processor
time of all threads of a server, as the system's scheduler counts it. Other work on the machine makes single ratios
uncertain; the median of all pairs is reported, with their middle half.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

import msgpack
import zmq
from lib.checks import Checks
from lib.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
RATIO_MAX = 1.03

REQUESTS = {16: 1000, 1: 300}
"""In flight -> requests of one turn."""

CONFIG = """
[server]
endpoint = "ipc://{folder}/bus"
[lane.cpu0]
[model.echo]
engine = "python"
function = "priced:echo"
batch = [1, 2, 4, 8, 16]
options = {{ example = "priced:example" }}
[app.echo]
model = "echo"
slo = "10s"
"""

FUNCTIONS = """
import numpy as np

def example():
    return {"x": np.zeros(64, np.float32)}

def echo(item):
    return {"x": item["x"]}
"""

_keys = itertools.count(1)


class Server:
    """One of the two, and a connection to it."""

    def __init__(self, sources: Path, folder: Path, context: zmq.Context[Any]) -> None:
        self._child = ServerProcess(folder, CONFIG, {"priced.py": FUNCTIONS}, sources=sources)
        self._socket: Any = context.socket(zmq.DEALER)
        self._socket.linger, self._socket.rcvtimeo = 0, 60_000
        self._socket.connect(f"ipc://{folder}/bus")

    def cost_us(self, in_flight: int, count: int) -> float:
        """Processor time of one request, of so many."""
        before_ns = self._used_ns()
        for _ in range(in_flight):
            self._send()
        for _ in range(count):
            self._receive()
            self._send()
        for _ in range(in_flight):
            self._receive()
        return (self._used_ns() - before_ns) / (count + in_flight) / 1e3

    def _send(self) -> None:
        header = {
            "kind": "infer",
            "id": next(_keys),
            "app": "echo",
            "tensors": [["x", "float32", [64]]],
            "sent_ns": time.monotonic_ns(),
        }
        self._socket.send_multipart([b"\1" + msgpack.packb(header), bytes(256)])

    def _receive(self) -> None:
        header = msgpack.unpackb(self._socket.recv_multipart()[0][1:])
        if header["kind"] != "answer":
            raise SystemExit(f"no answer: {header}")

    def _used_ns(self) -> int:
        threads = Path(f"/proc/{self._child.pid}/task")
        return sum([int((thread / "schedstat").read_text().split()[0]) for thread in threads.iterdir()])

    def close(self) -> None:
        self._socket.close()
        self._child.kill()


def measure(before: str, rounds: int) -> List[Dict[str, Any]]:
    """Costs of both, in pairs, for each number in flight."""
    archive = subprocess.run(["git", "archive", before, "edgeserve"], cwd=ROOT, capture_output=True, check=True).stdout
    context: zmq.Context[Any] = zmq.Context()
    with tempfile.TemporaryDirectory(prefix="es-") as path:
        with tarfile.open(fileobj=io.BytesIO(archive)) as sources:
            sources.extractall(path)
        servers = [Server(Path(path), Path(path) / "before", context), Server(ROOT, Path(path) / "now", context)]
        rows: List[Dict[str, Any]] = []
        try:
            for in_flight, count in REQUESTS.items():
                for server in servers:
                    server.cost_us(in_flight, count)
                pairs = []
                for turn in range(rounds):
                    order = servers if turn % 2 else servers[::-1]
                    costs = {server: server.cost_us(in_flight, count) for server in order}
                    pairs.append([costs[server] for server in servers])
                rows.append(_row(in_flight, pairs))
                print(rows[-1], flush=True)
        finally:
            for server in servers:
                server.close()
            context.destroy(0)
    return rows


def _row(in_flight: int, pairs: List[List[float]]) -> Dict[str, Any]:
    ratios = sorted([now / before for before, now in pairs])
    return {
        "in_flight": in_flight,
        "before_us": round(statistics.median([before for before, _ in pairs]), 1),
        "now_us": round(statistics.median([now for _, now in pairs]), 1),
        "ratio": statistics.median(ratios),
        "middle_half": [round(ratios[len(ratios) // 4], 3), round(ratios[3 * len(ratios) // 4], 3)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = measure(args.before, args.rounds)
    checks = Checks("scripts/bench/price.py")
    for row in rows:
        checks.at_most(
            f"processor time of a request, {row['in_flight']} in flight, to {args.before}", row["ratio"], RATIO_MAX
        )
    return checks.finish(
        args.json,
        {"rounds": args.rounds, "python": sys.version.split()[0], "load_average": round(os.getloadavg()[0], 1)},
        rows=rows,
    )


if __name__ == "__main__":
    sys.exit(main())
