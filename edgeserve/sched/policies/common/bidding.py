"""Functions that policies share, so that all of them count value, time and feasibility alike.

Pure: they read the board and change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Mapping, Sequence, Tuple

from edgeserve.priority_class import CLASSES, LEAST, RANKS
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, NO_LANE, Bid
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS
from edgeserve.sched.requests.graph import Node
from edgeserve.sched.requests.states import Job, RequestRecord, steps_left
from edgeserve.sched.requests.worth import worths_ns

if TYPE_CHECKING:
    from edgeserve.sched.policy_api.board import AloneTime, Board
    from edgeserve.sched.resources.lanes import Lane


class Utility:
    """The value that a bid delivers, as a function of its start: a sum over its requests, each at its own deadline.

    A request counts its worth (``requests/worth.py``) if it ends by its deadline.
    One that is answered late anyway (``on_late = "answer"``) keeps ``slo / (slo + lateness)`` of it. One that the next
    of its stream is expected to end, as seen at ``now_ns``, counts only if it begins before that (``now_ns`` left out:
    nothing is expected). ``shares``: what each job adds to its request, where a job is one branch of several that could
    answer it (1.0 for all that it is worth).
    """

    __slots__ = ("after_ns", "_jobs", "_now_ns", "_shares", "_rows")

    def __init__(
        self, jobs: Sequence[Job], after_ns: int, now_ns: int = START_ANY_TIME_NS, shares: Sequence[float] | None = None
    ) -> None:
        self.after_ns = after_ns  # from the start of the bid's work to the end of its requests
        self._jobs = jobs
        self._now_ns = now_ns
        self._shares = shares
        self._rows: List[Tuple[int, float, int]] | None = None

    @property
    def rows(self) -> List[Tuple[int, float, int]]:
        """The deadline, the worth, and the time in which half of the worth is lost, of each request. Computed at the
        first use: a lone bid needs none."""
        if self._rows is None:
            self._rows = self._look()
        return self._rows

    def _look(self) -> List[Tuple[int, float, int]]:
        rows: List[Tuple[int, float, int]] = []
        counted = set()
        worths, after_ns, shares = worths_ns(self._jobs), self.after_ns, self._shares
        for index, job in enumerate(self._jobs):
            request = job.request
            if job.part:  # several parts of one request count it once
                if request.id in counted:
                    continue
                counted.add(request.id)
            soft_ns = request.deadline_ns - request.arrival_ns if request.on_late == "answer" else 0
            due_ns = request.deadline_ns
            if request.successor_ns is not None:
                begin_by_ns = request.begin_by_ns(self._now_ns)
                if begin_by_ns is not None:
                    due_ns = min(due_ns, begin_by_ns + after_ns)
            worth = worths[index]
            if shares is not None:
                worth *= shares[index]
            rows.append((due_ns, worth, max(1, soft_ns) if soft_ns else 0))
        return rows

    def value(self, start_ns: int) -> float:
        """The value delivered if the work starts at ``start_ns``, in nanoseconds of lane time."""
        ends_ns = start_ns + self.after_ns
        total = 0.0
        for deadline_ns, worth, soft_ns in self.rows:
            if ends_ns <= deadline_ns:
                total += worth
            elif soft_ns:
                total += worth * soft_ns / (soft_ns + ends_ns - deadline_ns)
        return total


def take(queue: JobQueue, lane: Lane, start: int, count: int) -> List[Job]:
    """The first ``count`` jobs from position ``start`` on that may run on this lane: those whose state another lane
    holds stay. O(count) unless many are bound elsewhere."""
    jobs: List[Job] = []
    name = lane.name
    rows = queue.rows
    for index in range(start, len(rows)):
        if len(jobs) == count:
            break
        job = rows[index][2]
        if not job.lane or job.lane == name:
            jobs.append(job)
    return jobs


def bid_for(
    jobs: Sequence[Job],
    size: int,
    expected_ns: int,
    board: Board,
    start_before_ns: int = START_ANY_TIME_NS,
    drops: Sequence[Tuple[RequestRecord, str]] = (),
    shares: Sequence[float] | None = None,
) -> Bid:
    """The bid to run ``jobs`` of one model: worth and remaining lane time count the rest of their pipelines.
    ``shares``: what each job adds to its request (:class:`Utility`)."""
    after_ns, remaining_ns, priority_class = outlook(jobs, expected_ns, board)
    return Bid(
        jobs[0].node.model,
        jobs,
        size,
        expected_ns,
        Utility(jobs, after_ns, board.now_ns, shares),
        remaining_ns,
        start_before_ns=start_before_ns,
        drops=drops,
        priority_class=priority_class,
    )


def outlook(jobs: Sequence[Job], expected_ns: int, board: Board) -> Tuple[int, int, str]:
    """The outlook of jobs of one model that run as a batch: the time from its start to the end of their requests, the
    lane time that these still take, and the most urgent class."""
    rest_ns = rest_lane_ns = steps_ns = 0
    priority_class, is_mixed = jobs[0].request.priority_class, False
    node: Node | None = None
    for job in jobs:
        if job.request.priority_class != priority_class:
            is_mixed = True
        if job.node.succs and job.node is not node:  # most are at one node
            node = job.node
            rest_ns = max(rest_ns, board.rest_ns(job.request.app, job.node))
            rest_lane_ns = max(rest_lane_ns, board.rest_lane_ns(job.request.app, job.node))
        if job.hints:
            steps_ns = max(steps_ns, (steps_left(job) - 1) * expected_ns)
    taken_ns = expected_ns + steps_ns
    return taken_ns + rest_ns, taken_ns + rest_lane_ns, best_class(jobs) if is_mixed else priority_class


def bid_to_measure(job: Job, lane: Lane, board: Board, probe: bool = False) -> Bid:
    """The bid to run a job alone for what that teaches (``sched/core/experiments.py``): it delivers no value."""
    latency = board.latency(job.node.model, lane.name)
    alone_ns = latency.alone_likely_ns
    priority_class = LEAST if probe else job.request.priority_class
    nothing = Utility((), alone_ns)
    return Bid(
        job.node.model,
        (job,),
        latency.sizes[0],
        alone_ns,
        nothing,
        alone_ns,
        probe=probe,
        priority_class=priority_class,
    )


def refusal(request: RequestRecord, board: Board, alone_ns: AloneTime | None = None) -> str | None:
    """The reason why a request should be refused at arrival, or None: each of its first nodes must be able to end, on
    some lane, early enough for the rest (times as in :meth:`Board.earliest_end_ns`), but for what it can do without
    whose lanes are lost for good. Requests that are answered late anyway are never refused for their deadline."""
    if request.on_late == "answer":
        return None
    can_begin = False
    for node in request.app.entries:
        ends_ns = board.earliest_end_ns(node.model, alone_ns)
        if ends_ns is None:
            if node.optional and board.is_lost(node.model):
                continue
            return NO_LANE
        can_begin = True
        if node.succs:
            ends_ns += board.rest_ns(request.app, node)
        if ends_ns > request.deadline_ns:
            return CANNOT_MAKE_DEADLINE
    return None if can_begin else NO_LANE


def droppable(job: Job) -> bool:
    """True if a job's request may be given up for its deadline."""
    return job.request.on_late != "answer"


