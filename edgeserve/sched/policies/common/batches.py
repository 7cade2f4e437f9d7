"""The batch of a model whose batches take about the same time for any inputs: the one that saves most.

Requests that cannot make their deadline are dropped as soon as that is certain. For each batch size, those jobs that
would still be in time at its end are counted; the size that saves most worth per lane time runs. (Cutting the batch to
what its tightest member allows collapses under overload: the head never has slack, so every batch shrinks, and the
queue grows until no request is in time.) Critical jobs go into the batch first, and a size that loses fewer of them is
preferred before anything else is compared. Where not all can be served, value decides which ones are
(``model_queues.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Dict, Final, Iterable, List, Sequence

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policies.common.bidding import give_up_late, look_at_bound, take
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policies.common.model_queues import CRITICAL_TIERS, ModelQueues, WorthQueue, worthiest
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, steps_left
from edgeserve.sched.resources.lanes import Lane

EQUAL: Final = 0.98
"""The precision to which the savings of two batches are compared: where times rise evenly all splits are equal but for
the noise of the estimates, and one batch is then better than two."""

ALMOST: Final = 0.95
"""Batches that serve all who wait are taken for so much of the worth per time of the best batch that gives some up."""


class Batches:
    """The ready jobs of all models of some apps, and the batches to make of them. ``batch_max``: the largest; 0: the
    largest profiled size."""

    def __init__(self, apps: Iterable[App], batch_max: int = 0) -> None:
        self._batch_max = batch_max or 2**31
        self.models: Dict[str, ModelQueues] = {
            node.model: ModelQueues(node.model) for app in apps for node in app.nodes
        }

    def drop_late(self, queues: ModelQueues, board: Board) -> None:
        """Drop what of a model can no longer be in time; what is answered late anyway gets one more SLO."""
        ends_ns = board.ends_ns.get(queues.model) or board.earliest_end_ns(queues.model)
        queued = list(queues.queues)
        for queue in queued:
            if ends_ns is not None and queue.rows and queue.rows[0][0] < ends_ns:
                queues.gave_up(give_up_late(queue, ends_ns, board))
        for queue in queued:
            if queue.rows and not queue.tier % 2:
                look_at_bound(queue, board.ends_by_lane(queues.model), board)

    def queued(self) -> List[Job]:
        """All jobs that wait."""
        return [job for queues in self.models.values() for queue in queues.queues for job in queue]

    def best_jobs(self, queues: ModelQueues, lane: Lane, latency: BatchTime, starts_ns: int) -> List[Job]:
        """The batch of one model that starts then, or none: the size that loses fewest critical jobs, and of those the
        one that saves most per lane time, with the jobs of most worth that can be in time."""
        filled = [queue for queue in queues.queues if queue.rows]
        if queues.count == 1:
            due_ns, _, job = filled[0].rows[0]
            in_time = due_ns >= starts_ns + latency.likely_ns[latency.sizes[0]]
            return [job] if in_time and (not job.lane or job.lane == lane.name) else []
        size = self._best_size(queues, filled, starts_ns, latency, lane.dispatch_gap.careful_ns)
        return self.jobs_of(filled, size, lane, latency, starts_ns) if size else []

    def jobs_of(self, filled: List[WorthQueue], size: int, lane: Lane, latency: BatchTime, starts_ns: int) -> List[Job]:
        """A batch of at most this size, with the jobs of most worth of these queues that can be in time in it."""
        took_ns = latency.likely_ns[size]
        ends_ns = starts_ns + took_ns
        if len(filled) == 1:
            return take(filled[0], lane, filled[0].position(ends_ns), size)
        return _fill(filled, size, ends_ns, took_ns + lane.dispatch_gap.likely_ns, lane)

    def _best_size(
        self,
        queues: ModelQueues,
        filled: List[WorthQueue],
        starts_ns: int,
        latency: BatchTime,
        dispatch_gap_ns: int,
    ) -> int:
        """0 where no job could be in time. O(sizes * queues * log n)."""
        best, best_lost, best_rate = 0, 0, 0.0
        whole, whole_rate = 0, 0.0  # the best size that costs no request its deadline
        critical = [queue for queue in filled if queue.tier < CRITICAL_TIERS]
        takes_steps = queues.takes_steps
        may_split = len(filled) == 1 and not takes_steps
        for size in latency.sizes:
            if best and size > self._batch_max:
                break
            took_ns = latency.likely_ns[size]
            ends_ns = starts_ns + took_ns
            left, worth = size, 0.0
            for queue in filled:
                rows = queue.rows
                count = len(rows)
                due_ns = ends_ns + steps_more_ns(rows[0][2], took_ns, latency) if takes_steps else ends_ns
                if rows[0][0] < due_ns:
                    count -= bisect_left(rows, (due_ns,))
                if count > left:
                    count = left
                left -= count
                worth += count * queue.worth
            if left == size:
                break
            rate = worth / took_ns
            lost = _critical_lost(critical, size, starts_ns, latency, dispatch_gap_ns) if critical else 0
            if not best or lost < best_lost or lost == best_lost and rate > best_rate:
                best, best_lost, best_rate = size, lost, rate
            if may_split and rows[0][0] >= ends_ns:
                rate = _rate_of_all(filled[0], size, ends_ns, took_ns, latency, dispatch_gap_ns)
                if rate > whole_rate or size >= queues.count and rate > EQUAL * whole_rate:
                    whole, whole_rate = size, rate
            if left or size >= queues.count:
                break  # a larger size would only hold padding
        return whole if whole_rate >= ALMOST * best_rate and not best_lost else best


def steps_more_ns(job: Job, took_ns: int, latency: BatchTime) -> int:
    """The time by which the steps that a job still needs after the next one take longer in such batches than alone,
    which its deadline allows for."""
    return (steps_left(job) - 1) * (took_ns - latency.alone_likely_ns)


def _rate_of_all(
    queue: WorthQueue, size: int, ends_ns: int, took_ns: int, latency: BatchTime, dispatch_gap_ns: int
) -> float:
    """Worth per time if a first batch of ``size`` and one of all that are left serve all requests in time, else 0."""
    rows = queue.rows
    rest = len(rows) - size
    if rest > 0:
        if rest > latency.size_max:
            return 0.0
        then_ns = latency.likely_ns[latency.size_for[rest]] + dispatch_gap_ns
        if rows[size][0] < ends_ns + then_ns:
            return 0.0
        took_ns += then_ns
    return len(rows) * queue.worth / took_ns


def _fill(filled: List[WorthQueue], size: int, ends_ns: int, step_ns: int, lane: Lane) -> List[Job]:
    """The jobs of a batch of ``size`` that ends at ``ends_ns``: tier by tier. Where the jobs of a tier differ in worth,
    those of the most worth that can all be in time, in batches of this size that end ``step_ns`` apart."""
    jobs: List[Job] = []
    index = 0
    while index < len(filled) and len(jobs) < size:
        queue = filled[index]
        index += 1
        if index == len(filled) or filled[index].tier != queue.tier:
            jobs += take(queue, lane, queue.position(ends_ns), size - len(jobs))
            continue
        alike = [queue]
        while index < len(filled) and filled[index].tier == queue.tier:
            alike.append(filled[index])
            index += 1
        found = worthiest(alike, size - len(jobs), size, ends_ns, step_ns, lane.name)
        for other in alike:
            if not found:  # all of the worthiest are bound to other lanes
                found = take(other, lane, other.position(ends_ns), size - len(jobs))
        jobs += found
    return jobs


def _critical_lost(
    critical: Sequence[JobQueue], size: int, starts_ns: int, latency: BatchTime, dispatch_gap_ns: int
) -> int:
    """Critical jobs that a batch of ``size`` starting at ``starts_ns`` puts at risk: jobs due before it ends, should it
    be as slow as the slowest of the last ten, and jobs that find no place in it and could not be in time after it
    either."""
    ends_ns = starts_ns + latency.slowest_ns[size]
    too_late = sum([queue.position(ends_ns) for queue in critical])
    after_ns = ends_ns + dispatch_gap_ns + latency.slowest_ns[latency.sizes[0]]
    due_next = sum([queue.position(after_ns) for queue in critical]) - too_late
    return too_late + max(0, due_next - size)
