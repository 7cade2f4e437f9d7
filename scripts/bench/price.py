"""What this tree costs beside another commit: a request over the bus, batches, decisions by queue length.

    python scripts/bench/price.py --base REV [--rounds 60] [--quarter] [--only PART ...] [--json FILE]

The revision is checked out into a temporary worktree. Each tree has its own server and its own scheduler process, which
live all the time and are measured in turns of a fraction of a second, in alternating order. Reported are medians of
both, and the median of the ratios within a round with their middle half: other work on the machine makes single ratios
uncertain.

*Lone*: an echo of 64 floats, one in flight. *Echo*: 16 in flight. Both count the processor time of all threads of the
server, as the system's scheduler counts it. *Batching*: a network that gains from batches, 32 in flight, and an open
loop at 1.2 times what the base served. *Decisions*: processor time of the scheduler per request at 10 to 10,000 waiting
ones, by the tree's own ``scripts/bench/scheduler.py``. ``--quarter`` lets every server run a quarter of the time only
(stopped and continued every 10 ms): a slow core. ``--only`` may be given several times.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

import msgpack
import numpy as np
import zmq
from lib import bus_load as load
from lib.checks import Checks
from lib.live_models import WIDTH
from lib.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
RATIO_MAX = 1.03
"""Of what costs; what is better when it is more may be less by as much."""

PARTS = ("lone", "echo", "batching", "decisions")
LONE, ECHO = 300, 1000  # requests of one turn
BATCHING_S = 1.0  # of one turn
OVERLOAD = 1.2
DECIDES = {"edf": (10, 100, 1_000, 10_000), "pard_local": (10, 100, 1_000)}
"""Policy -> how many requests wait."""

DECISION_BATCHES = 4  # of one turn
PERIOD_S, RUNS_S = 0.010, 0.0025

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
[model.net]
engine = "live_models:Network"
batch = [1, 2, 4, 8, 16]
expected = {{ 1 = "10ms", 2 = "11ms", 4 = "13ms", 8 = "16ms", 16 = "24ms" }}
[app.net]
model = "net"
slo = "10s"
"""

FUNCTIONS = """
import numpy as np

def example():
    return {"x": np.zeros(64, np.float32)}

def echo(item):
    return {"x": item["x"]}
"""

DECISIONS = """
import sys, time
from bench.scheduler import cycle_us
time.perf_counter = time.process_time
for line in sys.stdin:
    policy, pending, batches, seed = line.split()
    print(cycle_us(policy, int(pending), int(batches), int(seed)), flush=True)
"""
"""Runs in the tree's ``scripts``: answers each line with a time, of the processor: other programs do not count."""

_keys = itertools.count(1)


class Tree:
    """One of the two: its server, a connection to it, and its scheduler in a process of its own."""

    def __init__(self, sources: Path, folder: Path, context: zmq.Context[Any]) -> None:
        self.endpoint = f"ipc://{folder}/bus"
        files = {"priced.py": FUNCTIONS, "live_models.py": (ROOT / "scripts/lib/live_models.py").read_text()}
        self._server = ServerProcess(folder, CONFIG, files, sources=sources)
        self._server.wait_ready(self.endpoint)
        self._socket: Any = context.socket(zmq.DEALER)
        self._socket.linger, self._socket.rcvtimeo = 0, 120_000
        self._socket.connect(self.endpoint)
        self._decider = subprocess.Popen(
            [sys.executable, "-c", DECISIONS],
            cwd=sources / "scripts",
            env={**os.environ, "PYTHONPATH": f"{sources}:{sources / 'scripts'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pids(self) -> Tuple[int, int]:
        """The server and the scheduler."""
        return self._server.pid, self._decider.pid

    def cost_us(self, in_flight: int, count: int) -> float:
        """Processor time of the server for one request, of so many."""
        before_ns = self._used_ns()
        for _ in range(in_flight):
            self._send()
        for _ in range(count):
            self._receive()
            self._send()
        for _ in range(in_flight):
            self._receive()
        return (self._used_ns() - before_ns) / (count + in_flight) / 1e3

    def rate(self) -> float:
        """Requests per second that the network serves, 32 in flight."""
        return len(load.closed_loop(self.endpoint, load.message("net", _input()), 32, BATCHING_S)) / BATCHING_S

    def in_time(self, rate: float, slo_ms: float, seed: int) -> float:
        """The share of an open loop's requests that are answered in time."""
        return load.open_loop(self.endpoint, "net", _input(), rate, slo_ms, 2 * BATCHING_S, seed).in_time["normal"]

    def decision_us(self, policy: str, pending: int, seed: int) -> float:
        """Microseconds of the scheduler per request while so many wait."""
        assert self._decider.stdin is not None and self._decider.stdout is not None
        self._decider.stdin.write(f"{policy} {pending} {DECISION_BATCHES} {seed}\n")
        self._decider.stdin.flush()
        return float(self._decider.stdout.readline())

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
        threads = Path(f"/proc/{self._server.pid}/task")
        return sum([int((thread / "schedstat").read_text().split()[0]) for thread in threads.iterdir()])

    def close(self) -> None:
        """End both processes."""
        self._socket.close()
        self._server.kill()
        self._decider.kill()
        self._decider.wait()


def _input() -> np.ndarray:
    return np.ones(WIDTH, np.float32)


@contextlib.contextmanager
def a_quarter(pids: Sequence[int]) -> Iterator[None]:
    """Let these processes run for a quarter of the time."""
    over = threading.Event()

    def turn() -> None:
        while not over.is_set():
            for what, seconds in ((signal.SIGCONT, RUNS_S), (signal.SIGSTOP, PERIOD_S - RUNS_S)):
                for pid in pids:
                    os.kill(pid, what)
                time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """The files of a revision, for as long as they are needed."""
    with tempfile.TemporaryDirectory(prefix="es-") as folder:
        path = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(path), revision], cwd=ROOT, check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(path)], cwd=ROOT, check=True)


