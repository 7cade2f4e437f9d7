"""One lane that meets a recorded trace: a world for the loop, for when ten thousand runs are needed.

It does what ``edgeserve/sim/world.py`` does for one lane, no faults and no memory, without the reference model that
checks every rule: that takes longer than the decisions that are measured here. That both worlds end every request
alike is held by ``tests/unit/scripts/test_replicate_orloj.py``.
"""

from __future__ import annotations

import random
from collections import deque
from heapq import heappop, heappush
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from edgeserve.sched.protocol.actions import Action, FinishRequest, Outcome, ReleaseInputs, RetainInputs, RunBatch
from edgeserve.sched.protocol.events import Event, JobResult, Request, RequestArrived, WorkFinished, WorkRefused
from edgeserve.sim.device import deviate
from edgeserve.units import ms_to_ns
from replicate.orloj.cases import FACT, Trace


class LaneWorld:
    """``in_time`` and ``late`` count answers, ``ended`` other ends by reason, ``batches`` what the lane ran."""

    def __init__(
        self, trace: Trace, requests: Sequence[Request], draw: random.Random, step_cost_ns: int, event_cost_ns: int
    ) -> None:
        self.stopped = False
        self.in_time = 0
        self.late = 0
        self.ended: Dict[str, int] = {}
        self.batches = 0
        self._requests = requests
        self._coming = iter(requests)
        self._open = 0
        self._now_ns = 0
        self._acts_ns = 0  # when the actions of the present step take effect
        self._costs_ns = (step_cost_ns, event_cost_ns)
        self._heap: List[Tuple[int, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._events: List[Event] = []
        self._inbox: Deque[RunBatch] = deque()
        self._running: Optional[RunBatch] = None
        self._fixed_ns = trace.fixed_ns
        self._static_ns = {size: ms_to_ns(time_ms) for size, time_ms in trace.law.static_ms}
        self._noise = trace.law.noise
        self._draw = draw
        self._next_arrival()

    def wait(self, until_ns: Optional[int]) -> Tuple[int, List[Event]]:
        """Let time pass until something is to be told, never before the last step's thinking was over."""
        ready_ns, heap = self._acts_ns, self._heap
        while True:
            while heap and heap[0][0] <= ready_ns:
                self._now_ns, _, what, argument = heappop(heap)
                what(argument)
            if self._events:
                break
            if not heap and not self._open:
                self.stopped = True
                break
            if until_ns is not None and until_ns <= ready_ns:
                break
            ready_ns = min([at_ns for at_ns in (heap[0][0] if heap else None, until_ns) if at_ns is not None])
        events, self._events = self._events, []
        self._acts_ns = ready_ns + self._costs_ns[0] + self._costs_ns[1] * len(events)
        return ready_ns, events

    def perform(self, action: Action) -> None:
        """Begin an action, when the step that decided it is over."""
        if isinstance(action, FinishRequest):
            self._open -= 1
            request = self._requests[action.request_id - 1]
            if action.outcome != Outcome.COMPLETED:
                self.ended[action.reason] = self.ended.get(action.reason, 0) + 1
            elif self._acts_ns <= request.deadline_ns:
                self.in_time += 1
            else:
                self.late += 1
        elif isinstance(action, RunBatch):
            self._at(self._acts_ns, self._deliver, action)
        else:  # every input is kept for probes as long as the run lasts
            assert isinstance(action, (RetainInputs, ReleaseInputs)), f"this world has no memory to manage: {action}"

    def _at(self, at_ns: int, what: Callable[[Any], None], argument: Any) -> None:
        self._sequence += 1
        heappush(self._heap, (at_ns, self._sequence, what, argument))

    def _next_arrival(self) -> None:
        request = next(self._coming, None)
        if request is not None:
            self._at(request.arrival_ns, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        self._open += 1
        self._events.append(RequestArrived(request))
        self._next_arrival()

    def _deliver(self, action: RunBatch) -> None:
        self._inbox.append(action)
        self._advance()

    def _advance(self) -> None:
        while self._running is None and self._inbox:
            action = self._inbox.popleft()
            if self._now_ns > action.start_before_ns:
                self._events.append(WorkRefused(action.work_id, "the start window has passed"))
            else:
                self._running = action
                self.batches += 1
                self._at(self._now_ns + self._duration_ns(action), self._finished, self._now_ns)

    def _duration_ns(self, action: RunBatch) -> int:
        """The law on the true lengths of the members, padded to the size that was asked for."""
        if self._static_ns:
            return max(1, round(self._static_ns[action.size] * (1.0 + self._noise * deviate(self._draw))))
        longest = max([self._requests[job.request_id - 1].hints[FACT] for job in action.jobs])
        return round(self._fixed_ns + action.size * longest)

    def _finished(self, started_ns: int) -> None:
        action, self._running = self._running, None
        assert action is not None
        results = tuple([JobResult(job) for job in action.jobs])
        self._events.append(WorkFinished(action.work_id, started_ns, self._now_ns, results))
        self._advance()
