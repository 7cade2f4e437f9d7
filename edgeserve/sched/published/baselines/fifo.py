"""First in, first out: the baseline that batches greedily and looks at no deadline.

The oldest ready job chooses the model; as many of its jobs as the largest batch holds go with it. Nothing is refused
and nothing dropped early: a request ends late, or when its deadline has passed while it waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, List, Sequence, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.bidding import bid_for
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Options, Policy
from edgeserve.sched.published.baselines.arrival_order import InOrder
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane, Work


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class FifoOptions(PolicyOptions):
    """Options of ``fifo``."""

    batch_max: int = option(0, "the largest batch; 0: the largest profiled size, 1: no batching", low=0)


@mypyc_attr(allow_interpreted_subclasses=True)
class Fifo(Policy):
    """The oldest job chooses the model; others of that model go with it.

    ``batch_max`` is the fixed batch size of servers that do not adapt one: a bound chosen by hand. An idle lane runs
    what is there and never waits for the batch to fill.
    """

    options_type: ClassVar[Type[PolicyOptions]] = FifoOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, FifoOptions)
        self._batch_max = own.batch_max
        self._waiting = InOrder()

    def on_ready(self, job: Job, board: Board) -> None:
        self._waiting.add(job)

    def on_gone(self, job: Job, board: Board) -> None:
        self._waiting.remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        self._waiting.started(work)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        model = self._waiting.oldest(lane, board)
        if model is None:
            return None
        latency = board.latency(model, lane.name)
        jobs = self._waiting.first(model, lane, min(latency.size_max, self._batch_max or latency.size_max), board)
        size = latency.size_for[len(jobs)]
        return bid_for(jobs, size, latency.estimate_ns[size], board)

    def queued(self) -> List[Job]:
        return list(self._waiting)
