"""The best split of n jobs of one model into batches: which sizes, in which order, and what they take together.

Profiles are general: a batch of 8 may take longer than two of 4 (a CPU), or 32 no longer than 17 (padding). So the
split is a dynamic programme over the measured sizes. Pure; integers only.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

COUNT_MAX = 4096
"""Jobs that are split exactly; more are counted in proportion."""


class BestSplit:
    """The fastest batches for n jobs, given the time of a batch of each size (``times``, rising in size).

    All batches but the last are full; no other split is faster where a smaller batch takes no longer than a larger one.
    Of splits that take equally long, the one whose first batch is largest. The table is worked out as far as it was
    asked for, O(n * sizes), and anew after :meth:`set_times`: ``best_ns[n]`` is the lane time of n jobs.
    """

    def __init__(self, times: Sequence[Tuple[int, int]] = ()) -> None:
        self.times: List[Tuple[int, int]] = []
        self.best_ns: List[int] = [0]
        self._first: List[int] = [0]
        self.set_times(times)

    def set_times(self, times: Sequence[Tuple[int, int]]) -> None:
        """(size, time of such a batch), rising in size."""
        self.times = list(times)
        self.best_ns, self._first = [0], [0]

    def time_ns(self, count: int) -> int:
        """Lane time of ``count`` jobs."""
        if count > COUNT_MAX:
            return self.time_ns(COUNT_MAX) * count // COUNT_MAX
        if count >= len(self.best_ns):
            self._extend(count)
        return self.best_ns[count]

    def first(self, count: int) -> int:
        """The number of ``count`` jobs that go into the first batch."""
        known = min(count, COUNT_MAX)
        if known >= len(self.best_ns):
            self._extend(known)
        return min(count, self._first[known])

    def batches(self, count: int) -> List[Tuple[int, int]]:
        """(jobs, time) of the batches of ``count`` jobs (:data:`COUNT_MAX` at most), in their order."""
        count = min(count, COUNT_MAX)
        if count >= len(self.best_ns):
            self._extend(count)
        found: List[Tuple[int, int]] = []
        while count > 0:
            taken = min(count, self._first[count])
            found.append((taken, self.best_ns[count] - self.best_ns[count - taken]))
            count -= taken
        return found

    def _extend(self, count: int) -> None:
        best_ns, first, times = self.best_ns, self._first, self.times
        while len(best_ns) <= count:
            here = len(best_ns)
            found_ns, found_size = -1, 0
            for size, time_ns in times:
                total_ns = time_ns + (best_ns[here - size] if here > size else 0)
                if found_ns < 0 or total_ns <= found_ns:
                    found_ns, found_size = total_ns, size
                if size >= here:
                    break  # a larger one would only hold padding
            best_ns.append(found_ns)
            first.append(found_size)
