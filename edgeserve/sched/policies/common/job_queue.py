"""The queue of ready jobs: ordered by an integer key, cheap at both ends, cuttable by key in O(log n).

A sorted list of ``(key, seq, job)`` rows: searching is a bisection; inserting and deleting are one ``memmove`` (10,000
rows are 80 kB), which beats every tree written in Python at the lengths that a device can serve.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Iterator, List, Tuple

from edgeserve.errors import PolicyError
from edgeserve.sched.requests.states import Job

Row = Tuple[int, int, Job]


class JobQueue:
    """Ready jobs in rising order of ``(key, seq)``. The key is usually the time by which the job must be done.

    Knows no model, no clock and no policy. A job stands in at most one queue; ``job.key`` is ``None`` outside one.
    """

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: List[Row] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Job]:
        return (row[2] for row in self.rows)

    def __contains__(self, job: Job) -> bool:
        rows = self.rows
        index = bisect_left(rows, (job.key, job.seq)) if job.key is not None else len(rows)
        return index < len(rows) and rows[index][2] is job

    def add(self, key: int, job: Job) -> None:
        """Insert a job: O(log n) comparisons, O(1) at the end, where new deadlines usually belong."""
        if job.key is not None:
            raise PolicyError(f"{job!r} already stands in a queue")
        job.key = key
        row = (key, job.seq, job)
        rows = self.rows
        if not rows or rows[-1] < row:
            rows.append(row)
        else:
            insort(rows, row)

    def remove(self, job: Job) -> None:
        """Take one job out: O(log n) comparisons."""
        rows = self.rows
        index = bisect_left(rows, (job.key, job.seq)) if job.key is not None else len(rows)
        if index >= len(rows) or rows[index][2] is not job:
            raise PolicyError(f"{job!r} does not stand in this queue")
        del rows[index]
        job.key = None

    def head(self) -> Job | None:
        """The job of the smallest key, or None."""
        return self.rows[0][2] if self.rows else None

    def position(self, key: int) -> int:
        """The number of jobs with a smaller key: ``len(queue) - position(t)`` jobs are due at ``t`` or later. O(log
        n)."""
        return bisect_left(self.rows, (key,))

    def slice(self, start: int, stop: int) -> List[Job]:
        """The jobs at positions ``start`` to ``stop`` (without it), in order."""
        return [row[2] for row in self.rows[start:stop]]
