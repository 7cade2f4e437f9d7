"""``edf`` as it was before it became the plan of a lane: what changes of ``edf`` are measured against
(``regret.py --policies edf,edf_before``). Nobody serves by it, and nothing is mended here. Importing this module adds
the kind ``edf_before``.

It knows no value inside one model, compares batches together with the one that could follow, and leaves the choice
between models to the auction's rule.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Deque, Dict, List, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.lane_gaps import DispatchGap
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.common.bidding import (
    bid_for,
    droppable,
    look_at_bound,
    postpone,
    refusal,
    take,
)
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Options, Policy
from edgeserve.sched.protocol.events import CLASSES
from edgeserve.sched.published.common.orders import choose
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work

KIND = "edf_before"

ALMOST = 0.98
"""What two batches save is compared to this precision: where times rise evenly all splits are equal but for the noise
of the estimates, and the fuller first batch is then the better one."""

STARTS_LEN = 8
"""Batches of a model over which the rate of its arrivals is taken."""


class ModelQueues:
    """The ready jobs of one model, two queues per class, each in deadline order.

    Iterative jobs that have ``begun`` (their state occupies memory, their steps are spent) stand before those of their
    class that are ``fresh``: otherwise they would take turns, and all would end late. ``queues`` is in serving order,
    ``count`` the number of jobs in all of them. ``arrived`` counts the fresh jobs of no stream so far (of a stream one
    job may run at a time: its rate says nothing); ``starts`` has that count and the time at the last batches' starts.
    """

    __slots__ = ("model", "count", "queues", "begun", "fresh", "arrived", "starts")

    def __init__(self, model: str) -> None:
        self.model = model
        self.count = 0
        self.arrived = 0
        self.starts: Deque[Tuple[int, int]] = deque(maxlen=STARTS_LEN)
        self.begun = {klass: JobQueue() for klass in CLASSES}
        self.fresh = {klass: JobQueue() for klass in CLASSES}
        self.queues = tuple([queue for klass in CLASSES for queue in (self.begun[klass], self.fresh[klass])])

    def add(self, job: Job) -> None:
        """A job is ready."""
        self.count += 1
        if not job.steps and (job.part or job.request.stream is None):  # parts of one request stand beside each other
            self.arrived += 1
        (self.begun if job.steps else self.fresh)[job.request.klass].add(job.deadline_ns, job)

    def remove(self, job: Job) -> None:
        """A job was launched or has left."""
        self.count -= 1
        (self.begun if job.steps else self.fresh)[job.request.klass].remove(job)

    def rate(self, now_ns: int) -> float:
        """Arrivals of no stream per nanosecond since the first of the last batches' starts."""
        if not self.starts or now_ns <= self.starts[0][0]:
            return 0.0
        return (self.arrived - self.starts[0][1]) / (now_ns - self.starts[0][0])

    def critical(self) -> List[JobQueue]:
        """The queues of critical jobs that hold something."""
        return [queue for queue in self.queues[:2] if queue.rows]


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class EdfBeforeOptions(PolicyOptions):
    """Options of ``edf_before``."""

    admit: bool = option(True, "refuse at arrival what no lane can finish in time")
    batch_max: int = option(0, "the largest batch; 0: the largest profiled size", low=0)


