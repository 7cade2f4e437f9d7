"""The jobs that wait for a lane, indexed: what asks who waits looks at some of them, never at all open requests."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, Callable, Dict, Iterable, List, Tuple

from edgeserve.priority_class import CLASSES, RESERVED
from edgeserve.sched.requests.states import Job

Row = Tuple[int, int, Job]
"""A job behind its deadline and its ``seq``, which breaks ties."""


class ReadyJobs:
    """The ready jobs by class and model, each list in order of the jobs' deadlines; ``count`` of them in all, of which
    ``reserved`` are of a reserved class. The core alone changes it. ``is_telling``: a policy hears of a change of a
    request, so that no move may end or settle one; ``board`` is what policies see."""

    __slots__ = ("of", "count", "reserved", "is_telling", "_board")

    def __init__(self, models: Iterable[str], board: Any) -> None:
        names = list(models)
        self.count = self.reserved = 0
        self.is_telling = False
        self._board = board
        self.of: Dict[str, Dict[str, List[Row]]] = {
            priority_class: {model: [] for model in names} for priority_class in CLASSES
        }

    def add(self, job: Job) -> None:
        """A job became ready: its policy queues it. O(log n), and one move of a list."""
        job.queued = True
        self.count += 1
        self.reserved += job.request.priority_class in RESERVED
        insort(self.of[job.request.priority_class][job.node.model], (job.deadline_ns, job.seq, job))
        self.tell(job.request.policy.on_ready, job)

    def leave(self, job: Job) -> None:
        """A ready job waits no longer: its policy unqueues it."""
        self.remove(job)
        self.tell(job.request.policy.on_gone, job)

    def tell(self, hook: Callable[[Job, Any], None], job: Job) -> None:
        """Call a policy's hook in the middle of a change."""
        self.is_telling = True
        try:
            hook(job, self._board)
        finally:
            self.is_telling = False

    def remove(self, job: Job) -> None:
        """A ready job was launched, or leaves."""
        job.queued = False
        self.count -= 1
        self.reserved -= job.request.priority_class in RESERVED
        rows = self.of[job.request.priority_class][job.node.model]
        del rows[bisect_left(rows, (job.deadline_ns, job.seq))]

    def count_before(self, priority_class: str, model: str, to_ns: int) -> int:
        """The number of jobs of a class and model that are due before ``to_ns``."""
        return bisect_left(self.of[priority_class][model], (to_ns,))

    def due_between(self, priority_class: str, model: str, from_ns: int, to_ns: int) -> List[Row]:
        """The jobs of a class and model whose deadlines lie from ``from_ns`` on and before ``to_ns``."""
        rows = self.of[priority_class][model]
        return rows[bisect_left(rows, (from_ns,)) : bisect_left(rows, (to_ns,))]
