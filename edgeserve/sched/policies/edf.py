"""Earliest deadline first, with the batch that saves most: the default policy.

Requests that cannot make their deadline are refused at arrival or dropped as soon as that is certain. For each batch
size, those jobs that would still be in time at its end are counted, in deadline order; the size that saves most per
lane time runs. (Cutting the batch to what its tightest member allows collapses under overload: the head never has
slack, so every batch shrinks, and the queue grows until nobody is in time.) Critical jobs go into the batch first, and
a size that loses fewer of them is preferred before anything else is compared. An idle lane never waits for a fuller
batch. Among several models, the auction's own rule decides (``sched/policy_api/arbiter.py``).
"""

from __future__ import annotations

from typing import ClassVar, Dict, List, Sequence, Tuple

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.latency.model import ModelLatency
from edgeserve.sched.policies.common.bidding import (
    CANNOT_MAKE_DEADLINE,
    bid_for,
    droppable,
    earliest_end_ns,
    ends_by_lane,
    look_at_bound,
    postpone,
    refusal,
    take,
)
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid, Options, Policy
from edgeserve.sched.protocol.events import CLASSES
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work

ALMOST = 0.98
"""What two batches save is compared to this precision: where times rise evenly all splits are equal but for the noise
of the estimates, and the fuller first batch is then the better one."""


class ModelQueues:
    """The ready jobs of one model, two queues per class, each in deadline order.

    Iterative jobs that have begun (their state occupies memory, their steps are spent) stand before those of their
    class that have not: otherwise they would take turns, and all would end late. ``queues`` is in serving order.
    """

    __slots__ = ("model", "queues", "begun", "_begun", "_fresh")

    def __init__(self, model: str) -> None:
        self.model = model
        self._begun = {klass: JobQueue() for klass in CLASSES}
        self._fresh = {klass: JobQueue() for klass in CLASSES}
        self.queues = tuple(queue for klass in CLASSES for queue in (self._begun[klass], self._fresh[klass]))
        self.begun = tuple(self._begun.values())  # a lane holds the state of these jobs

    def of(self, job: Job) -> JobQueue:
        """The queue that a job stands in or belongs to."""
        return (self._begun if job.steps else self._fresh)[job.request.klass]

    def filled(self) -> List[JobQueue]:
        """The queues that hold something, in serving order."""
        return [queue for queue in self.queues if queue.rows]

    @property
    def critical(self) -> Tuple[JobQueue, JobQueue]:
        """The two queues of critical jobs."""
        return self.queues[0], self.queues[1]


