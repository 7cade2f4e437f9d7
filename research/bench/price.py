"""Costs of this tree beside an earlier commit, in interleaved rounds: overload, decisions, a lone request, a process.

    python research/bench/price.py [--base REV] [--quick] [--only PART ...] [--json FILE]

The package of the revision is laid into a temporary directory; both trees answer the same questions in each round, in
alternating order, and ratios are within a round. *Overload*: a small network at 90, 120 and 150 % of what a thread
written by hand serves that batches greedily (``common/bus_servers.py``, in the same round): goodput relative to that
thread. The clients have one core, the server that is measured the other. *Decisions*: processor time of the scheduler
per request at 1 to 10,000 waiting ones, by policy; also with the compiled core where this tree has one, in place or in
``.compiled`` (``make compiled-core``). Every arrival is a step of its own, with the ``wake_ns`` that the loop reads.
*Choice* is the step of ``plan`` that chooses a company among 64 waiting requests of unequal work. *Mix* is the time per
request of eight apps on one lane, for which 200 requests wait. *Lone*: the mean time of an echo over the bus, one after
the other. *Process*: memory and idle CPU of a runtime with a synthetic model that has served one request, and the time
of ``import edgeserve``.
"""

from __future__ import annotations

import contextlib
import glob
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
from common import bus_load as load
from common.replicated import BEYOND, checks_of
from lib.checks import arguments

from bench import bus
from edgeserve import compiled

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("overload", "lone", "decisions", "process")
POLICIES = (
    "fifo",
    "edf",
    "plan",
    "clockwork",
    "clipper",
    "nexus",
    "orloj",
    "pard",
    "pard+",
)
"""The policies that serve plain models."""

SHARES = {share: least for share, least in bus.GOODPUT_MIN.items() if share >= 0.9}
"""Share of the thread's capacity -> the least goodput relative to the thread."""

TO_BASE_MIN = 0.99
"""Goodput to the base's: two equal servers differ by a point from round to round."""

SLO_TIMES = 5  # what the thread takes for a lone request
LENGTHS = (1, 10, 100, 1_000, 10_000)
DECISION_US_MAX = {"interpreted": 25.0, "compiled": 12.0}  # at 100 pending
GROWTH_MAX = 2.0
"""The growth of a decision's time from 100 to 10,000 pending requests. Constant but for the processor's caches, which
hold no such queue."""

REQUESTS = 160  # of one measurement of a decision
CHOICE_MS_MAX = 5.0
MIX_CLIENTS = 25  # of each of eight apps
MIX_US_MAX = {"interpreted": 350.0, "compiled": 150.0}
MEMORY_MB_MAX, IDLE_MAX, IMPORT_S_MAX = 80.0, 0.01, 0.3
IMPORT = "import time; began = time.perf_counter(); import edgeserve; print(time.perf_counter() - began)"


