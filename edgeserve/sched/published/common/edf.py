"""Earliest deadline first where all are worth the same, with the batch that saves most.

Requests that cannot make their deadline are refused at arrival or dropped as soon as that is certain. The batch of each
model says ``policies/common/batches.py``; among several models a tentative schedule decides who starts
(``lane_schedule.py``). The policy never waits for a fuller batch (``sched/core/holds.py`` may, for every policy).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, List, Sequence, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.batches import Batches
from edgeserve.sched.policies.common.bidding import bid_for, refusal
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Options, Policy
from edgeserve.sched.published.common.lane_schedule import first_of
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class EdfOptions(PolicyOptions):
    """Options of ``edf``."""

    admit: bool = option(True, "refuse at arrival what no lane can finish in time")
    batch_max: int = option(0, "the largest batch; 0: the largest profiled size", low=0)


@mypyc_attr(allow_interpreted_subclasses=True)
class Edf(Policy):
    """The earliest deadline first, in the batch that saves most per lane time."""

    options_type: ClassVar[Type[PolicyOptions]] = EdfOptions
    lets_urgent_first: ClassVar[bool] = True

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, EdfOptions)
        self._admit = own.admit
        self._batches = Batches(self.apps, own.batch_max)

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        return refusal(request, board) if self._admit else None

    def on_ready(self, job: Job, board: Board) -> None:
        self._batches.models[job.node.model].add(job)

    def on_gone(self, job: Job, board: Board) -> None:
        self._batches.models[job.node.model].remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        self._batches.models[work.model].started(work.jobs)

    def plan(self, board: Board) -> None:
        for queues in self._batches.models.values():
            if queues.count:
                self._batches.drop_late(queues, board)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        bids: List[Bid] = []
        lost: List[int] = []
        at_ns = lane.available_ns(board.now_ns)
        for queues in self._batches.models.values():
            if queues.count and queues.model in lane.models and board.is_resident(queues.model, lane):
                latency = lane.models[queues.model]
                jobs = self._batches.best_jobs(queues, lane, latency, at_ns)
                if jobs:
                    size = latency.size_for[len(jobs)]
                    bids.append(bid_for(jobs, size, latency.likely_ns[size], board))
                    lost.append(queues.lost)
        if not bids:
            return None
        if len(bids) == 1:
            return bids[0]
        gap_ns = lane.dispatch_gap.careful_ns
        first = first_of(bids, lost, at_ns, gap_ns)
        if not board.passed_ns:
            return first
        return arbiter.overdue(bids, board.passed_ns, first, board.now_ns, at_ns + gap_ns)

    def holds(self, model: str) -> bool:
        """True if jobs of a model wait here."""
        return self._batches.models[model].count > 0

    def queued(self) -> List[Job]:
        return self._batches.queued()