@mypyc_attr(allow_interpreted_subclasses=True)
class Edf(Policy):
    """Options: ``admit`` (refuse at arrival what no lane can make), ``batch_max`` (0 = the largest profiled size)."""

    defaults: ClassVar[Options] = {"admit": True, "batch_max": 0}

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        self._admit = bool(self.options["admit"])
        self._batch_max = int(str(self.options["batch_max"])) or 2**31
        self._models: Dict[str, ModelQueues] = {
            node.model: ModelQueues(node.model) for app in self.apps for node in app.nodes}

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        return refusal(request, board) if self._admit else None

    def on_ready(self, job: Job, board: Board) -> None:
        self._models[job.node.model].of(job).add(job.deadline_ns, job)

    def on_gone(self, job: Job, board: Board) -> None:
        self._models[job.node.model].of(job).remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        queues = self._models[work.model]
        for job in work.jobs:
            queues.of(job).remove(job)

    def plan(self, board: Board) -> None:
        """Drop what can no longer be in time; what is answered late anyway gets one more SLO to be worth something."""
        for queues in self._models.values():
            filled = queues.filled()
            ends_ns = earliest_end_ns(queues.model, board) if filled else None
            for queue in filled:
                rows = queue.rows
                while ends_ns is not None and rows and rows[0][0] < ends_ns:
                    job = rows[0][2]
                    if droppable(job):
                        board.abandon_branch(job, CANNOT_MAKE_DEADLINE)
                    else:
                        postpone(queue, job, ends_ns)
            for queue in queues.begun:
                if queue.rows:
                    look_at_bound(queue, ends_by_lane(queues.model, board), board)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        bids = []
        for queues in self._models.values():
            filled = queues.filled()
            if filled and queues.model in lane.models and board.is_resident(queues.model, lane):
                bid = self._best_batch(queues, filled, lane, board)
                if bid is not None:
                    bids.append(bid)
        if not bids:
            return None
        return bids[0] if len(bids) == 1 else arbiter.choose(bids, lane.available_ns(board.now_ns))

    def queued(self) -> List[Job]:
        return [job for queues in self._models.values() for queue in queues.queues for job in queue]

    def _best_batch(self, queues: ModelQueues, filled: List[JobQueue], lane: Lane, board: Board) -> Bid | None:
        """The size that loses fewest critical jobs, and of those the one that saves most per lane time, together with
        the best batch of what would be left after it. O(sizes * (sizes + log n)) per batch.

        Without the second batch, times that rise in steps mislead: 12 of 16 jobs in 13 ms look better than all 16 in
        20, but the other 4 take 8 more.
        """
        latency = board.latency(queues.model, lane.name)
        starts_ns = lane.available_ns(board.now_ns)
        critical = [queue for queue in queues.critical if queue.rows]
        choices: List[Tuple[int, float, float, int]] = []  # critical jobs lost, saved by two batches, by one, size
        times_ns = [(size, latency.likely_ns[size]) for size in latency.sizes]  # asked once, not for every pair
        for size, took_ns in times_ns:
            if size > self._batch_max and size != latency.sizes[0]:
                break
            ends_ns = starts_ns + took_ns
            in_time = sum([len(queue.rows) - queue.position(ends_ns) for queue in filled])
            if in_time == 0:
                break
            lost = _critical_lost(critical, size, starts_ns, latency) if critical else 0
            later = sum([len(queue.rows) - queue.position(ends_ns + latency.alone_likely_ns) for queue in filled])
            left = min(later, in_time - size)
            count = min(size, in_time)
            choices.append((lost, _saved_per_time(count, took_ns, left, times_ns), count / took_ns, size))
            if in_time <= size:
                break  # a larger size would only hold padding
        if not choices:
            return None
        best_size = _choice(choices)
        ends_ns = starts_ns + latency.likely_ns[best_size]
        jobs: List[Job] = []
        for queue in filled:
            if len(jobs) < best_size:
                jobs += take(queue, lane, queue.position(ends_ns), best_size - len(jobs))
        if not jobs:
            return None
        size = latency.size_for[len(jobs)]
        return bid_for(jobs, size, latency.likely_ns[size], board)


def _choice(choices: List[Tuple[int, float, float, int]]) -> int:
    """Of the sizes that lose fewest critical jobs and, with the batch that follows, save most or almost so, the one
    that saves most by itself; the smaller of two that are equal."""
    fewest = min([choice[0] for choice in choices])
    enough = ALMOST * max([choice[1] for choice in choices if choice[0] == fewest])
    return max([choice for choice in choices if choice[0] == fewest and choice[1] >= enough],
               key=lambda choice: (choice[2], -choice[3]))[3]


def _saved_per_time(count: int, took_ns: int, left: int, times_ns: Sequence[Tuple[int, int]]) -> float:
    """Jobs saved per nanosecond by a batch of ``count`` and the best one for the ``left`` jobs that could follow."""
    if left <= 0:
        return count / took_ns
    return max([(count + min(size, left)) / (took_ns + then_ns) for size, then_ns in times_ns])


def _critical_lost(critical: List[JobQueue], size: int, starts_ns: int, latency: ModelLatency) -> int:
    """Critical jobs that a batch of ``size`` starting at ``starts_ns`` puts at risk: those that are due before it ends,
    should it be as slow as the slowest of the last ten, and those that find no place in it and could not be in time
    after it either."""
    ends_ns = starts_ns + latency.slowest_ns[size]
    too_late = sum([queue.position(ends_ns) for queue in critical])
    after_ns = ends_ns + latency.slowest_ns[latency.sizes[0]]
    due_next = sum([queue.position(after_ns) for queue in critical]) - too_late
    return too_late + max(0, due_next - size)
