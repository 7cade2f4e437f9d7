"""Nexus: first in, first out, with a batch size that was planned ahead from mean latencies (SOSP 2019, section 4.1).

The planned size is the largest whose profiled mean time fits twice into the SLO: a request that just missed a batch
waits for it to end and rides in the next. The plan is made of the profile once; what batches take later does not change
it. A lane that is free takes as many requests as the plan says, or fewer when fewer wait.

``early_drop``: when a lane is free, requests at the head of the queue that a batch of the planned size, started now,
would not finish in time are dropped, so that those behind them need not be late too. Without it nothing is given up;
the scheduler still ends a request whose deadline passes while it waits, unless its app says ``on_late = "answer"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, List, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policies.common.bidding import bid_for, droppable
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd, expected_end
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Options, Policy
from edgeserve.sched.published.baselines.arrival_order import InOrder
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work

FITS = 2
"""So many batches of the planned size fit into the SLO: the one a request has just missed, and its own."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class NexusOptions(PolicyOptions):
    """Options of ``nexus``."""

    early_drop: bool = option(
        True, "give up the head of the queue if a planned batch that starts now would be late for it"
    )
    batch_max: int = option(0, "the plan never exceeds it; 0: the largest profiled size", low=0)


@mypyc_attr(allow_interpreted_subclasses=True)
class Nexus(Policy):
    """The largest batch of which two fit into the SLO, in order of arrival."""

    options_type: ClassVar[Type[PolicyOptions]] = NexusOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, NexusOptions)
        self._early_drop = own.early_drop
        self._batch_max = own.batch_max
        self._waiting = InOrder()
        self._slo_ns: Dict[str, int] = {}  # model -> the tightest SLO of the apps that use it
        for app in self.apps:
            for node in app.nodes:
                self._slo_ns[node.model] = min(app.slo_ns, self._slo_ns.get(node.model, app.slo_ns))
        self._planned: Dict[Tuple[str, str], int] = {}  # (model, lane) -> the batch size, once it was asked for

    def on_ready(self, job: Job, board: Board) -> None:
        self._waiting.add(job)

    def on_gone(self, job: Job, board: Board) -> None:
        self._waiting.remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        self._waiting.started(work)

    def plan(self, board: Board) -> None:
        if not self._early_drop:
            return
        for model, queue in list(self._waiting.queues.items()):  # giving up may make other jobs ready
            ends_ns = board.earliest_end_ns(model, self._planned_ns, free_only=True) if queue.rows else None
            while ends_ns is not None and queue.rows:
                job = queue.rows[0][2]
                if job.deadline_ns >= ends_ns or not droppable(job):
                    break
                board.abandon_branch(job, CANNOT_MAKE_DEADLINE)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        model = self._waiting.oldest(lane, board)
        if model is None:
            return None
        latency = board.latency(model, lane.name)
        jobs = self._waiting.first(model, lane, self._planned_size(latency), board)
        size = latency.size_for[len(jobs)]
        return bid_for(jobs, size, latency.profiled_ns[size], board)

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        if job is None:  # nothing is refused at arrival
            return expected_end(request, job, board)
        return expected_end(request, job, board, self._planned_ns, free_only=True)

    def queued(self) -> List[Job]:
        return list(self._waiting)

    def _planned_size(self, latency: BatchTime) -> int:
        """The largest size whose mean time fits twice into the SLO, or 1."""
        place = (latency.model, latency.lane)
        if place not in self._planned:
            bound = min(latency.size_max, self._batch_max or latency.size_max)
            slo_ns = self._slo_ns[latency.model]
            self._planned[place] = max(
                [1]
                + [
                    count
                    for count in range(1, bound + 1)
                    if FITS * latency.profiled_ns[latency.size_for[count]] <= slo_ns
                ]
            )
        return self._planned[place]

    def _planned_ns(self, latency: BatchTime) -> int:
        """The mean time of a batch of the planned size."""
        return latency.profiled_ns[latency.size_for[self._planned_size(latency)]]