@mypyc_attr(allow_interpreted_subclasses=True)
class EdfBefore(Policy):
    """The earliest deadline first, in the batch that saves most per lane time."""

    options_type: ClassVar[Type[PolicyOptions]] = EdfBeforeOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, EdfBeforeOptions)
        self._admit = own.admit
        self._batch_max = own.batch_max or 2**31
        self._models: Dict[str, ModelQueues] = {
            node.model: ModelQueues(node.model) for app in self.apps for node in app.nodes
        }

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        return refusal(request, board) if self._admit else None

    def on_ready(self, job: Job, board: Board) -> None:
        self._models[job.node.model].add(job)

    def on_gone(self, job: Job, board: Board) -> None:
        self._models[job.node.model].remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        queues = self._models[work.model]
        queues.starts.append((board.now_ns, queues.arrived))
        for job in work.jobs:
            queues.remove(job)

    def plan(self, board: Board) -> None:
        """Drop what can no longer be in time; what is answered late anyway gets one more SLO to be worth something."""
        for queues in self._models.values():
            if not queues.count:
                continue
            ends_ns = board.earliest_end_ns(queues.model)
            for queue in [queue for queue in queues.queues if queue.rows]:
                rows = queue.rows
                while ends_ns is not None and rows and rows[0][0] < ends_ns:
                    job = rows[0][2]
                    if droppable(job):
                        board.abandon_branch(job, CANNOT_MAKE_DEADLINE)
                    else:
                        postpone(queue, job, ends_ns)
            for queue in queues.begun.values():
                if queue.rows:
                    look_at_bound(queue, board.ends_by_lane(queues.model), board)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        bids = []
        for queues in self._models.values():
            if queues.count and queues.model in lane.models and board.is_resident(queues.model, lane):
                bid = self._best_batch(queues, lane, board)
                if bid is not None:
                    bids.append(bid)
        if not bids:
            return None
        if len(bids) == 1:
            return bids[0]
        return choose(bids, lane.available_ns(board.now_ns), lane.dispatch_gap.careful_ns)

    def holds(self, model: str) -> bool:
        """Whether jobs of a model wait here."""
        return self._models[model].count > 0

    def queued(self) -> List[Job]:
        return [job for queues in self._models.values() for queue in queues.queues for job in queue]

    def _best_batch(self, queues: ModelQueues, lane: Lane, board: Board) -> Bid | None:
        """The size that loses fewest critical jobs, and of those the one that saves most per lane time, together with
        the best batch of what would be left after it or have arrived meanwhile. O(sizes * (sizes + log n)) per batch.

        Without the second batch, times that rise in steps mislead: 12 of 16 jobs in 13 ms look better than all 16 in
        20, but the other 4 take 8 more.
        """
        latency = board.latency(queues.model, lane.name)
        starts_ns = lane.available_ns(board.now_ns)
        if queues.count == 1:
            return _lone_bid(queues, starts_ns, latency, lane, board)
        filled = [queue for queue in queues.queues if queue.rows]
        # Between models the lane decides anew: then nobody knows that the next batch is one of this model.
        is_alone = len(lane.models) == 1
        rate = queues.rate(starts_ns) if is_alone else 0.0
        best_size = self._best_size(queues, filled, starts_ns, latency, lane.dispatch_gap, rate)
        if best_size is None:
            return None
        ends_ns = starts_ns + latency.likely_ns[best_size]
        jobs: List[Job] = []
        for queue in filled:
            if len(jobs) < best_size:
                jobs += take(queue, lane, queue.position(ends_ns), best_size - len(jobs))
        if not jobs:
            return None
        size = latency.size_for[len(jobs)]
        return bid_for(jobs, size, latency.likely_ns[size], board)

    def _best_size(
        self,
        queues: ModelQueues,
        filled: List[JobQueue],
        starts_ns: int,
        latency: BatchTime,
        dispatch_gap: DispatchGap,
        rate: float,
    ) -> int | None:
        critical = queues.critical()
        choices: List[Tuple[int, float, float, int]] = []  # critical jobs lost, saved by two batches, by one, size
        times_ns = [(size, latency.likely_ns[size]) for size in latency.sizes]
        first_ns = filled[0].rows[0][0]  # a batch that ends by then is in time for all
        for queue in filled:
            first_ns = min(first_ns, queue.rows[0][0])
        for size, took_ns in times_ns:
            if size > self._batch_max and size != latency.sizes[0]:
                break
            ends_ns = starts_ns + took_ns
            next_ns = ends_ns + dispatch_gap.likely_ns
            in_time = later = queues.count
            if next_ns + latency.alone_likely_ns > first_ns:
                in_time, later = _due_from(filled, ends_ns), _due_from(filled, next_ns + latency.alone_likely_ns)
            if in_time == 0:
                break
            lost = _critical_lost(critical, size, starts_ns, latency, dispatch_gap.careful_ns) if critical else 0
            count = min(size, in_time)
            left, coming = max(0, min(later, in_time - size)), round(rate * took_ns)
            saved = count / took_ns
            if left + coming > 0:
                saved = _saved_per_time(count, took_ns, filled, first_ns, left, coming, next_ns, times_ns)
            choices.append((lost, saved, count / took_ns, size))
            if in_time <= size:
                break  # a larger size would only hold padding
        return _choice(choices) if choices else None