class Rounds:
    """Measures both trees in turn and keeps a row per question."""

    def __init__(self, trees: Sequence[Tree], count: int) -> None:
        self.rows: List[Dict[str, Any]] = []
        self._trees = trees
        self._count = count

    def ask(self, what: str, measure: Callable[[Tree, int], float], is_cost: bool = True) -> Dict[str, Any]:
        """A row: the medians of ``measure(tree, round)``, after one round that does not count."""
        pairs = []
        for turn in range(-1, self._count):
            order = self._trees if turn % 2 else self._trees[::-1]
            found = {tree: measure(tree, turn + 1) for tree in order}
            pairs.append([found[tree] for tree in self._trees])
        pairs = pairs[1:]
        ratios = sorted([now / base for base, now in pairs if base])
        row = {
            "what": what,
            "base": round(statistics.median([base for base, _ in pairs]), 3),
            "now": round(statistics.median([now for _, now in pairs]), 3),
            "ratio": round(statistics.median(ratios), 4),
            "middle_half": [round(ratios[len(ratios) // 4], 3), round(ratios[3 * len(ratios) // 4], 3)],
            "is_cost": is_cost,
        }
        low, high = row["middle_half"]
        print(f"{what:58} {row['base']:>10g} {row['now']:>10g} {row['ratio']:8.3f}  ({low} to {high})", flush=True)
        self.rows.append(row)
        return row


def measure(base: str, count: int, parts: Sequence[str], quarter: bool) -> List[Dict[str, Any]]:
    """All rows of the parts asked for."""
    context: zmq.Context[Any] = zmq.Context()
    with worktree(base) as sources, contextlib.ExitStack() as ends:
        ends.callback(context.destroy, 0)
        trees = []
        for name, path in (("base", sources), ("now", ROOT)):
            trees.append(Tree(path, sources.parent / f"{name}-server", context))
            ends.callback(trees[-1].close)
        if quarter:
            ends.enter_context(a_quarter([pid for tree in trees for pid in tree.pids]))
        rounds = Rounds(trees, count)
        print(f"{'':58} {base[:10]:>10} {'now':>10} {'ratio':>8}  (middle half)")
        if "lone" in parts:
            rounds.ask("lone request: processor time, us", lambda tree, _: tree.cost_us(1, LONE))
        if "echo" in parts:
            rounds.ask("echo, 16 in flight: processor time, us", lambda tree, _: tree.cost_us(16, ECHO))
        if "batching" in parts:
            served = rounds.ask("network, 32 in flight: requests/s", lambda tree, _: tree.rate(), is_cost=False)["base"]
            slo_ms = 2 * 32 / served * 1e3
            rounds.ask(
                f"network, open loop at {OVERLOAD:g} of that: share in time",
                lambda tree, turn: tree.in_time(OVERLOAD * served, slo_ms, turn),
                is_cost=False,
            )
        if "decisions" in parts:
            for policy, pending in [(policy, pending) for policy, lengths in DECIDES.items() for pending in lengths]:
                rounds.ask(
                    f"decisions of {policy}, {pending} waiting: us per request",
                    lambda tree, turn, policy=policy, pending=pending: tree.decision_us(  # type: ignore[misc]
                        policy, pending, turn
                    ),
                )
        return rounds.rows


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the servers: there are two
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, metavar="REV", help="the revision to compare with")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--quarter", action="store_true", help="every server runs a quarter of the time")
    parser.add_argument("--only", choices=PARTS, action="append", help="may be given several times")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = measure(args.base, args.rounds, args.only or PARTS, args.quarter)
    checks = Checks("scripts/bench/price.py")
    for row in rows:
        if row["is_cost"]:
            checks.at_most(f"{row['what']}, to {args.base}", row["ratio"], RATIO_MAX)
        else:
            checks.at_least(f"{row['what']}, to {args.base}", row["ratio"], 1 / RATIO_MAX)
    return checks.finish(
        args.json,
        {
            "rounds": args.rounds,
            "quarter": args.quarter,
            "python": sys.version.split()[0],
            "load_average": round(os.getloadavg()[0], 1),
        },
        rows=rows,
    )


if __name__ == "__main__":
    sys.exit(main())
