"""Earliest deadline first, with the batch that saves most: the default policy.

Requests that cannot make their deadline are refused at arrival or dropped as soon as that is certain. For each batch
size, those jobs that would still be in time at its end are counted, in deadline order; the size that saves most per
lane time runs. (Cutting the batch to what its tightest member allows collapses under overload: the head never has
slack, so every batch shrinks, and the queue grows until nobody is in time.) Critical jobs go into the batch first, and
a size that loses fewer of them is preferred before anything else is compared. An idle lane never waits for a fuller
batch. Among several models, the auction's own rule decides (``sched/arbiter.py``).
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from edgeserve.sched import arbiter
from edgeserve.sched.apps import App
from edgeserve.sched.board import Board
from edgeserve.sched.events import CLASSES
from edgeserve.sched.jobqueue import JobQueue
from edgeserve.sched.lanes import Lane, Work
from edgeserve.sched.latency import ModelLatency
from edgeserve.sched.lifecycle import Job, RequestRecord
from edgeserve.sched.parts import CANNOT_MAKE_DEADLINE, bid_for, droppable, earliest_end_ns, refusal, take
from edgeserve.sched.policy import Bid, Policy


class ModelQueues:
    """The ready jobs of one model, a queue per class, each in deadline order."""

    __slots__ = ("model", "by_class", "queues")

    def __init__(self, model: str) -> None:
        self.model = model
        self.queues = tuple(JobQueue() for _ in CLASSES)
        self.by_class = dict(zip(CLASSES, self.queues))

    def __len__(self) -> int:
        a, b, c = self.queues
        return len(a.rows) + len(b.rows) + len(c.rows)


class Edf(Policy):
    """Options: ``admit`` (refuse at arrival what no lane can make), ``batch_max`` (0 = the largest profiled size)."""

    defaults = {"admit": True, "batch_max": 0}

    def __init__(self, name: str, apps: Sequence[App], options: Dict[str, object]) -> None:
        super().__init__(name, apps, options)
        self._admit = bool(self.options["admit"])
        self._batch_max = int(str(self.options["batch_max"])) or 2**31
        self._models: Dict[str, ModelQueues] = {
            node.model: ModelQueues(node.model) for app in self.apps for node in app.nodes}

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        return refusal(request, board) if self._admit else None

    def on_ready(self, job: Job, board: Board) -> None:
        self._models[job.node.model].by_class[job.request.klass].add(job.deadline_ns, job)

    def on_gone(self, job: Job, board: Board) -> None:
        self._models[job.node.model].by_class[job.request.klass].remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        by_class = self._models[work.model].by_class
        for job in work.jobs:
            by_class[job.request.klass].remove(job)

    def plan(self, board: Board) -> None:
        """Drop what can no longer be in time; what is answered late anyway gets one more SLO to be worth something."""
        for queues in self._models.values():
            for queue in queues.queues:
                rows = queue.rows
                if not rows:
                    continue
                ends_ns = earliest_end_ns(queues.model, board)
                while ends_ns is not None and rows and rows[0][0] < ends_ns:
                    job = rows[0][2]
                    if droppable(job):
                        board.drop(job.request, CANNOT_MAKE_DEADLINE)
                    else:
                        _postpone(queue, job, ends_ns)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        bids = []
        for queues in self._models.values():
            if len(queues) and queues.model in lane.models and board.is_resident(queues.model, lane):
                bid = self._best_batch(queues, lane, board)
                if bid is not None:
                    bids.append(bid)
        if not bids:
            return None
        return bids[0] if len(bids) == 1 else arbiter.choose(bids, lane.available_ns(board.now_ns))

    def queued(self) -> List[Job]:
        return [job for queues in self._models.values() for queue in queues.queues for job in queue]

    def _best_batch(self, queues: ModelQueues, lane: Lane, board: Board) -> Bid | None:
        latency = board.latency(queues.model, lane.name)
        starts_ns = lane.available_ns(board.now_ns)
        critical, normal, background = queues.queues
        sizes = latency.sizes
        if not critical.rows and not normal.rows:  # background alone
            critical, normal = normal, background
        best: Tuple[float, float] | None = None
        best_size = 0
        for size in sizes:
            if size > self._batch_max and size != sizes[0]:
                break
            took_ns = latency.estimate_ns(size)
            ends_ns = starts_ns + took_ns
            in_time = len(normal.rows) - normal.position(ends_ns) if normal.rows else 0
            lost = 0
            if critical.rows:
                first = critical.position(ends_ns)
                in_time += len(critical.rows) - first
                lost = first + _lost_next(critical, first, size, ends_ns, latency)
            if in_time == 0:
                break
            score = (-lost, min(size, in_time) / took_ns)
            if best is None or score > best:
                best, best_size = score, size
            if in_time <= size:
                break  # a larger size would only hold padding
        if best is None:
            return None
        took_ns = latency.estimate_ns(best_size)
        jobs = self._members(queues, lane, best_size, starts_ns + took_ns)
        if not jobs:
            return None
        size = latency.size_for(len(jobs))
        return bid_for(jobs, size, latency.estimate_ns(size), board)

    def _members(self, queues: ModelQueues, lane: Lane, size: int, ends_ns: int) -> List[Job]:
        """The jobs of a batch that ends at ``ends_ns``: critical first, each class in deadline order."""
        jobs: List[Job] = []
        for queue in queues.queues:
            if queue.rows and len(jobs) < size:
                jobs += take(queue, lane, queue.position(ends_ns), size - len(jobs))
        return jobs


def _lost_next(critical: JobQueue, first: int, size: int, ends_ns: int, latency: ModelLatency) -> int:
    """Critical jobs that are left out of a batch of ``size`` and could not be in time after it either."""
    after = critical.position(ends_ns + latency.estimate_ns(latency.sizes[0]))
    return max(0, after - first - size)


def _postpone(queue: JobQueue, job: Job, ends_ns: int) -> None:
    """Give a late job that is answered anyway as many more SLOs as it takes to count as in time again."""
    request = job.request
    slo_ns = max(1, request.deadline_ns - request.arrival_ns)
    assert job.key is not None
    key = job.key + slo_ns * -(-(ends_ns - job.key) // slo_ns)
    queue.remove(job)
    queue.add(key, job)