@contextlib.contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """A temporary directory with the package of a revision."""
    with tempfile.TemporaryDirectory(prefix="edgeserve-base-") as folder:
        top = subprocess.run(
            ["git", "rev-parse", "--show-toplevel"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        archive = subprocess.run(
            ["git", "archive", "--format=tar", revision, "edgeserve"], cwd=top, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive.stdout)
        yield Path(folder)


def compiled_tree() -> Path | None:
    """The folder of this tree's package compiled for this Python: here, or in the copy that tests use."""
    library = f"{compiled.LIBRARY}{compiled.digest(str(ROOT / 'edgeserve'))}*{compiled.EXTENSION_SUFFIXES[0]}"
    return next((path for path in (ROOT, ROOT / ".compiled") if glob.glob(str(path / "edgeserve" / library))), None)


class Costs:
    """A process that answers questions of ``research/common/tree_costs.py`` about one tree."""

    def __init__(self, tree: Path, core: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, os.path.join(bus.LIB, "tree_costs.py")],
            cwd=tree / "edgeserve",  # where no profiles lie: each tree has a format of its own
            env={**os.environ, "PYTHONPATH": str(tree), compiled.CHOICE: core},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: str) -> float | None:
        """The answer; none where the tree has no such policy."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"{question!r} ended the process that should answer it")
        return None if answer == "missing" else float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Bench:
    """Keeps the trees, the rows of the result and its checks."""

    def __init__(self, base: Path, count: int, seconds: float) -> None:
        self.trees = {"now": ROOT, "base": base}
        self.checks = checks_of("research/bench/price.py", one_side=BEYOND)
        self.rows: List[Dict[str, Any]] = []
        self._count = count
        self._seconds = seconds

    def row(self, what: str, results: Mapping[str, Sequence[float]]) -> Dict[str, float]:
        """Keep and print the medians, and what this tree has to each other one within a round."""
        row: Dict[str, Any] = {"what": what}
        for name, values in results.items():
            row[name] = round(statistics.median(values), 4)
        for name in results:
            if name != "now" and "now" in results:
                row[f"to {name}"] = round(bus.ratio(dict(results), "now", name), 4)
        self.rows.append(row)
        print(f"{what}: " + ", ".join(f"{key} {row[key]}" for key in list(row)[1:]), flush=True)
        return row

    @contextlib.contextmanager
    def served(self, name: str, text: str, index: int = 1, **values: str) -> Iterator[Dict[str, bus.Server]]:
        """Both trees' servers of one configuration, started in the order of a round; they end with the block."""
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
            servers = {}
            for tree in in_turn(self.trees, index):
                (Path(folder) / tree).mkdir()
                path = str(self.trees[tree])
                servers[tree] = bus.edgeserve(os.path.join(folder, tree), name, text, tree=path, **values)
                ends.callback(servers[tree].stop)
            yield {tree: servers[tree] for tree in self.trees}

    def overload(self) -> None:
        """A network beside the hand-written thread, beyond what either can serve.

        Each round starts servers of its own: of two equal processes on one machine the network of one was up to a fifth
        slower for as long as both lived, and it was the first more often."""
        names = [*self.trees, "thread"]
        shares: Dict[float, Dict[str, List[float]]] = {share: {name: [] for name in names} for share in SHARES}
        mixed: Dict[str, Dict[str, List[float]]] = {
            kind: {name: [] for name in self.trees} for kind in ("critical", "normal")
        }
        capacities: List[float] = []
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.onnx")
            load.make_network(path)
            for index in range(self._count):
                with contextlib.ExitStack() as ends:
                    ours = ends.enter_context(self.served("net", bus.BATCHING_TOML, index, model=path))
                    thread = bus.by_hand(folder, "thread", path)
                    ends.callback(thread.stop)
                    self._overload({**ours, "thread": thread}, index, capacities, shares, mixed)
        self.row("capacity of the thread, requests/s", {"thread": capacities})
        for share, results in shares.items():
            row = self.row(f"network at {share:.0%}: goodput", results)
            self.checks.at_least(f"network at {share:.0%}: goodput to the thread", row["to thread"], SHARES[share])
            self.checks.at_least(f"network at {share:.0%}: goodput to the base", row["to base"], TO_BASE_MIN)
        for kind, name, bound in (("critical", "critical", bus.CRITICAL_MIN), ("normal", "others", bus.OTHERS_MIN)):
            row = self.row(f"network at {max(SHARES):.0%}, {bus.CRITICAL:.0%} critical: {name} in time", mixed[kind])
            self.checks.at_least(row["what"], row["now"], bound)

    def _overload(
        self,
        servers: Mapping[str, bus.Server],
        index: int,
        capacities: List[float],
        shares: Mapping[float, Dict[str, List[float]]],
        mixed: Mapping[str, Dict[str, List[float]]],
    ) -> None:
        """One round."""
        one = load.message("net", np.ones(load.WIDTH, np.float32))
        thread = servers["thread"].endpoint
        for _ in range(2):  # the first time, the thread may still be about to start
            alone_ms = 2e3 * self._seconds / len(load.closed_loop(thread, one, 1, 2 * self._seconds))
        slo_ms = SLO_TIMES * alone_ms
        capacities.append(len(load.closed_loop(thread, one, 32, self._seconds)) / self._seconds)
        capacity = statistics.median(capacities)
        for share, results in shares.items():
            for name in in_turn(servers, index):
                in_time = self._in_time(servers[name], share * capacity, slo_ms, index)
                results[name].append(in_time["normal"])
        for name in in_turn(self.trees, index):
            in_time = self._in_time(servers[name], max(SHARES) * capacity, slo_ms, index, bus.CRITICAL)
            for kind, values in mixed.items():
                values[name].append(in_time[kind])

    def _in_time(
        self, server: bus.Server, rate: float, slo_ms: float, seed: int, critical: float = 0.0
    ) -> Dict[str, float]:
        x = np.ones(load.WIDTH, np.float32)
        return load.open_loop(server.endpoint, "net", x, rate, slo_ms, 2 * self._seconds, seed, critical)

    def lone(self) -> None:
        """One request after the other over the bus."""
        message = load.message("echo", np.arange(64, dtype=np.float32))
        with self.served("echo", bus.ECHO_TOML) as servers:
            times = load.rounds(
                self._count,
                servers,
                lambda server: (
                    self._seconds * 1e6 / len(load.closed_loop(server.endpoint, message, 1, self._seconds))
                ),
            )
        self.row("lone request over the bus, us", times)

    def decisions(self) -> None:
        """Processor time of the scheduler by queue length and policy."""
        with contextlib.ExitStack() as ends:
            asked = {name: Costs(path, "interpreted") for name, path in self.trees.items()}
            built = compiled_tree()
            if built is not None:
                asked["compiled"] = Costs(built, "compiled")
            for costs in asked.values():
                ends.callback(costs.close)
            self.choice(asked)
            self.mix(asked)
            for policy in POLICIES:
                found = {pending: self._decision(asked, policy, pending) for pending in LENGTHS}
                for core, name in (("interpreted", "now"), ("compiled", "compiled")):
                    if name in asked:
                        what = f"{policy}, {core}: "
                        cost, most = found[100][name], found[LENGTHS[-1]][name]
                        self.checks.at_most(what + "us a decision at 100 pending", cost, DECISION_US_MAX[core])
                        self.checks.at_most(what + "10,000 pending to 100", most / cost, GROWTH_MAX)

    def _decision(self, asked: Mapping[str, Costs], policy: str, pending: int) -> Dict[str, float]:
        results: Dict[str, List[float]] = {name: [] for name in asked}
        for index in range(self._count):
            for name in in_turn(asked, index):
                cost = asked[name].ask(f"decision {policy} {pending} {REQUESTS} {index}")
                if cost is not None:
                    results[name].append(cost)
        known = {name: values for name, values in results.items() if values}
        return self.row(f"{policy}, {pending} pending: us a decision", known)

    def choice(self, asked: Mapping[str, Costs]) -> None:
        """The time of ``plan`` to choose among requests of unequal work; in this tree alone."""
        found = {
            name: [costs.ask(f"choice {index}") or 0.0 for index in range(self._count)]
            for name, costs in asked.items()
            if name != "base"
        }
        row = self.row("plan: ms to choose among 64 of unequal work", found)
        self.checks.at_most(row["what"], row["now"], CHOICE_MS_MAX)

    def mix(self, asked: Mapping[str, Costs]) -> None:
        """Eight apps on one lane; of this tree alone."""
        own = {name: costs for name, costs in asked.items() if name != "base"}
        found: Dict[str, List[float]] = {name: [] for name in own}
        for index in range(self._count):
            for name in in_turn(own, index):
                found[name].append(own[name].ask(f"mix {MIX_CLIENTS} {index}") or 0.0)
        row = self.row(f"eight apps, {8 * MIX_CLIENTS} pending: us a request", found)
        for core, name in (("interpreted", "now"), ("compiled", "compiled")):
            if name in found:
                self.checks.at_most(f"{row['what']}, {core}", row[name], MIX_US_MAX[core])

    def process(self) -> None:
        """A process of its own for each answer."""
        for question, what, most in (
            ("memory", "runtime with a synthetic model, MB", MEMORY_MB_MAX),
            ("idle", "idle CPU of it, share of a core", IDLE_MAX),
            ("import", "import edgeserve, s", IMPORT_S_MAX),
        ):
            results: Dict[str, List[float]] = {name: [] for name in self.trees}
            for index in range(min(3, self._count)):
                for name in in_turn(self.trees, index):
                    results[name].append(self._of_process(self.trees[name], question))
            self.checks.at_most(what, self.row(what, results)["now"], most)

    def _of_process(self, tree: Path, question: str) -> float:
        if question == "import":
            command, environment = [sys.executable, "-c", IMPORT], {**os.environ, "PYTHONPATH": str(tree)}
            return float(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
        costs = Costs(tree, bus.core_of_servers())
        found = costs.ask(question) or 0.0
        costs.close()
        return found


def in_turn(subjects: Mapping[str, Any], index: int) -> List[str]:
    """The order of a round: every other one is the reverse."""
    return list(subjects)[:: 1 if index % 2 else -1]


def main() -> int:
    parser = arguments(__doc__, quick="fewer and shorter rounds (same checks; noisier)")
    parser.add_argument("--base", default="fe3afc9", metavar="REV", help="the commit to compare with (%(default)s)")
    parser.add_argument("--rounds", type=int, help="7, or 2 with --quick")
    parser.add_argument("--only", choices=PARTS, action="append", help="may be given several times")
    args = parser.parse_args()
    rounds = args.rounds or (2 if args.quick else 7)
    seconds = 0.5 if args.quick else 1.0
    with tree_of(args.base) as base:
        bench = Bench(base, rounds, seconds)
        for part in args.only or PARTS:
            getattr(bench, part)()
    circumstances = {
        "base": args.base,
        "core": compiled.running().kind,
        "compiled core": "measured" if compiled_tree() else "not there",
        "rounds": rounds,
        "seconds": seconds,
        "load_average": round(os.getloadavg()[0], 1),
    }
    return bench.checks.finish(args.json, circumstances, rows=bench.rows)


if __name__ == "__main__":
    sys.exit(main())
