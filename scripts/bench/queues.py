"""How soon the best 16 by Orloj's score are found among requests in deadline order, beside a bare argpartition.

    python scripts/bench/queues.py [--quick] [--json FILE]

Four classes of requests with bimodal histograms of 50 bins wait for a batch of 16, in a JobQueue per class, and
:func:`edgeserve.sched.policies.published.orloj.slack.top` finds the best. Measured are the insertion of a request, the
best 16 (nothing is taken out), and the best 16 when a millisecond has passed. Beside them, in the same round, a bare
``numpy.argpartition`` of the same number of scores. What was found is compared with the specification's sum over bins
before its time counts. Where the compiled core is installed, both cores are measured, in processes of their own.

The slacks are drawn so that nearly all requests are *safe* (19 of 20 above the longest batch), all are *risky* (within
the histogram of their class) or both and too late ones are *mixed*.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

import numpy as np
from lib.checks import Checks, arguments

from edgeserve import compiled
from edgeserve.config.loading import parse_config
from edgeserve.config.machine import device_name
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policies.published.orloj.slack import SlackScore, top
from edgeserve.sched.protocol.actions import LatencyBreakdown
from edgeserve.sched.protocol.events import Request
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.units import NS_PER_MS

LENGTHS = (10, 100, 1_000, 10_000)
SPREADS = ("safe", "risky", "mixed")
BATCH = 16
BINS = 50
TIMES_MAX = 4.0
CALLS, GROUP = 200, 5
FIRST_SEED = 1000  # the reported seeds; everything was tried on seeds below 100
RATE = 1e-4 / NS_PER_MS  # the specification's default: a mean delay of 10 s
MODES_MS = ((0.5, 50, 2.5, 100, 2.5), (0.5, 50, 10, 100, 10), (0.75, 60, 10, 90, 2.5), (0.25, 40, 2.5, 110, 10))
"""Classes: (weight, mean, deviation, mean, deviation) of a length in ms; a batch takes 60 + 16 * 0.2 * its longest."""

Waiting = Tuple[int, int, int]  # (request, class, deadline_ns)
Measured = List[Tuple[Tuple[str, int, str], float]]  # spread, pending, what was done; us


class Class:
    """A class's histogram of the batch latency, from 1500 drawn lengths."""

    def __init__(self, modes: Sequence[float], rng: random.Random) -> None:
        weight, mean, deviation, *other = modes
        lengths = [rng.gauss(mean, deviation) if rng.random() < weight else rng.gauss(*other) for _ in range(1500)]
        counts, edges = np.histogram([60 + BATCH * 0.2 * max(length, 1.0) for length in lengths], BINS)
        self.edges: List[float] = [float(round(edge * NS_PER_MS)) for edge in edges]
        self.masses: List[float] = (counts / counts.sum()).tolist()
        self.mean = float(
            sum(mass * (low + high) / 2 for mass, low, high in zip(self.masses, self.edges, self.edges[1:]))
        )

    def brute(self, slack_ns: Any) -> Any:
        """The specification's score (section 3), bin by bin, of an array of slacks."""
        total = np.zeros(len(slack_ns))
        for low, high, mass in zip(self.edges, self.edges[1:], self.masses):
            reached = slack_ns > low
            x = slack_ns[reached]
            total[reached] += (
                mass
                / (high - low)
                / (RATE * self.mean)
                * np.exp(RATE * (low - x))
                * np.expm1(RATE * (np.minimum(high, x) - low))
            )
        return total

    def slack(self, spread: str, rng: random.Random) -> int:
        """A drawn slack."""
        low, high = self.edges[0], self.edges[-1]
        if spread == "safe" and rng.random() < 0.95:
            return round(rng.uniform(high, high + 5000 * NS_PER_MS))
        return round(rng.uniform(0.5 * low, 3 * high) if spread == "mixed" else rng.uniform(low, high))


