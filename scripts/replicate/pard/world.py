"""A lean world for many-lane experiments: fixed times, lanes that come and go, and who used how much lane time.

It drives the real scheduler through :func:`edgeserve.sched.core.loop.drive`, as ``edgeserve.sim`` does, without that
simulator's noise, faults and reference model: a PARD experiment is some hundred thousand requests on 64 lanes. A test
holds the two against each other (``tests/unit/scripts/test_replicate_pard.py``)."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.loading import parse_config
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.core.loop import drive
from edgeserve.sched.protocol.actions import FinishRequest, RunBatch
from edgeserve.sched.protocol.events import (
    Event,
    JobId,
    JobResult,
    LaneChanged,
    Request,
    RequestArrived,
    WorkFinished,
)


class Outcome(NamedTuple):
    """What became of the requests of a run."""

    offered: int
    good: int
    late: int
    drop: float  # dropped or late, of all
    invalid: float  # lane time spent on these, of all lane time spent
    by_module: Dict[str, int]  # requests that were dropped or expired before this module
    by_second: Dict[int, Tuple[int, int]]  # second of arrival -> (offered, good)


class LeanWorld:
    """Arrivals of one app, in order; ``changes`` are (when, lane, up). A lane that is told to go ends its batch."""

    def __init__(
        self,
        app: str,
        slo_ns: int,
        arrivals_ns: Sequence[int],
        times_ns: Mapping[str, Mapping[int, int]],
        changes: Sequence[Tuple[int, str, bool]] = (),
        *,
        on_late: str = "drop",
    ) -> None:
        self.stopped = False
        self.spent_ns: Counter = Counter()  # request -> lane time
        self.ends: Dict[int, Tuple[str, int]] = {}
        self.arrivals_ns = arrivals_ns
        self._app, self._slo_ns, self._times_ns = app, slo_ns, times_ns
        self._on_late = on_late
        self._next = 0
        self._now_ns = 0
        self._heap: List[Tuple[int, int, Any]] = []
        self._count = 0
        self._busy: Dict[str, bool] = {}
        self._leaving: Dict[str, bool] = {}
        for at_ns, lane, up in changes:
            self._push(at_ns, (lane, up))

    def hints_of(self, request_id: int) -> Optional[Mapping[str, float]]:
        """What a request (they count from 1) declares: nothing here."""

    def takes_ns(self, action: RunBatch) -> int:
        """How long a batch takes; a world whose requests differ says more."""
        return self._times_ns[action.model][action.size]

    def result_of(self, job: JobId) -> JobResult:
        """What a job returns; a world whose graphs fan out or choose says more."""
        return JobResult(job)

    def _push(self, at_ns: int, what: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_ns, self._count, what))

    def wait(self, until_ns: Optional[int]) -> Tuple[int, List[Event]]:
        """To the next arrival, end of a batch, change or alarm."""
        arrival_ns = self.arrivals_ns[self._next] if self._next < len(self.arrivals_ns) else None
        times = [item for item in (arrival_ns, self._heap[0][0] if self._heap else None, until_ns) if item is not None]
        events: List[Event] = []
        if arrival_ns is None and len(self.ends) == len(self.arrivals_ns) or not times:
            self.stopped = True
            return self._now_ns, events
        now = self._now_ns = max(self._now_ns, min(times))
        while self._heap and self._heap[0][0] <= now:
            what = heapq.heappop(self._heap)[2]
            if isinstance(what, WorkFinished):
                events.append(what)
            elif len(what) == 1:
                self._freed(what[0], events)
            else:
                self._change(what[0], what[1], events)
        while self._next < len(self.arrivals_ns) and self.arrivals_ns[self._next] <= now:
            at_ns = self.arrivals_ns[self._next]
            self._next += 1
            events.append(
                RequestArrived(
                    Request(
                        self._next,
                        self._app,
                        at_ns,
                        at_ns + self._slo_ns,
                        on_late=self._on_late,
                        hints=self.hints_of(self._next),
                    )
                )
            )
        return now, events

    def perform(self, action: Any) -> None:
        """Run a batch, or note an end."""
        if isinstance(action, RunBatch):
            time_ns = self.takes_ns(action)
            for job in action.jobs:
                self.spent_ns[job.request_id] += time_ns // len(action.jobs)
            self._busy[action.lane] = True
            ends_ns = self._now_ns + time_ns
            self._push(
                ends_ns,
                WorkFinished(
                    action.work_id, self._now_ns, ends_ns, tuple([self.result_of(job) for job in action.jobs])
                ),
            )
            self._push(ends_ns, (action.lane,))
        elif isinstance(action, FinishRequest):
            self.ends[action.request_id] = (action.outcome, self._now_ns)

    def _freed(self, lane: str, events: List[Event]) -> None:
        self._busy[lane] = False
        if self._leaving.pop(lane, False):
            events.append(LaneChanged(lane, up=False))

    def _change(self, lane: str, up: bool, events: List[Event]) -> None:
        leaving = self._leaving.pop(lane, False)
        if up and not leaving:
            events.append(LaneChanged(lane, up=True))
        elif not up and self._busy.get(lane, False):
            self._leaving[lane] = True
        elif not up:
            events.append(LaneChanged(lane, up=False))


class WorkWorld(LeanWorld):
    """A batch takes ``a + c * (sum of its requests' work)`` ms, ``profiles`` has (a, c) by model. ``told`` is what the
    requests declare, if they do."""

    def __init__(
        self,
        app: str,
        slo_ns: int,
        arrivals_ns: Sequence[int],
        profiles: Mapping[str, Tuple[float, float]],
        works: Sequence[float],
        declared: Sequence[float],
    ) -> None:
        super().__init__(app, slo_ns, arrivals_ns, {})
        self._profiles, self._works, self._declared = profiles, works, declared

    def hints_of(self, request_id: int) -> Optional[Mapping[str, float]]:
        """The work at every module."""
        return {"work": self._declared[request_id - 1]} if self._declared else None

    def takes_ns(self, action: RunBatch) -> int:
        """As long as the requests' work."""
        fixed, each = self._profiles[action.model]
        return round((fixed + each * sum([self._works[job.request_id - 1] for job in action.jobs])) * 1e6)


def lognormal(draw: random.Random, variation: float) -> float:
    """Work of mean 1 with this coefficient of variation."""
    sigma = math.sqrt(math.log(1 + variation * variation))
    return draw.lognormvariate(-sigma * sigma / 2, sigma)


def run_case(
    table: Dict[str, Any], arrivals_ns: Sequence[int], changes: Sequence[Tuple[int, str, bool]] = (), warmup_ns: int = 0
) -> Outcome:
    """Serve the arrivals with the configuration of one app and one policy of kind ``pard`` or ``pard+``."""
    config = parse_config(table)
    scheduler = build_scheduler(config)
    app = next(iter(config.apps.values()))
    times_ns = {name: model.expected for name, model in config.models.items()}
    world = LeanWorld(app.name, app.slo_ns, arrivals_ns, times_ns, changes, on_late=app.on_late)
    drive(scheduler, world)
    policy: Any = scheduler.policies[0]
    good = late = offered = wasted_ns = 0
    seconds: Dict[int, List[int]] = {}
    for index, at_ns in enumerate(arrivals_ns, 1):
        outcome, end_ns = world.ends[index]
        row = seconds.setdefault(at_ns // 1_000_000_000, [0, 0])
        row[0] += 1
        in_time = outcome == "completed" and end_ns <= at_ns + app.slo_ns
        row[1] += in_time
        if not in_time:
            wasted_ns += world.spent_ns[index]
        if at_ns >= warmup_ns:
            offered += 1
            good += in_time
            late += outcome == "completed" and not in_time
    return Outcome(
        offered,
        good,
        late,
        1 - good / max(1, offered),
        wasted_ns / max(1, sum(world.spent_ns.values())),
        {model: policy.dropped[model] + policy.expired[model] for model in policy.dropped},
        {second: (row[0], row[1]) for second, row in seconds.items()},
    )


def lane_changes(lanes_up: Sequence[Mapping[str, int]], lanes_max: Mapping[str, int]) -> List[Tuple[int, str, bool]]:
    """The autoscaler's counts per second as changes of single lanes; the last ones come last and go first."""
    changes: List[Tuple[int, str, bool]] = []
    before = dict(lanes_max)  # all are up when the scheduler starts
    for second, counts in enumerate(lanes_up):
        for module, count in counts.items():
            for index in range(min(before[module], count), max(before[module], count)):
                changes.append((second * 1_000_000_000, f"{module}{index}", count > before[module]))
            before[module] = count
    return changes
