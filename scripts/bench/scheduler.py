"""What the scheduler costs: one arrival-to-launch-to-finish cycle per request, by queue length, policy and batch 16.

    python scripts/bench/scheduler.py [--quick] [--json FILE]

Every arrival is a step of its own, with the ``wake_at`` that the loop asks for after each step; a batch of 16 is
launched by the step that hears of the last one's end. Deadlines are drawn, so that arrivals go into the middle of the
queue. Times are the processor's. Beside it, in the same run, a ``heapq`` push and pop at the same length. Where the
compiled core is installed (``docs/guide/compiled.md``), each round measures both cores, in a process each. *Decision*
is the step of ``pard_local`` that chooses the next cohort of a three-node chain among 64 waiting requests of unequal
work. The process's memory, the time of ``import edgeserve`` and the idle CPU of an embedded runtime are measured in
processes of their own.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.checks import Checks, arguments
from lib.tree_costs import Cycle

from edgeserve import compiled
from edgeserve.config.loading import parse_config
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import JobResult, Request, RequestArrived, WorkFinished
from edgeserve.units import NS_PER_S

LENGTHS = (10, 100, 1_000, 10_000)
POLICIES = ("edf", "clockwork")
BATCH = 16
CYCLE_US_MAX = 30.0  # the aim at 100 pending
GROWTH_MAX = 10.0  # at 10,000 pending, as a multiple of that at 100
UNEQUAL = 64
DECISION_MS_MAX = 5.0  # of pard_local among so many waiting requests of unequal work
COMPILED_TIMES_MIN = 1.7  # as fast as the interpreted core, each policy at 100 pending


def decision_ms(seed: int) -> float:
    """Milliseconds of the step in which ``pard_local`` chooses a cohort among :data:`UNEQUAL` requests that tell their
    work, from 0.5 to 2.5 times the usual, and have 0.1 to 1.1 s left: the cohort before it has just ended."""
    rng = random.Random(f"{seed}/unequal")
    names = [f"m{index}" for index in range(3)]
    times = {str(k): f"{2 + k}ms" for k in (1, 2, 4, 8, 16)}
    scheduler = build_scheduler(
        parse_config(
            {
                "model": {
                    name: {"engine": "synthetic", "batch": [1, 2, 4, 8, 16], "expected": times} for name in names
                },
                "policy": {"p": {"kind": "pard_local", "cohorts": 1}},
                "app": {
                    "a": {
                        "slo": "10s",
                        "node": [{"name": name, "after": names[index - 1 : index]} for index, name in enumerate(names)],
                    }
                },
            }
        )
    )
    now_ns = 0
    actions = scheduler.step(now_ns, [RequestArrived(Request(0, "a", 0, 10 * NS_PER_S))])
    scheduler.step(
        now_ns,
        [
            RequestArrived(
                Request(index, "a", 0, int((0.1 + rng.random()) * NS_PER_S), hints={"work": 0.5 + 2 * rng.random()})
            )
            for index in range(1, UNEQUAL + 1)
        ],
    )
    while True:
        batch = next(action for action in actions if isinstance(action, RunBatch))
        started_ns, now_ns = now_ns, now_ns + batch.expected_ns
        event = WorkFinished(batch.work_id, started_ns, now_ns, tuple([JobResult(job) for job in batch.jobs]))
        began = time.thread_time()
        actions = scheduler.step(now_ns, (event,))
        took = time.thread_time() - began
        if batch.model == names[-1]:
            assert any(isinstance(action, RunBatch) and len(action.jobs) > 1 for action in actions)
            return took * 1e3


def heap_us(pending: int, count: int, seed: int) -> float:
    """Microseconds for one ``heapq`` push and pop at the same length."""
    rng = random.Random(f"{seed}/heap")
    heap = [(rng.random(), index) for index in range(pending)]
    heapq.heapify(heap)
    keys = [rng.random() for _ in range(count)]
    started = time.process_time()
    for index, key in enumerate(keys):
        heapq.heappush(heap, (key, index))
        heapq.heappop(heap)
    return (time.process_time() - started) / count * 1e6


def measure(seed: int) -> Dict[str, Dict[int, float]]:
    """One round with the core of this process: what -> queue length -> microseconds."""
    found: Dict[str, Dict[int, float]] = {"heap": {pending: heap_us(pending, 20_000, seed) for pending in LENGTHS}}
    for policy in POLICIES:
        found[policy] = {pending: Cycle(policy, pending, seed).us_per_request(60 * BATCH) for pending in LENGTHS}
    found["decision"] = {UNEQUAL: decision_ms(seed)}
    return found


def round_of(core: str, seed: int) -> Dict[str, Dict[str, float]]:
    """One round with that core, in a process of its own."""
    words = [sys.executable, __file__, "--measure", str(seed)]
    done = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, compiled.CHOICE: core}
    )
    return dict(json.loads(done.stdout))


IMPORT = """
import sys, time
started = time.perf_counter()
import edgeserve
took = time.perf_counter() - started
engines = [name for name in ("onnxruntime", "torch", "tensorrt", "numpy", "zmq") if name in sys.modules]
print(took, ",".join(engines))
"""

IDLE = """
import os, time, psutil, edgeserve
from edgeserve.config.loading import parse_config
config = parse_config({"model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}}, "app": {"a": {"model": "m"}}})
with edgeserve.Runtime(config) as runtime:
    runtime.infer("a", {})
    process = psutil.Process()
    before = process.cpu_times()
    time.sleep(3)
    after = process.cpu_times()
    print((after.user + after.system - before.user - before.system) / 3, process.memory_info().rss / 1e6)
"""


def in_process(code: str) -> List[str]:
    """Run a program in a process of its own and return its words."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def main() -> int:
    parser = arguments(__doc__, quick="fewer rounds (same checks)")
    parser.add_argument("--measure", type=int, metavar="SEED", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(measure(args.measure)))
        return 0
    rounds = 5 if args.quick else 21
    cores = ["interpreted"] + (["compiled"] if compiled.running().kind == "compiled" else [])
    found: Dict[str, List[Dict[str, Dict[str, float]]]] = {core: [] for core in cores}
    for seed in range(rounds):  # everything in each round: a slow minute of the machine touches all alike
        for core in cores:
            found[core].append(round_of(core, seed))
    rows: List[Dict[str, Any]] = []
    for core in cores:
        for pending in LENGTHS:
            heap = statistics.median(one["heap"][str(pending)] for one in found[core])
            for policy in POLICIES:
                cost = statistics.median(one[policy][str(pending)] for one in found[core])
                times = statistics.median(
                    slow[policy][str(pending)] / fast[policy][str(pending)]
                    for slow, fast in zip(found["interpreted"], found[core])
                )
                rows.append(
                    {
                        "core": core,
                        "policy": policy,
                        "pending": pending,
                        "us_per_request": cost,
                        "heap_us": heap,
                        "times_heap": cost / heap,
                        "times_as_fast": times,
                    }
                )
                print(
                    f"{core:11} {policy:9} {pending:6} pending: {cost:6.1f} us a request, {cost / heap:5.1f} x heapq "
                    f"({heap:.2f} us), {times:.2f} times as fast as interpreted"
                )
    decisions = {core: statistics.median(one["decision"][str(UNEQUAL)] for one in found[core]) for core in cores}
    for core, took_ms in decisions.items():
        print(f"{core:11} pard_local {UNEQUAL:5} waiting of unequal work: {took_ms:.2f} ms a decision")
    checks = Checks("scripts/bench/scheduler.py")
    checks.at_most(
        f"pard_local: ms to decide among {UNEQUAL} of unequal work", decisions["interpreted"], DECISION_MS_MAX
    )
    check(rows, checks)
    if "compiled" not in cores:
        print("the compiled core is not installed (docs/guide/compiled.md): not compared")
    return checks.finish(
        args.json,
        {"python": sys.version.split()[0], "rounds": rounds, "cores": ", ".join(cores)},
        rows=rows,
        decision_ms=decisions,
    )


def check(rows: List[Dict[str, Any]], checks: Checks) -> None:
    """Everything this script must show. The costs are the interpreted core's, which everybody has."""
    cost = {(row["policy"], row["pending"]): row["us_per_request"] for row in rows if row["core"] == "interpreted"}
    for policy in POLICIES:
        checks.at_most(f"{policy}: us a request at 100 pending", cost[policy, 100], CYCLE_US_MAX)
        checks.at_most(
            f"{policy}: cost at 10,000 pending to that at 100", cost[policy, 10_000] / cost[policy, 100], GROWTH_MAX
        )
    for row in rows:
        if row["core"] == "compiled" and row["pending"] == 100:
            checks.at_least(f"{row['policy']}: compiled, times as fast", row["times_as_fast"], COMPILED_TIMES_MIN)
    imports = [in_process(IMPORT) for _ in range(5)]
    engines = imports[0][1] if len(imports[0]) > 1 else ""
    checks.at_most("import edgeserve, s", statistics.median(float(words[0]) for words in imports), 0.3)
    checks.is_true(
        "import edgeserve loads no engine", not any(name in engines for name in ("onnxruntime", "torch", "tensorrt"))
    )
    idle, rss = (float(word) for word in in_process(IDLE))
    checks.at_most("idle CPU of a runtime, share of a core", idle, 0.01)
    checks.at_most("memory of a runtime without models, MB", rss, 80)


if __name__ == "__main__":
    sys.exit(main())