def postpone(queue: JobQueue, job: Job, ends_ns: int) -> None:
    """Give a late job that is answered anyway as many more SLOs as it takes to count as in time again: of its own, or
    of its app's where a client's own is shorter, or else it would be the most urgent again and again."""
    request = job.request
    slo_ns = max(1, request.deadline_ns - request.arrival_ns, 0 if request.claim is None else request.app.slo_ns)
    assert job.key is not None
    key = job.key + slo_ns * -(-(ends_ns - job.key) // slo_ns)
    queue.remove(job)
    queue.add(key, job)


def give_up_late(queue: JobQueue, ends_ns: int, board: Board) -> int:
    """Give up the jobs of a queue that are due before ``ends_ns``, and postpone the ones that are answered anyway.
    Returns the number given up."""
    rows, count = queue.rows, 0
    while rows and rows[0][0] < ends_ns:
        job = rows[0][2]
        if droppable(job):
            count += 1
            board.abandon_branch(job, CANNOT_MAKE_DEADLINE)
        else:
            postpone(queue, job, ends_ns)
    return count


def look_at_bound(queue: JobQueue, ends_ns: Mapping[str, int], board: Board) -> None:
    """Give up, or postpone, the jobs bound to a lane that are late by that lane's times (``ends_ns``), even where
    others could serve them. (By the others' times, one that is answered anyway would wait for its own lane for ever.)
    O(jobs)."""
    for job in [job for job in queue if job.lane in ends_ns]:
        if job.key is None or job.key >= ends_ns[job.lane]:
            continue
        if droppable(job):
            board.abandon_branch(job, CANNOT_MAKE_DEADLINE)
        else:
            postpone(queue, job, ends_ns[job.lane])


def best_class(jobs: Sequence[Job]) -> str:
    """The most urgent class among the jobs of a batch: what the batch counts as in the auction."""
    found = RANKS[LEAST]
    for job in jobs:
        rank = RANKS[job.request.priority_class]
        if rank < found:
            found = rank
    return CLASSES[found]
