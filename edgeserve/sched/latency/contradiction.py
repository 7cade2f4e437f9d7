"""Whether served batches contradict what the estimates of a model began with: profile, ``expected`` or start-up.

Estimates follow the served batches by themselves. But they fall back to their beginning after a pause, and begin there
at each start, so somebody should correct it. Pure; the live world says it (``live/estimates.py``).
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Mapping, NamedTuple, Tuple

from edgeserve.units import NS_PER_MS

SERVED_LEN = 10
"""Batches that have to be measured first; so many of the latest are looked at."""

SERVED_EVERY_NS = 100 * NS_PER_MS
"""One batch in so long is looked at, so that ten of them are no hiccup of a few milliseconds."""

FACTOR_MILLI = 1500
"""Times that differ by less than this factor, in thousandths, contradict nothing: other load does as much."""

DIFFERENCE_NS_MIN = NS_PER_MS // 10
"""Nor do times that differ by less than this: a thread that wakes up late takes as much."""


class Contradiction(NamedTuple):
    """Batches of ``size`` take ``served_ns`` and were believed to take ``began_ns`` (both at speed 1), as most of the
    ``batches`` that were looked at. ``source`` says who believed that (``confidence.py``)."""

    source: str
    size: int
    began_ns: int
    served_ns: int
    batches: int


class Served:
    """The latest served batches beside what they were believed to take at first. ``due_ns`` is when the next one is to
    be looked at."""

    __slots__ = ("due_ns", "_believed_ns", "_fixed_ns", "_rows")

    def __init__(self, believed_ns: Mapping[int, int], fixed_ns: int) -> None:
        self.due_ns = 0
        self._believed_ns = believed_ns
        self._fixed_ns = fixed_ns
        self._rows: Deque[Tuple[int, int, int]] = deque(maxlen=SERVED_LEN)  # (size, believed, took)

    def observe(self, now_ns: int, size: int, took_ns: int, over_milli: int) -> None:
        """A batch took so long at speed 1, and its jobs were said to be ``over_milli`` thousandths of a usual job more
        work than usual ones: that part grows with the batch."""
        self.due_ns = now_ns + SERVED_EVERY_NS
        usual_ns = self._believed_ns[size]
        believed_ns = usual_ns + max(0, usual_ns - self._fixed_ns) * over_milli // (1000 * size)
        self._rows.append((size, max(1, believed_ns), took_ns))

    def contradiction(self, sources: Mapping[int, str]) -> Contradiction | None:
        """The contradiction, where more than half of the latest batches have it. O(1)."""
        if len(self._rows) < SERVED_LEN:
            return None
        rows = sorted(
            [(took_ns * 1000 // believed_ns, size, believed_ns, took_ns) for size, believed_ns, took_ns in self._rows]
        )
        row = rows[(SERVED_LEN - 1) // 2]  # more than half are at least as slow, beside the belief
        if row[0] <= FACTOR_MILLI:
            row = rows[SERVED_LEN // 2]  # more than half are at least as fast
            if row[0] * FACTOR_MILLI >= 1_000_000:
                return None
        _, size, believed_ns, took_ns = row
        if abs(took_ns - believed_ns) < DIFFERENCE_NS_MIN:
            return None
        return Contradiction(sources[size], size, believed_ns, took_ns, SERVED_LEN)
