"""The last measurements of one kind: a bounded window of them, with quantiles. All that is learnt from durations."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Deque, List, Tuple

from edgeserve.units import FOREVER_NS


class Window:
    """The last ``length`` values, none of them older than ``age_ns`` after :meth:`forget`. Integers.

    ``values`` are in rising order; ``newest_ns`` is when the last was added. ``every``: :meth:`add` says when so many
    new values came.
    """

    __slots__ = ("length", "every", "age_ns", "newest_ns", "values", "_rows", "_unseen")

    def __init__(self, length: int, every: int = 1, age_ns: int = FOREVER_NS) -> None:
        self.length = length
        self.every = every
        self.age_ns = age_ns
        self.newest_ns = -FOREVER_NS
        self._rows: Deque[Tuple[int, int]] = deque()  # (when, value), the oldest first
        self.values: List[int] = []
        self._unseen = 0

    def add(self, value: int, now_ns: int = 0) -> bool:
        """A value was measured; the oldest makes room for it. True for every ``every``-th value."""
        values = self.values
        if len(values) == self.length:
            del values[bisect_left(values, self._rows.popleft()[1])]
        self._rows.append((now_ns, value))
        insort(values, value)
        self.newest_ns = now_ns
        self._unseen += 1
        if self._unseen < self.every:
            return False
        self._unseen = 0
        return True

    def forget(self, now_ns: int) -> bool:
        """Let go of values that are older than ``age_ns``. True where there were any. O(1) where there were none."""
        rows, before_ns = self._rows, now_ns - self.age_ns
        if not rows or rows[0][0] >= before_ns:
            return False
        while rows and rows[0][0] < before_ns:
            del self.values[bisect_left(self.values, rows.popleft()[1])]
        return True

    def quantile(self, share: float) -> int:
        """The largest value that is at most this quantile (0: the least value, 1: the largest). ``ValueError`` where
        there is no value."""
        values = self.values
        if not values:
            raise ValueError("a window without values has no quantile: expected at least one value")
        return values[int(share * (len(values) - 1))]

    def rows(self) -> List[Tuple[int, int]]:
        """(when, value) of all values, the oldest first."""
        return list(self._rows)
