"""The ready jobs of one model, and who of them is served where not all can be.

Jobs that are worth the same wait in one queue in order of their deadlines: nearly always there is one queue.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Dict, Final, List, Sequence, Tuple

from edgeserve.priority_class import CLASSES, RESERVED
from edgeserve.sched.policies.common.job_queue import JobQueue, Row
from edgeserve.sched.requests.states import Job, steps_left

WORTH_STEP: Final = 1.15
"""Jobs whose values differ by less than this factor wait in one queue: small differences must not decide who of them is
dropped, and a client cannot make many queues."""

STEPS_MAX: Final = 24
"""The number of steps of value told apart above 1, and below it: values beyond count like the last one."""

RANKS: Final = 2 * STEPS_MAX + 1
"""Queues of one tier at most."""

VALUE_MAX: Final = WORTH_STEP**STEPS_MAX

TIERS: Final = {priority_class: 2 * index for index, priority_class in enumerate(CLASSES)}
"""The first of the two tiers of each class: jobs that have begun or were promised, and fresh ones. The most urgent
class comes first."""

CRITICAL_TIERS: Final = 2 * len(RESERVED)
"""Tiers of critical jobs: the first ones."""

EXACT: Final = 4
"""Batches to come at whose ends the room is counted; of later ones, after four times as many each time, and at last."""


class WorthQueue(JobQueue):
    """Jobs of one class and of about the same value, in deadline order. ``rank``: smaller ones are served first, those
    of one ``tier`` (class, begun or not) beside each other. ``worth`` is the value in the middle of its range."""

    __slots__ = ("rank", "tier", "worth")

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.tier = rank // RANKS
        self.worth = WORTH_STEP ** (STEPS_MAX - rank % RANKS)


class ModelQueues:
    """The ready jobs of one model: a queue for each class and value, each in deadline order.

    Iterative jobs that have begun stand before the fresh ones of their class: otherwise they would take turns, and
    all would end late. So do jobs that were promised their deadline: it is later than that of others, which would take
    their place time and again.

    ``queues`` is in serving order, ``count`` the number of jobs in all of them. ``takes_steps``: some of its jobs are
    more than one step of work. ``lost`` counts the jobs that were given up since a batch of the model started last.
    ``version`` rises with each change of these, or of the waiting jobs.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.count = 0
        self.queues: List[WorthQueue] = []
        self.takes_steps = False
        self.lost = 0
        self.version = 0
        self._by_rank: Dict[int, WorthQueue] = {}
        self._queue_of: Dict[int, WorthQueue] = {}  # by the job's seq

    def add(self, job: Job) -> None:
        """A job is ready."""
        self.count += 1
        self.version += 1
        if job.steps or job.hints and steps_left(job) > 1:
            self.takes_steps = True
        request, steps = job.request, 0
        if request.value != 1.0:
            steps = round(math.log(min(VALUE_MAX, max(1.0 / VALUE_MAX, request.value)), WORTH_STEP))
        tier = TIERS[request.priority_class] + (0 if job.steps or request.rank > 1.0 else 1)
        rank = tier * RANKS + STEPS_MAX - steps
        queue = self._by_rank.get(rank)
        if queue is None:
            queue = self._by_rank[rank] = WorthQueue(rank)
            self.queues.append(queue)
            self.queues.sort(key=_rank_key)
        queue.add(job.deadline_ns, job)
        self._queue_of[job.seq] = queue

    def started(self, jobs: Sequence[Job]) -> None:
        """Jobs were launched as a batch."""
        self.version += 1
        self.lost = 0
        self.count -= len(jobs)
        for job in jobs:
            self._queue_of.pop(job.seq).remove(job)

    def gave_up(self, count: int) -> None:
        """So many jobs were given up for their deadlines."""
        self.version += 1
        self.lost += count

    def remove(self, job: Job) -> None:
        """A job has left."""
        self.count -= 1
        self.version += 1
        self._queue_of.pop(job.seq).remove(job)


def _rank_key(queue: WorthQueue) -> int:
    return queue.rank


def worthiest(queues: Sequence[JobQueue], room: int, size: int, ends_ns: int, step_ns: int, lane: str) -> List[Job]:
    """The first ``room`` jobs, in deadline order, of the jobs that are served if most worth goes first.

    Jobs of equal length are a matroid: taken by falling worth, each into the latest batch that is free and ends by its
    deadline, they bring the most. A job finds one as long as, for the end of each batch, no more jobs that are due
    before it are taken than had room before it. The batch that ends at ``ends_ns`` has ``room``, those behind it have
    ``size`` and end ``step_ns`` apart. ``queues`` are in order of falling worth, none is empty. Jobs that are bound to
    another lane are left out. O(queues * log n * log n).
    """
    last_ns = max([queue.rows[-1][0] for queue in queues])
    waiting = sum([len(queue.rows) for queue in queues])
    dues: List[int] = []  # a job due before it has no place in the batch that ends then
    free: List[int] = []  # how many more of those due before it have room
    batches = 1
    while batches * size < waiting and ends_ns + batches * step_ns <= last_ns:
        dues.append(ends_ns + batches * step_ns)
        free.append(room + (batches - 1) * size)
        batches = batches + 1 if batches < EXACT else 4 * batches
    dues.append(last_ns + 1)
    free.append(min(waiting, room + max(0, last_ns - ends_ns) // step_ns * size))
    places = range(len(dues))
    found: List[List[Tuple[List[Row], int, int]]] = [[] for _ in dues]  # rows, from where, how many
    for queue in queues:
        rows = queue.rows
        at = bisect_left(rows, (ends_ns,)) if rows[0][0] < ends_ns else 0
        taken = 0
        for place in places:
            until = bisect_left(rows, (dues[place],), at) if rows[-1][0] >= dues[place] else len(rows)
            count = min(until - at, free[place] - taken)
            if count > 0:
                taken += count
                found[place].append((rows, at, min(count, room)))
            free[place] -= taken
            at = until
        least = waiting
        for place in reversed(places):  # a job due earlier takes room of the ones due later, too
            least = free[place] = min(free[place], least)
    chosen: List[Job] = []
    for parts in found:
        if len(chosen) < room:
            group = sorted([row for rows, at, count in parts for row in rows[at : at + count]])
            chosen += [row[2] for row in group if not row[2].lane or row[2].lane == lane]
    return chosen[:room]
