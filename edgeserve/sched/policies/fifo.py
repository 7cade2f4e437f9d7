"""First in, first out: the baseline that batches greedily and looks at no deadline.

The oldest ready job chooses the model; as many of its jobs as the largest batch holds go with it. Nothing is refused
and nothing dropped early: a request ends late, or when its deadline has passed while it waits.
"""

from __future__ import annotations

from typing import ClassVar, List, Sequence

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.arrival_order import InOrder
from edgeserve.sched.policies.common.bidding import bid_for
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid, Options, Policy
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane, Work


@mypyc_attr(allow_interpreted_subclasses=True)
class Fifo(Policy):
    """Options: ``batch_max`` (0 = the model's largest profiled size).

    ``batch_max`` is the fixed batch size of servers that do not adapt one: a bound chosen by hand. An idle lane runs
    what is there and never waits for the batch to fill.
    """

    defaults: ClassVar[Options] = {"batch_max": 0}

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        self._batch_max = int(str(self.options["batch_max"]))
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
