"""A queue with two ends: the job of the smallest and of the largest key are both at hand (a DEPQ).

:class:`MinMaxHeap` holds distinct integers: an array heap whose even levels are minimal and whose odd levels are
maximal (Atkinson and others, 1986). Push and pop O(log n), peek O(1). :class:`Depq` puts jobs on top of it: jobs of
equal key stand behind each other, so the oldest comes first *at both ends*, which no single order of (key, sequence)
can give. Jobs that leave are deleted lazily: their key stays in the heap until it surfaces, or until more than half of
the keys are dead.
"""

from __future__ import annotations

from typing import Dict, Iterator, List

from edgeserve.errors import PolicyError
from edgeserve.sched.requests.states import Job


class MinMaxHeap:
    """Integers, smallest and largest at hand. Knows nothing of jobs."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: List[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def push(self, key: int) -> None:
        """Add a key. O(log n)."""
        rows = self.rows
        rows.append(key)
        index = len(rows) - 1
        if index == 0:
            return
        parent = (index - 1) >> 1
        minimal = _on_min_level(index)
        if rows[parent] != key and (rows[parent] < key) == minimal:  # it belongs to the other kind of level
            rows[index], rows[parent] = rows[parent], key
            index, minimal = parent, not minimal
        self._rise(index, minimal)

    def low(self) -> int:
        """The smallest key. The heap must not be empty."""
        return self.rows[0]

    def high(self) -> int:
        """The largest key. The heap must not be empty."""
        return self.rows[self._high_index()]

    def pop_low(self) -> int:
        """Take the smallest key out. O(log n)."""
        return self._take(0)

    def pop_high(self) -> int:
        """Take the largest key out. O(log n)."""
        return self._take(self._high_index())

    def _high_index(self) -> int:
        rows = self.rows
        if len(rows) < 3:
            return len(rows) - 1
        return 1 if rows[1] >= rows[2] else 2

    def _rise(self, index: int, minimal: bool) -> None:
        """Compare with grandparents, on levels of one kind."""
        rows = self.rows
        key = rows[index]
        while index > 2:
            above = (((index - 1) >> 1) - 1) >> 1
            if rows[above] == key or (key < rows[above]) != minimal:
                break
            rows[index], rows[above] = rows[above], key
            index = above

    def _take(self, index: int) -> int:
        rows = self.rows
        taken, last = rows[index], rows.pop()
        if index < len(rows):
            rows[index] = last
            self._sink(index, _on_min_level(index))
        return taken

    def _sink(self, index: int, minimal: bool) -> None:
        """Let the key at ``index`` trickle down over children and grandchildren to where it belongs."""
        rows = self.rows
        count = len(rows)
        while True:
            best = -1
            first = 2 * index + 1
            for child in (first, first + 1):
                for place in (child, 2 * child + 1, 2 * child + 2):
                    if place < count and (
                        best < 0 or (rows[place] < rows[best]) == minimal and rows[place] != rows[best]
                    ):
                        best = place
            if best < 0 or rows[best] == rows[index] or (rows[best] < rows[index]) != minimal:
                return
            rows[best], rows[index] = rows[index], rows[best]
            if best <= first + 1:
                return  # a child has no grandchild of its own to upset
            parent = (best - 1) >> 1
            if rows[parent] != rows[best] and (rows[parent] < rows[best]) == minimal:
                rows[parent], rows[best] = rows[best], rows[parent]
            index = best


class Depq:
    """Jobs by integer key, oldest first among equal keys. Knows no model, no clock and no policy.

    ``add`` and ``remove`` O(log n) amortised; ``low`` and ``high`` look and leave the job where it is.
    """

    __slots__ = ("_heap", "_at", "_count")

    def __init__(self) -> None:
        self._heap = MinMaxHeap()
        self._at: Dict[int, Dict[int, Job]] = {}  # key -> its jobs by seq, in order of coming; empty = dead key
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Job]:
        """The jobs, in no particular order (that of the keys' first coming)."""
        return (job for jobs in self._at.values() for job in jobs.values())

    def add(self, key: int, job: Job) -> None:
        """Put a job at its key, behind those that are there."""
        if job.key is not None:
            raise PolicyError(f"{job!r} already stands in a queue")
        job.key = key
        jobs = self._at.get(key)
        if jobs is None:
            jobs = self._at[key] = {}
            self._heap.push(key)
        jobs[job.seq] = job
        self._count += 1

    def remove(self, job: Job) -> None:
        """Take one job out, wherever it stands."""
        jobs = self._at.get(job.key) if job.key is not None else None
        if not jobs or job.seq not in jobs:
            raise PolicyError(f"{job!r} does not stand in this queue")
        del jobs[job.seq]
        job.key = None
        self._count -= 1
        if len(self._at) > 2 * self._count + 8:
            self._rebuild()

    def low(self) -> Job | None:
        """The oldest job of the smallest key, or None."""
        heap = self._heap
        while heap.rows:
            jobs = self._at[heap.low()]
            if jobs:
                return next(iter(jobs.values()))
            del self._at[heap.pop_low()]
        return None

    def high(self) -> Job | None:
        """The oldest job of the largest key, or None."""
        heap = self._heap
        while heap.rows:
            jobs = self._at[heap.high()]
            if jobs:
                return next(iter(jobs.values()))
            del self._at[heap.pop_high()]
        return None

    def _rebuild(self) -> None:
        """More than half of the keys are dead: begin anew with the living. O(n log n), once in n removals."""
        self._at = {key: jobs for key, jobs in self._at.items() if jobs}
        self._heap = MinMaxHeap()
        for key in self._at:
            self._heap.push(key)


def _on_min_level(index: int) -> bool:
    """Whether an index of the array stands on an even level, whose keys are smaller than all below them."""
    return (index + 1).bit_length() & 1 == 1