class Queues:
    """A queue in deadline order per class, as ``[policy.NAME] kind = "orloj"`` keeps them."""

    def __init__(self, classes: Sequence[Class], waiting: Sequence[Waiting]) -> None:
        config = parse_config(
            {"model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}}, "app": {"a": {"model": "m"}}}
        )
        self.app = App(config.apps["a"], "orloj")
        self.queues = [(JobQueue(), SlackScore(one.edges, one.masses, one.mean, RATE), 0) for one in classes]
        self.jobs: Dict[int, Job] = {}
        for request in waiting:
            self.add(self.prepare(request))

    def prepare(self, request: Waiting) -> Any:
        """The scheduler has made a job by the time a policy queues it."""
        item, klass, deadline_ns = request
        record = RequestRecord(Request(item, "a", 0, deadline_ns), self.app)
        return self.queues[klass][0], deadline_ns, Job(item, record, self.app.nodes[0], (), 0, LatencyBreakdown())

    def add(self, prepared: Any) -> None:
        """Insert it."""
        queue, deadline_ns, job = prepared
        queue.add(deadline_ns, job)

    def remove(self, prepared: Any) -> None:
        """Take it out."""
        prepared[0].remove(prepared[2])

    def best(self, now_ns: int) -> List[Job]:
        """The best 16."""
        return top(self.queues, now_ns, BATCH)


def us_per_call(call: Callable[[], Any], calls: int) -> float:
    """Microseconds of one call: the median of groups, so that one in which the process lost its core does not count."""
    group = min(calls, GROUP)
    took = []
    for _ in range(calls // group):
        started = time.perf_counter()
        for _ in range(group):
            call()
        took.append((time.perf_counter() - started) / group * 1e6)
    return statistics.median(took)


def add_us(structure: Any, arrivals: Sequence[Waiting], pending: int) -> float:
    """Microseconds of one insertion: the median of groups of at most a tenth of the length, each taken out again."""
    took = []
    ready = [structure.prepare(request) for request in arrivals]
    chunk = max(1, min(GROUP, pending // 10))
    for start in range(0, len(ready), chunk):
        some = ready[start : start + chunk]
        started = time.perf_counter()
        for one in some:
            structure.add(one)
        took.append((time.perf_counter() - started) / len(some) * 1e6)
        for one in some:
            structure.remove(one)
    return statistics.median(took)


class Pending:
    """Drawn requests at one length and spread."""

    def __init__(self, spread: str, pending: int, seed: int) -> None:
        rng = random.Random(f"{seed}/{spread}/{pending}")
        self.spread, self.rng = spread, rng
        self.classes = [Class(modes, rng) for modes in MODES_MS]
        self.waiting = [self.draw(item) for item in range(pending)]
        self.arrivals = [self.draw(pending + item) for item in range(CALLS)]

    def draw(self, item: int) -> Waiting:
        """A request at time 0."""
        klass = self.rng.randrange(len(self.classes))
        return item, klass, self.classes[klass].slack(self.spread, self.rng)

    def scores(self, now_ns: int) -> Any:
        """By brute force, in the order of the requests."""
        klass, deadline_ns = [np.array([request[column] for request in self.waiting]) for column in (1, 2)]
        scores = np.zeros(len(self.waiting))
        for number, one in enumerate(self.classes):
            scores[klass == number] = one.brute(deadline_ns[klass == number].astype(float) - now_ns)
        return scores

    def is_best(self, found: Sequence[Any], now_ns: int) -> bool:
        """Whether these are 16 different requests of the highest scores; which of equal ones does not matter."""
        items = [getattr(one, "seq", one) for one in found]
        scores = self.scores(now_ns)
        return len(set(items)) == len(items) and np.allclose(
            np.sort(scores[items]), np.sort(scores)[-BATCH:], rtol=1e-7, atol=1e-15 / NS_PER_MS
        )


def measure(drawn: Pending, measured: Measured) -> bool:
    """One round at one length and spread, in microseconds; whether the best were found."""
    pending = len(drawn.waiting)
    queues = Queues(drawn.classes, drawn.waiting)
    scores, first = drawn.scores(0), max(pending - BATCH, 0)
    gc.collect()
    gc.disable()  # what a collection costs depends on all that this process holds, not on a queue
    try:
        took = {"argpartition": us_per_call(lambda: np.argpartition(scores, first), CALLS)}
        right = drawn.is_best(queues.best(0), 0)
        took["top"] = us_per_call(lambda: queues.best(0), CALLS)
        took["add"] = add_us(queues, drawn.arrivals, pending)
        right &= drawn.is_best(queues.best(0), 0)
        took["later"] = us_per_call(lambda: queues.best(NS_PER_MS), 1)
        right &= drawn.is_best(queues.best(NS_PER_MS), NS_PER_MS)
    finally:
        gc.enable()
    measured.extend(((drawn.spread, pending, what), cost) for what, cost in took.items())
    return bool(right)


def measure_round(seed: int) -> Dict[str, Any]:
    """All lengths and spreads with the core of this process."""
    measured: Measured = []
    right = [measure(Pending(spread, pending, seed), measured) for pending in LENGTHS for spread in SPREADS]
    return {"measured": measured, "right": all(right)}


def round_of(core: str, seed: int) -> Dict[str, Any]:
    """:func:`measure_round` in a process of its own, since a core cannot be changed once it is imported."""
    words = [sys.executable, os.path.abspath(__file__), "--measure", str(seed)]
    done = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, compiled.CHOICE: core}
    )
    return dict(json.loads(done.stdout))


def main() -> int:
    parser = arguments(__doc__, quick="fewer rounds (same checks)")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--measure", type=int, metavar="SEED", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(measure_round(args.measure)))
        return 0
    rounds = 5 if args.quick else 21
    cores = ["interpreted"] + (["compiled"] if compiled.running().kind == "compiled" else [])
    measured: Dict[str, Dict[Any, List[float]]] = {core: {} for core in cores}
    right = True
    for seed in range(args.first_seed, args.first_seed + rounds):  # all in each round: a slow minute touches all alike
        for core in cores:
            found = round_of(core, seed)
            right &= found["right"]
            for key, cost in found["measured"]:
                measured[core].setdefault(tuple(key), []).append(cost)
    rows = [row for core in cores for row in table(core, measured[core])]
    checks = Checks("scripts/bench/queues.py")
    checks.is_true("the best 16 are those of brute force", right)
    for core in cores:
        for what, label in (("add", "insertion"), ("top", "best 16")):
            for pending in LENGTHS:
                some = [row for row in rows if (row["core"], row["pending"]) == (core, pending)]
                worst = max(some, key=lambda row: row["times"][what])
                checks.at_most(
                    f"{core}: {label} at {pending} pending, times a bare argpartition ({worst['spread']})",
                    worst["times"][what],
                    TIMES_MAX,
                )
    if "compiled" not in cores:
        print("the compiled core is not installed (docs/guide/compiled.md): not measured")
    return checks.finish(
        args.json,
        {
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "device": device_name(),
            "rounds": rounds,
            "first_seed": args.first_seed,
            "cores": ", ".join(cores),
        },
        rows=rows,
    )


def table(core: str, measured: Dict[Any, List[float]]) -> List[Dict[str, Any]]:
    """Medians over the rounds, printed and as rows; the times of argpartition are medians of each round's ratio."""
    rows: List[Dict[str, Any]] = []
    print(f"{core:16}{'us: insertion, best 16, best 16 a ms later (times argpartition)':>60}")
    for spread in SPREADS:
        for pending in LENGTHS:
            bare = measured[spread, pending, "argpartition"]
            costs = {what: measured[spread, pending, what] for what in ("add", "top", "later")}
            us = {what: statistics.median(cost) for what, cost in costs.items()}
            times = {
                what: statistics.median(one / base for one, base in zip(cost, bare)) for what, cost in costs.items()
            }
            bare_us = statistics.median(bare)
            rows.append(
                {
                    "core": core,
                    "spread": spread,
                    "pending": pending,
                    "us": us,
                    "times": times,
                    "argpartition_us": bare_us,
                }
            )
            print(
                f"{spread}, {pending} pending (argpartition {bare_us:.2f} us)"
                + "".join(f"{us[what]:11.2f} ({times[what]:7.2f})" for what in us)
            )
    return rows


if __name__ == "__main__":
    sys.exit(main())
