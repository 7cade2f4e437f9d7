"""Measuring what decisions take: processor time of the scheduler per request, by policy and by how many are open.

A scheduler of one model decides on requests that come one by one while batches of the others run: an arrival, and its
share of a launch and of an end. No clock but that of the processor, and no engine: the same on a busy machine.
"""

from __future__ import annotations

import random
import time
from typing import Any, Callable, Dict, List, Sequence

from edgeserve.config.loading import parse_config
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import JobResult, Request, RequestArrived, WorkFinished
from edgeserve.units import NS_PER_S

OPEN = (1, 10, 100, 1000)
"""Requests that wait: a lone one, an app, a mix of apps, an overload."""

REQUESTS = 64
"""The length of one measurement; the middle of :data:`ROUNDS` counts."""

ROUNDS = 3
SIZES = (1, 2, 4, 8, 16)
GAP_NS = 10_000
SLO_NS = 3600 * NS_PER_S
"""No deadline is near: nothing is dropped."""

TURNS_MAX = 1000
"""The parent of policies that wait before they start a batch."""

KINDS = tuple([kind for kind in POLICIES if kind not in ("rtlm",)])
"""Policies that decide on plain models: a queue of these says nothing of what answers in steps cost."""


def measure_decisions(
    kinds: Sequence[str] = KINDS, clock_ns: Callable[[], int] = time.thread_time_ns
) -> Dict[str, Dict[int, int]]:
    """Policy -> requests open -> nanoseconds per request. About a third of a second a policy."""
    found: Dict[str, Dict[int, int]] = {}
    for kind in kinds:
        found[kind] = {}
        for count in OPEN:
            queue = _Queue(kind, count)
            found[kind][count] = sorted(queue.request_ns(REQUESTS, clock_ns) for _ in range(ROUNDS))[ROUNDS // 2]
    return found


class _Queue:
    """A scheduler whose lane runs a batch, and behind it so many requests wait."""

    def __init__(self, kind: str, count: int) -> None:
        self._draw = random.Random(f"{kind}/decisions")
        times = {str(size): f"{2 + size}ms" for size in SIZES}
        self._scheduler = build_scheduler(
            parse_config(
                {
                    "server": {"pending_max": 1_000_000},
                    "model": {"m": {"engine": "synthetic", "batch": list(SIZES), "expected": times}},
                    "policy": {"p": {"kind": kind}},
                    "app": {"a": {"model": "m", "slo": "1h", "pending_max": 1_000_000}},
                }
            )
        )
        self._now_ns = 0
        self._arrived = 0
        self._running = self._launched(self._scheduler.step(0, self._arrivals(count + SIZES[-1])))

    def request_ns(self, requests: int, clock_ns: Callable[[], int]) -> int:
        """Processor time per request, over at least so many. As many come as are in the batch, each in its own step."""
        arrivals, done = self._arrivals(requests + SIZES[-1]), 0
        begun_ns = clock_ns()
        while done < requests:
            for event in arrivals[done : done + len(self._running.jobs)]:
                self._now_ns += GAP_NS
                self._scheduler.step(self._now_ns, (event,))
            done += len(self._running.jobs)
            self._end()
        return (clock_ns() - begun_ns) // done

    def _end(self) -> None:
        started_ns, self._now_ns = self._now_ns, self._now_ns + self._running.expected_ns
        results = tuple([JobResult(job) for job in self._running.jobs])
        ended = WorkFinished(self._running.work_id, started_ns, self._now_ns, results)
        self._running = self._launched(self._scheduler.step(self._now_ns, (ended,)))

    def _launched(self, actions: Sequence[Any]) -> RunBatch:
        for _ in range(TURNS_MAX):
            wakes_ns = self._scheduler.wake_ns
            batch = next((action for action in actions if isinstance(action, RunBatch)), None)
            if batch is not None:
                return batch
            self._now_ns = max(self._now_ns, wakes_ns or 0)
            actions = self._scheduler.step(self._now_ns, ())
        raise AssertionError(f"no batch starts within {TURNS_MAX} wake-ups")

    def _arrivals(self, count: int) -> List[RequestArrived]:
        first, self._arrived = self._arrived, self._arrived + count
        return [
            RequestArrived(Request(index, "a", 0, int((0.5 + self._draw.random()) * SLO_NS)))
            for index in range(first, first + count)
        ]
