"""What one tree costs: decisions by queue length, and memory of a runtime that has nothing to do.

    PYTHONPATH=TREE python scripts/lib/tree_costs.py

The package is the one that ``PYTHONPATH`` names, of today or of an earlier commit, so only what both have is used here.
Each line of standard input is a question, each line of output its answer: ``decision POLICY PENDING REQUESTS SEED`` in
microseconds of processor time, ``memory`` in MB. ``missing`` answers for a policy that this tree does not have.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from typing import Any, List

import psutil

try:
    from edgeserve.config.loading import parse_config
    from edgeserve.sched.core.build import build_scheduler
    from edgeserve.sched.policies import POLICIES
    from edgeserve.sched.protocol.actions import RunBatch
    from edgeserve.sched.protocol.events import JobResult, Request, RequestArrived, WorkFinished
except ImportError:  # a commit of before November 22
    from edgeserve.config import parse_config
    from edgeserve.sched.actions import RunBatch
    from edgeserve.sched.events import JobResult, Request, RequestArrived, WorkFinished
    from edgeserve.sched.policies import POLICIES
    from edgeserve.sched.setup import build_scheduler

SIZES = (1, 2, 4, 8, 16)
ARRIVAL_GAP_NS = 10_000
SLO_NS = 3600 * 10**9
"""No deadline is near, so nothing is dropped."""

TURNS_MAX = 1000
"""A policy that waits before it starts a batch does not wait longer than so many wake-ups."""


class Cycle:
    """A scheduler of one model in batches of up to 16, with ``pending`` requests waiting behind a running batch."""

    def __init__(self, policy: str, pending: int, seed: int) -> None:
        self._rng = random.Random(f"{seed}/deadlines")
        self._scheduler = build_scheduler(
            parse_config(
                {
                    "server": {"pending_max": 1_000_000},
                    "model": {
                        "m": {
                            "engine": "synthetic",
                            "batch": list(SIZES),
                            "expected": {str(size): f"{2 + size}ms" for size in SIZES},
                        }
                    },
                    "policy": {"p": {"kind": policy}},
                    "app": {"a": {"model": "m", "slo": "1h", "pending_max": 1_000_000}},
                }
            )
        )
        self._now_ns = 0
        self._arrived = 0
        self._running = self._launched(self._scheduler.step(0, self._arrivals(pending + SIZES[-1])))

    def us_per_request(self, requests: int) -> float:
        """Processor time of the scheduler per request, over at least so many: one arrival, its share of a launch and
        of an end. As many arrive while a batch runs as are in it, each in a step of its own."""
        arrivals = self._arrivals(requests + SIZES[-1])
        open_count, done = self._scheduler.open_count, 0
        gc.collect()
        began = time.process_time()
        while done < requests:
            for event in arrivals[done : done + len(self._running.jobs)]:
                self._now_ns += ARRIVAL_GAP_NS
                self._scheduler.step(self._now_ns, (event,))
                self._scheduler.wake_at()
            done += len(self._running.jobs)
            self._end_and_launch()
        took = time.process_time() - began
        assert self._scheduler.open_count == open_count, "a request was lost"
        return took / done * 1e6

    def _end_and_launch(self) -> None:
        started_ns, self._now_ns = self._now_ns, self._now_ns + self._running.expected_ns
        results = tuple([JobResult(job) for job in self._running.jobs])
        ended = WorkFinished(self._running.work_id, started_ns, self._now_ns, results)
        self._running = self._launched(self._scheduler.step(self._now_ns, (ended,)))

    def _launched(self, actions: Any) -> Any:
        """The batch among the actions, or the first one that a later wake-up starts."""
        for _ in range(TURNS_MAX):
            wakes_ns = self._scheduler.wake_at()
            batch = next((action for action in actions if isinstance(action, RunBatch)), None)
            if batch is not None:
                return batch
            self._now_ns = max(self._now_ns, wakes_ns)
            actions = self._scheduler.step(self._now_ns, ())
        raise AssertionError(f"no batch starts within {TURNS_MAX} wake-ups")

    def _arrivals(self, count: int) -> List[Any]:
        """Requests with drawn deadlines: they go into the middle of the queue."""
        first, self._arrived = self._arrived, self._arrived + count
        return [
            RequestArrived(Request(index, "a", 0, int((0.5 + self._rng.random()) * SLO_NS)))
            for index in range(first, first + count)
        ]


def memory_mb() -> float:
    """Resident memory of this process with a runtime that has served one request of a synthetic model."""
    import edgeserve

    config = parse_config(
        {"model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}}, "app": {"a": {"model": "m"}}}
    )
    with edgeserve.Runtime(config) as runtime:
        runtime.infer("a", {})
        return psutil.Process().memory_info().rss / 1e6


def answer(question: str) -> str:
    """The answer to one line."""
    what, *rest = question.split()
    if what == "memory":
        return f"{memory_mb():.3f}"
    policy, pending, requests, seed = rest
    if policy not in POLICIES:
        return "missing"
    return f"{Cycle(policy, int(pending), int(seed)).us_per_request(int(requests)):.3f}"


if __name__ == "__main__":
    for line in sys.stdin:
        print(answer(line), flush=True)