def _lone_bid(queues: ModelQueues, starts_ns: int, latency: BatchTime, lane: Lane, board: Board) -> Bid | None:
    """The bid for the only job of a model: there is nothing to choose."""
    size = latency.sizes[0]
    took_ns = latency.likely_ns[size]
    for queue in queues.queues:
        if queue.rows:
            due_ns, _, job = queue.rows[0]
            if due_ns < starts_ns + took_ns or (job.lane and job.lane != lane.name):
                return None
            return bid_for((job,), size, took_ns, board)
    return None


def _choice(choices: List[Tuple[int, float, float, int]]) -> int:
    """Of the sizes that lose fewest critical jobs and, with the batch that follows, save most or almost so, the one
    that saves most by itself; the smaller of two that are equal."""
    fewest = min(choices)[0]
    enough = ALMOST * max([choice[1] for choice in choices if choice[0] == fewest])
    best_size, best_saved = 0, -1.0
    for lost, saved, alone, size in choices:  # sizes rise
        if lost == fewest and saved >= enough and alone > best_saved:
            best_size, best_saved = size, alone
    return best_size


def _saved_per_time(
    count: int,
    took_ns: int,
    filled: List[JobQueue],
    first_ns: int,
    left: int,
    coming: int,
    next_ns: int,
    times_ns: Sequence[Tuple[int, int]],
) -> float:
    """Jobs saved per nanosecond by a batch of ``count`` and the best one that could follow at ``next_ns``: of the
    ``left`` jobs, those that would be in time at its end, and those ``coming`` meanwhile. ``first_ns``: nobody is due
    earlier."""
    best = 0.0
    for size, then_ns in times_ns:
        follow = left + coming
        if next_ns + then_ns > first_ns:
            follow = min(left, _due_from(filled, next_ns + then_ns)) + coming
        saved = (count + (size if size < follow else follow)) / (took_ns + then_ns)
        if saved > best:
            best = saved
        if size >= follow:
            break  # a larger one takes longer, and saves no more
    return best


def _due_from(filled: List[JobQueue], ends_ns: int) -> int:
    """Jobs that are in time if they end at ``ends_ns``."""
    count = 0
    for queue in filled:
        count += len(queue.rows) - bisect_left(queue.rows, (ends_ns,))
    return count


def _critical_lost(
    critical: List[JobQueue], size: int, starts_ns: int, latency: BatchTime, dispatch_gap_ns: int
) -> int:
    """Critical jobs that a batch of ``size`` starting at ``starts_ns`` puts at risk: those that are due before it ends,
    should it be as slow as the slowest of the last ten, and those that find no place in it and could not be in time
    after it either."""
    ends_ns = starts_ns + latency.slowest_ns[size]
    too_late = sum([queue.position(ends_ns) for queue in critical])
    after_ns = ends_ns + dispatch_gap_ns + latency.slowest_ns[latency.sizes[0]]
    due_next = sum([queue.position(after_ns) for queue in critical]) - too_late
    return too_late + max(0, due_next - size)


POLICIES[KIND] = EdfBefore
