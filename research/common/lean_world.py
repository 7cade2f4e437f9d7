"""A lean world for the loop: fixed times, lanes that come and go, and who used how much lane time.

It drives the real scheduler through :func:`edgeserve.loop.drive.drive`, as ``edgeserve.sim`` does, without that
simulator's noise, faults, memory and reference model: an experiment is some hundred thousand requests on 64 lanes, or
ten thousand runs. Tests hold the two against each other (``tests/research/test_replicate_orloj.py``,
``test_replicate_pard.py``).
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from typing import Any, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from edgeserve.config.loading import parse_config
from edgeserve.loop.drive import drive
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import FinishRequest, Outcome, RunBatch
from edgeserve.sched.protocol.events import (
    Event,
    JobId,
    JobResult,
    LaneChanged,
    Request,
    RequestArrived,
    WorkFinished,
    WorkRefused,
)


class Lost(NamedTuple):
    """Requests that were not answered in time, and the lane time spent on them, in percent; the late answers."""

    drop: float
    invalid: float
    late: int


class LeanWorld:
    """Arrivals of one app, in order; ``changes`` are (when, lane, up). A lane that is taken away ends its batch.
    ``costs_ns``: what a step takes, and each of its events. ``ends`` has the outcome of each request and when,
    ``reasons`` counts the unanswered ones, ``batches`` what ran."""

    plays_out = False  # whether works that no request waits for run to their end

    def __init__(
        self,
        app: str,
        slo_ns: int,
        arrivals_ns: Sequence[int],
        times_ns: Mapping[str, Mapping[int, int]],
        changes: Sequence[Tuple[int, str, bool]] = (),
        *,
        on_late: str = "drop",
        costs_ns: Tuple[int, int] = (0, 0),
    ) -> None:
        self.stopped = False
        self.spent_ns: Counter = Counter()  # request -> lane time
        self.ends: Dict[int, Tuple[str, int]] = {}
        self.reasons: Counter = Counter()
        self.batches = 0
        self.arrivals_ns = arrivals_ns
        self._app, self._slo_ns, self._times_ns = app, slo_ns, times_ns
        self._on_late = on_late
        self._costs_ns = costs_ns
        self._next = 0
        self._now_ns = 0
        self._acts_ns = 0  # when the actions of the present step take effect
        self._heap: List[Tuple[int, int, Any]] = []
        self._count = 0
        self._events: List[Event] = []
        self._waiting: Dict[str, Deque[RunBatch]] = {}
        self._busy: Dict[str, bool] = {}
        self._leaving: Dict[str, bool] = {}
        for at_ns, lane, up in changes:
            self._push(at_ns, (lane, up))

    def request_of(self, request_id: int, at_ns: int) -> Request:
        """A request that comes at ``at_ns``; they count from 1."""
        return Request(
            request_id,
            self._app,
            at_ns,
            at_ns + self._slo_ns,
            on_late=self._on_late,
            hints=self.hints_of(request_id),
        )

    def hints_of(self, request_id: int) -> Optional[Mapping[str, float]]:
        """The hints that a request declares: none here."""

    def takes_ns(self, action: RunBatch) -> int:
        """The time of a batch; a world whose requests differ says more."""
        return self._times_ns[action.model][action.size]

    def result_of(self, job: JobId) -> JobResult:
        """The result of a job; overridden by a world whose graphs fan out or choose."""
        return JobResult(job)

    def is_in_time(self, request_id: int) -> bool:
        """True if a request was answered by its deadline."""
        outcome, end_ns = self.ends[request_id]
        return outcome == Outcome.COMPLETED and end_ns <= self.arrivals_ns[request_id - 1] + self._slo_ns

    def lost(self) -> Lost:
        """The percentage that was lost, when all requests have ended."""
        lost = [request_id for request_id in range(1, len(self.arrivals_ns) + 1) if not self.is_in_time(request_id)]
        wasted_ns = sum([self.spent_ns[request_id] for request_id in lost])
        return Lost(
            100 * len(lost) / len(self.arrivals_ns),
            100 * wasted_ns / max(1, sum(self.spent_ns.values())),
            sum([self.ends[request_id][0] == Outcome.COMPLETED for request_id in lost]),
        )

    def _push(self, at_ns: int, what: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_ns, self._count, what))

    def wait(self, until_ns: Optional[int]) -> Tuple[int, List[Event]]:
        """To the next arrival, end of a batch, change or alarm; never before the last step's thinking was over."""
        ready_ns = self._acts_ns
        while True:
            self._happen(ready_ns)
            if self._events:
                break
            has_ended = self._next == len(self.ends) == len(self.arrivals_ns)
            times = [
                item for item in (self._arrival_ns(), self._heap[0][0] if self._heap else None) if item is not None
            ]
            if has_ended and not (self.plays_out and times) or not times and until_ns is None:
                self.stopped = True
                break
            if until_ns is not None and until_ns <= ready_ns:
                break
            ready_ns = min(times + [until_ns] * (until_ns is not None))
        self._now_ns = ready_ns
        events, self._events = self._events, []
        self._acts_ns = ready_ns + self._costs_ns[0] + self._costs_ns[1] * len(events)
        return ready_ns, events

    def perform(self, action: Any) -> None:
        """Run a batch, or note an end; every input is kept for probes as long as the run lasts."""
        if isinstance(action, RunBatch):
            if self._acts_ns > self._now_ns:
                self._push(self._acts_ns, action)
            else:
                self._deliver(action)
        elif isinstance(action, FinishRequest):
            self.ends[action.request_id] = (action.outcome, self._acts_ns)
            if action.outcome != Outcome.COMPLETED:
                self.reasons[action.reason] += 1

    def _arrival_ns(self) -> Optional[int]:
        return self.arrivals_ns[self._next] if self._next < len(self.arrivals_ns) else None

    def _happen(self, until_ns: int) -> None:
        """All that happens until then, in order of time; at one time arrivals come last."""
        while True:
            arrival_ns = self._arrival_ns()
            if self._heap and self._heap[0][0] <= (until_ns if arrival_ns is None else min(until_ns, arrival_ns)):
                self._now_ns, _, what = heapq.heappop(self._heap)
                if isinstance(what, RunBatch):
                    self._deliver(what)
                elif isinstance(what, WorkFinished):
                    self._events.append(what)
                elif len(what) == 1:
                    self._freed(what[0])
                else:
                    self._change(what[0], what[1])
            elif arrival_ns is not None and arrival_ns <= until_ns:
                self._now_ns = arrival_ns
                self._next += 1
                self._events.append(RequestArrived(self.request_of(self._next, arrival_ns)))
            else:
                return

    def _deliver(self, action: RunBatch) -> None:
        self._waiting.setdefault(action.lane, deque()).append(action)
        self._advance(action.lane)

    def _advance(self, lane: str) -> None:
        """Start the next work of a lane that is free, or refuse it where it is too late for it."""
        waiting = self._waiting.get(lane, ())
        while waiting and not self._busy.get(lane, False):
            action = waiting.popleft()
            if self._now_ns > action.start_before_ns:
                self._events.append(WorkRefused(action.work_id, "the start window has passed"))
                continue
            time_ns = self.takes_ns(action)
            for job in action.jobs:
                self.spent_ns[job.request_id] += time_ns // len(action.jobs)
            self._busy[lane] = True
            self.batches += 1
            ends_ns = self._now_ns + time_ns
            results = tuple([self.result_of(job) for job in action.jobs])
            self._push(ends_ns, WorkFinished(action.work_id, self._now_ns, ends_ns, results))
            self._push(ends_ns, (lane,))

    def _freed(self, lane: str) -> None:
        self._busy[lane] = False
        if self._leaving.pop(lane, False):
            self._events.append(LaneChanged(lane, up=False))
        self._advance(lane)

    def _change(self, lane: str, up: bool) -> None:
        leaving = self._leaving.pop(lane, False)
        if up and not leaving:
            self._events.append(LaneChanged(lane, up=True))
        elif not up and self._busy.get(lane, False):
            self._leaving[lane] = True
        elif not up:
            self._events.append(LaneChanged(lane, up=False))


W = TypeVar("W", bound=LeanWorld)


def served(table: Dict[str, Any], arrivals_ns: Sequence[int], kind: Type[W], **more: Any) -> Tuple[W, Any]:
    """The world in which the configuration of one app has served the arrivals, and its scheduler. ``more`` is what this
    kind of world is made with."""
    config = parse_config(table)
    app = next(iter(config.apps.values()))
    times_ns = {name: model.expected for name, model in config.models.items()}
    world = kind(app.name, app.slo_ns, arrivals_ns, times_ns, on_late=app.on_late, **more)
    scheduler = build_scheduler(config)
    drive(scheduler, world)
    return world, scheduler
