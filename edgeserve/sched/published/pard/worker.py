"""One lane of one module in PARD: its queue with two ends, its forming batch; and which module a lane serves next.

Knows no clock and no rule; :class:`~edgeserve.sched.published.pard.pard.Pard` decides which requests join and which are
dropped.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Sequence, Tuple

from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.published.pard.state_planner import Module, Planner
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane


class Worker:
    """A job stands in the ``queue``, in ``forming`` (the batch that runs next), or in ``late``: it cannot be in time,
    is answered all the same, and takes a place that no other needs."""

    __slots__ = ("number", "turn", "module", "lane", "shared", "queue", "forming", "late", "wakes_ns")

    def __init__(self, number: int, turn: int, module: Module, lane: Lane) -> None:
        self.number = number  # among all workers of the policy
        self.turn = turn  # among those of its module
        self.module = module
        self.lane = lane
        self.shared = False  # the lane serves other modules of the policy too
        self.queue = JobQueue()
        self.forming: Dict[int, Job] = {}  # by seq, in the order of joining
        self.late: Dict[int, Job] = {}
        self.wakes_ns = 0  # when its next batch begins to form, if an alarm is set for that

    def count(self) -> int:
        """Jobs that it holds."""
        return len(self.queue) + len(self.forming) + len(self.late)

    def jobs(self) -> Iterator[Job]:
        """All of them."""
        yield from list(self.queue)
        yield from list(self.forming.values())
        yield from list(self.late.values())

    def join(self, job: Job) -> None:
        """From the queue, or from among the late, into the forming batch."""
        self.remove(job)
        self.forming[job.seq] = job

    def postpone(self, job: Job) -> None:
        """From the queue to the late."""
        self.remove(job)
        self.late[job.seq] = job

    def remove(self, job: Job) -> None:
        """It leaves, wherever it stands."""
        if job.seq in self.forming:
            del self.forming[job.seq]
        elif job.seq in self.late:
            del self.late[job.seq]
        else:
            self.queue.remove(job)


def is_usable(lane: Lane) -> bool:
    """True if a lane is up and answers."""
    return lane.up and not lane.hung


def hindrance(worker: Worker, board: Board) -> int:
    """The obstacle between a worker and a job: 0 nothing but its other jobs, 1 its model is not in memory, 2 its lane
    is gone."""
    return int(not board.is_resident(worker.module.model, worker.lane)) if is_usable(worker.lane) else 2


def window_start(late: Sequence[bool], size: int) -> int:
    """Nexus: where the first window of ``size`` begins in which no request is late (a shorter one at the end counts);
    all before it are dropped. ``late`` is the queue in order of arrival. O(n)."""
    start = 0
    for index, is_late in enumerate(late):
        if index - start >= size:
            break
        if is_late:
            start = index + 1
    return start


def choose_worker(across: str, ready: Sequence[Worker], last: int, planner: Planner) -> Worker:
    """Which of the workers on one lane forms the next batch. All hold jobs; ``last`` is the module served before.

    ``round_robin`` the next module in order; ``downstream`` the last; ``fullest`` the fullest batch; ``edf`` the
    earliest deadline; ``least_slack`` the least time left after what still has to run; ``fifo`` the oldest arrival at
    its module (looks at every job). Ties: the module further downstream.
    """
    if across == "round_robin":
        return min(ready, key=lambda worker: (worker.module.place <= last, worker.module.place))
    if across == "downstream":
        return max(ready, key=lambda worker: worker.module.place)
    return min(ready, key=lambda worker: (_urgency(across, worker, planner), -worker.module.place))


def _urgency(across: str, worker: Worker, planner: Planner) -> Tuple[int, int]:
    """The smaller the sooner."""
    module = worker.module
    if across == "fullest":
        size = module.sizes[worker.lane.name]
        return -min(worker.count(), size) * 1_000_000 // size, 0
    jobs: List[Job] = list(worker.jobs())
    if across == "fifo":
        return min([(job.ready_ns, job.seq) for job in jobs])
    if across == "edf":
        return min([job.request.deadline_ns for job in jobs]), 0
    # Batch times alone: measured queues would hold back jobs that the queues have just held back.
    return min([job.request.deadline_ns - planner.batches_ns[job.node] for job in jobs]) - module.time_ns, 0
