"""The ends of requests: their answers are sent when all lanes have their works, since lanes run meanwhile.

Counts what ended and learns what an answer takes beside its lane. Belongs to the loop's thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Optional

from edgeserve.config.limits import SLO_MS_MAX
from edgeserve.live.errors import LOST_WRITTEN, ended_early, refusal
from edgeserve.live.loop_io import clock_ns
from edgeserve.live.request import LiveRequest
from edgeserve.live.running_batches import RunningBatches
from edgeserve.live.stats import AppCounts
from edgeserve.live.values import RequestValues
from edgeserve.loop.response_overhead import ResponseOverhead
from edgeserve.sched.protocol.actions import FinishRequest, LatencyBreakdown, Outcome, Shortfall
from edgeserve.units import ms_to_ns


class Endings:
    """``waiting``: ends that the scheduler decided and that were not sent yet. ``overhead_from_ns``: when the last
    answer would have been ready if handing over to the lane, and back, took no time. ``counts`` are by app."""

    def __init__(self, values: RequestValues, batches: RunningBatches, counts: Dict[str, AppCounts]) -> None:
        self.waiting: List[FinishRequest] = []
        self.overhead = ResponseOverhead()
        self.overhead_from_ns = clock_ns()
        self.counts = counts
        self._values = values
        self._batches = batches

    def tell(self) -> int:
        """Notify all waiting callers and return their number."""
        ending, self.waiting[:] = list(self.waiting), ()
        values, has_answered = self._values, False
        for action in ending:
            request = values.requests[action.request_id]
            if action.outcome == Outcome.COMPLETED:
                self._answer(request, action)
                has_answered = True
            else:
                self._refuse(request, action)
            values.end(request)
        if has_answered:
            self.overhead.took(clock_ns() - self.overhead_from_ns)
        return len(ending)

    def _answer(self, request: LiveRequest, action: FinishRequest) -> None:
        breakdown = action.breakdown
        if request.predicted_ns:
            breakdown = LatencyBreakdown(breakdown.queue_ns + request.predicted_ns, *breakdown[1:])
        if action.cut and "" in request.written:
            self._refuse(request, replace(action, outcome=Outcome.FAILED, reason=LOST_WRITTEN))
            return
        outputs = (request.outputs or {}) if request.plan.plain_exit else self._values.outputs(request)
        now_ns = clock_ns()
        total_ns, late = now_ns - request.asked_ns, now_ns > request.deadline_ns or bool(action.cut)
        reason = action.reason if not action.cut else ended_early(action.reason, action.cut, request.written)
        counts = self.counts[request.app]
        counts.completed(now_ns - request.arrival_ns, late, breakdown)
        if not request.plan.has_joins and not action.variant:
            request.responder.answer(request, outputs, reason, late, now_ns, total_ns, breakdown)
            return
        branches = self._values.branches(request)
        quality = action.quality if action.branches or action.variant else None
        if quality is not None:
            counts.rated(quality, len(branches), action.variant)
        request.responder.answer(
            request, outputs, reason, late, now_ns, total_ns, breakdown, quality, branches, action.variant
        )

    def _refuse(self, request: LiveRequest, action: FinishRequest) -> None:
        if request.running and self._batches.by_id:
            self._batches.drop(request.id)
        if action.outcome == Outcome.FAILED:  # what its lanes still return leaves no state
            request.refusal = action.reason or action.outcome
        self.counts[request.app].ended(action.outcome, action.reason)
        shortfall = self._as_asked(action.shortfall)
        request.responder.refuse(request, refusal(request.app, action.outcome, action.reason, request.id, shortfall))

    def _as_asked(self, shortfall: Optional[Shortfall]) -> Optional[Shortfall]:
        """The shortfall with the smallest deadline as a client counts it, until the answer's arrival; that is None
        where no request may ask for so much."""
        if shortfall is None or shortfall.slo_ns_min is None:
            return shortfall
        slo_ns = self.overhead.slo_ns(shortfall.slo_ns_min)
        return shortfall._replace(slo_ns_min=slo_ns if slo_ns <= ms_to_ns(SLO_MS_MAX) else None)
