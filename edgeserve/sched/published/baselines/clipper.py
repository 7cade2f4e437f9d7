"""Clipper: first in, first out, with a bound on the batch that follows the measured latency (NSDI 2017, section 4.3).

Per model and lane the largest batch grows by one after every batch that took no longer than the deadline allows (the
SLO, from arrival to deadline), and shrinks by a tenth after one that took longer: additive increase, multiplicative
decrease. The SLO is a long-run target: no deadline is looked at, nothing is refused and nothing dropped early. The
scheduler still ends a request whose deadline passes while it waits; give the apps ``on_late = "answer"`` for a server
that answers everything, as Clipper does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, List, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.bidding import bid_for
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Options, Policy
from edgeserve.sched.published.baselines.arrival_order import InOrder
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane, Work

KEEP = (9, 10)
"""A batch that took too long leaves so much of the bound: Clipper's back-off of 10 %."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class ClipperOptions(PolicyOptions):
    """Options of ``clipper``."""

    batch_max: int = option(0, "the bound never exceeds it; 0: the largest profiled size", low=0)


@mypyc_attr(allow_interpreted_subclasses=True)
class Clipper(Policy):
    """A bound on the batch per lane that grows while batches are in time and shrinks when one is not."""

    options_type: ClassVar[Type[PolicyOptions]] = ClipperOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, ClipperOptions)
        self._batch_max = own.batch_max
        self._waiting = InOrder()
        self._bounds: Dict[Tuple[str, str], int] = {}  # (model, lane) -> the largest batch now

    def on_ready(self, job: Job, board: Board) -> None:
        self._waiting.add(job)

    def on_gone(self, job: Job, board: Board) -> None:
        self._waiting.remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        self._waiting.started(work)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        """Move the bound: the tightest SLO of the batch's requests is what its duration must not exceed."""
        place = (work.model, work.lane.name)
        bound = self._bounds.get(place, 1)
        slo_ns = min([job.request.deadline_ns - job.request.arrival_ns for job in work.jobs])
        if finished_ns - started_ns <= slo_ns:
            size_max = board.latency(*place).size_max
            self._bounds[place] = min(bound + 1, size_max, self._batch_max or size_max)
        else:
            self._bounds[place] = max(1, bound * KEEP[0] // KEEP[1])

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        model = self._waiting.oldest(lane, board)
        if model is None:
            return None
        jobs = self._waiting.first(model, lane, self._bounds.get((model, lane.name), 1), board)
        latency = board.latency(model, lane.name)
        size = latency.size_for[len(jobs)]
        return bid_for(jobs, size, latency.estimate_ns[size], board)

    def queued(self) -> List[Job]:
        return list(self._waiting)
