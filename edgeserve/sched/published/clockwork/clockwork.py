"""Clockwork: predictable models, planned centrally, refused early (OSDI 2020; the sections are its own).

Appendix B as published. A request stands for one *strategy* per batch size k, to be started by ``deadline -
estimate(k)``. Strategies are looked at from the earliest required start; the first that is neither too big, nor too
small, nor too late becomes the next action. Per model that is the largest k that k requests can still finish in; across
models, the one whose first member must start first (:meth:`Clockwork.bid` says why the two are the same walk).
Requests that the batch overtook are dropped, as in the authors' implementation. Each action carries a start window;
a lane that misses it refuses, and those requests fail without a retry (section 4.2).

Estimates are the maximum of the last ten measurements (``sched/latency/batch_time.py``), unless ``estimate = "mean"``;
LOAD and EVICT by demand are ``sched/resources/model_cache.py``; planning ahead is the lane's ``ahead`` (paper: 5 ms).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, List, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policies.common.bidding import (
    bid_for,
    droppable,
    refusal,
    take,
)
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd, expected_end
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Options, Policy
from edgeserve.sched.published.common.background import must_yield
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import READY, Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import ms_to_ns

WINDOW_MISSED = "window_missed"
OVERTAKEN = "overtaken"

ESTIMATES = ("max", "mean")
"""The planned time of a batch of a size: as the slowest of the last ten, or as the profile's mean."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class ClockworkOptions(PolicyOptions):
    """Options of ``clockwork``."""

    window_ms: Number = option(
        10.0, "how late an action may start, ms; the paper says narrow, its implementation has 10"
    )
    margin_ms: Number = option(0.0, "plan for a deadline so much earlier, ms; 0 in the paper, 5 in its implementation")
    estimate: str = option(
        "max", "a batch takes as long as the slowest of the last ten, or as the profile's mean", one_of=ESTIMATES
    )
    refuse_early: bool = option(
        True, "end a request as soon as no batch can finish it by when the lane is expected to be free"
    )


@mypyc_attr(allow_interpreted_subclasses=True)
class Clockwork(Policy):
    """The largest batch that as many requests can still finish in, and a narrow window for its start.

    With the ``estimate`` "mean" and a narrow window a model whose time depends on its input fails every other batch:
    the behaviour that Orloj's authors report of Clockwork. Without ``refuse_early`` a request ends when a lane asks for
    work: the same where estimates are exact; where they are not, a lane that is free sooner still finds it. (One hiccup
    longer than the SLO makes the slowest of the last ten refuse everything: the core's trials measure anew.)"""

    options_type: ClassVar[Type[PolicyOptions]] = ClockworkOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, ClockworkOptions)
        self._window_ns = ms_to_ns(own.window_ms)
        self._margin_ns = ms_to_ns(own.margin_ms)
        self._refuse_early = own.refuse_early
        self._plans_by_mean = own.estimate == "mean"
        self._queues: Dict[str, JobQueue] = {}  # models with pending requests only: there may be thousands without

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        if not self._refuse_early:
            return None
        return refusal(request, board, self._alone_ns)

    def on_ready(self, job: Job, board: Board) -> None:
        queue = self._queues.get(job.node.model)
        if queue is None:
            queue = self._queues[job.node.model] = JobQueue()
        queue.add(job.deadline_ns - self._margin_ns, job)

    def on_gone(self, job: Job, board: Board) -> None:
        self._remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        for job in work.jobs:
            self._remove(job)

    def on_refused(self, work: Work, board: Board) -> None:
        """A rejected action is an error result: its requests fail, nothing is retried (section 4.2)."""
        for job in work.jobs:
            if not job.request.ended and droppable(job):
                board.drop(job.request, WINDOW_MISSED)

    def plan(self, board: Board) -> None:
        """A request none of whose strategies can complete any more is refused at once (Appendix B)."""
        for model in list(self._queues):
            queue = self._queues.get(model)
            if queue is None:
                continue
            if not self._refuse_early and not any(lane.accepts(board.now_ns) for lane in board.lanes_of(model)):
                continue
            ends_ns = board.earliest_end_ns(model, self._alone_ns)
            late = list(queue.rows[: queue.position(ends_ns)]) if ends_ns is not None else []
            for _, _, job in late:
                if job.state != READY or not droppable(job):  # another job of its request has taken it along
                    continue
                board.abandon_branch(job, CANNOT_MAKE_DEADLINE)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        """The first eligible strategy of the walk.

        Within a model, a strategy of size k is eligible when k requests can finish in a batch of k and no larger size
        has that (else it is too small); its required start is that of the first of them. So one candidate per model
        suffices, and the walk's first is the one of the smallest required start. O(models with requests * sizes).
        """
        starts_ns = lane.available_ns(board.now_ns)
        best: Tuple[int, str, int, int] | None = None  # (required start, model, size, position)
        for model, queue in self._queues.items():
            if model not in lane.models or not board.is_resident(model, lane):
                continue
            latency = board.latency(model, lane.name)
            if must_yield(queue, lane, board):
                continue
            for size in reversed(latency.sizes):
                if size > len(queue.rows):
                    continue
                took_ns = self._took_ns(latency, size)
                first = queue.position(starts_ns + took_ns)
                if len(queue.rows) - first >= size:
                    candidate = (queue.rows[first][0] - took_ns, model, size, first)
                    if best is None or candidate < best:
                        best = candidate
                    break
        if best is None:
            return self._late(lane, board)
        _, model, size, first = best
        queue = self._queues[model]
        jobs = take(queue, lane, first, size)
        overtaken = [(job.request, OVERTAKEN) for job in queue.slice(0, first) if droppable(job)]
        return self._bid(jobs, lane, board, overtaken) if jobs else None

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        return expected_end(request, job, board, self._alone_ns, self._margin_ns)

    def queued(self) -> List[Job]:
        return [job for queue in self._queues.values() for job in queue]

    def _late(self, lane: Lane, board: Board) -> Bid | None:
        """Ours: requests that are answered late anyway run when nothing else can, oldest deadline first."""
        heads = [
            (queue.rows[0][0], model)
            for model, queue in self._queues.items()
            if model in lane.models and board.is_resident(model, lane) and not droppable(queue.rows[0][2])
        ]
        if not heads:
            return None
        jobs = take(self._queues[min(heads)[1]], lane, 0, 1)
        return self._bid(jobs, lane, board, ()) if jobs else None

    def _bid(self, jobs: List[Job], lane: Lane, board: Board, drops: Sequence[Tuple[RequestRecord, str]]) -> Bid:
        latency = board.latency(jobs[0].node.model, lane.name)
        size = latency.size_for[len(jobs)]
        before_ns = lane.available_ns(board.now_ns) + self._window_ns
        staying = {job.request.id for job in jobs}
        return bid_for(
            jobs,
            size,
            self._took_ns(latency, size),
            board,
            start_before_ns=before_ns,
            drops=[row for row in drops if row[0].id not in staying],
        )

    def _took_ns(self, latency: BatchTime, size: int) -> int:
        return latency.profiled_ns[size] if self._plans_by_mean else latency.estimate_ns[size]

    def _alone_ns(self, latency: BatchTime) -> int:
        return self._took_ns(latency, latency.sizes[0])

    def _remove(self, job: Job) -> None:
        queue = self._queues[job.node.model]
        queue.remove(job)
        if not queue.rows:
            del self._queues[job.node.model]
