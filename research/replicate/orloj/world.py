"""One lane that meets a recorded trace, in the lean world (``research/common/lean_world.py``)."""

from __future__ import annotations

import random
from typing import Sequence

from common.lean_world import LeanWorld

from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import Request
from edgeserve.sim.truth import deviate
from edgeserve.units import ms_to_ns
from replicate.orloj.cases import FACT, Trace


class LaneWorld(LeanWorld):
    """Batches take as long as the trace's law says."""

    plays_out = True

    def __init__(
        self, trace: Trace, requests: Sequence[Request], draw: random.Random, step_cost_ns: int, event_cost_ns: int
    ) -> None:
        arrivals_ns = [request.arrival_ns for request in requests]
        super().__init__("", 0, arrivals_ns, {}, costs_ns=(step_cost_ns, event_cost_ns))
        self.requests = requests
        self._fixed_ns = trace.fixed_ns
        self._static_ns = {size: ms_to_ns(time_ms) for size, time_ms in trace.law.static_ms}
        self._noise = trace.law.noise
        self._draw = draw

    def in_time(self) -> int:
        """Answers by their deadline."""
        return sum(
            outcome == "completed" and end_ns <= self.requests[number - 1].deadline_ns
            for number, (outcome, end_ns) in self.ends.items()
        )

    def request_of(self, request_id: int, at_ns: int) -> Request:
        """As recorded."""
        return self.requests[request_id - 1]

    def takes_ns(self, action: RunBatch) -> int:
        """The law on the true lengths of the members, padded to the requested size."""
        if self._static_ns:
            return max(1, round(self._static_ns[action.size] * (1.0 + self._noise * deviate(self._draw))))
        longest = max([self.requests[job.request_id - 1].hints[FACT] for job in action.jobs])
        return round(self._fixed_ns + action.size * longest)
