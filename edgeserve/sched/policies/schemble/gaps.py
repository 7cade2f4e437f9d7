"""What lies between two batches on a lane: news of the end of one, the decision, the launch of the next.

A plan that counts batches alone believes in more of them than the lane runs: where models take a millisecond and the
gap as long, batches of one look as good as batches of eight. Knows no clock.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Final

WINDOW_LEN: Final = 32
"""Gaps that are remembered."""

LEARNT_MIN: Final = 8
"""So many must have been measured before they count."""

PART: Final = 8
"""A gap counts where it is this part of a batch at least: a smaller one is within the spread of batches."""


class Gaps:
    """One lane. A gap is measured where the next batch is given to the lane in the step that hears of the end of the
    one before: else nothing may have waited for the lane."""

    __slots__ = ("_recent", "_likely_ns", "_ended_ns", "_told_ns")

    def __init__(self) -> None:
        self._recent: Deque[int] = deque(maxlen=WINDOW_LEN)
        self._likely_ns = 0
        self._ended_ns = 0  # when the last batch ended, and when the scheduler heard of it
        self._told_ns = -1

    def ended(self, launched_ns: int, started_ns: int, finished_ns: int, now_ns: int) -> None:
        """A batch is over, which was given to the lane at ``launched_ns``."""
        if launched_ns == self._told_ns:
            self._recent.append(max(0, started_ns - self._ended_ns))
            if len(self._recent) >= LEARNT_MIN:
                self._likely_ns = sorted(self._recent)[3 * len(self._recent) // 4]
        self._ended_ns, self._told_ns = finished_ns, now_ns

    def beside_ns(self, batch_ns: int) -> int:
        """The 75th percentile of the last gaps; 0 where it hardly counts beside batches of this time."""
        return self._likely_ns if self._likely_ns * PART >= batch_ns else 0
