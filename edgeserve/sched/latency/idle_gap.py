"""How much slower a lane's first batch after an idle gap is, learnt per lane.

The governor of a device that idles lowers its clock and needs a moment to raise it again. So the first batch after a
gap is slower than the batches that follow it: beside what the latency model believes of warm batches, by one factor.
Knows no clock.
"""

from __future__ import annotations

from collections import deque
from typing import Deque

LEARNT_LEN = 8
"""First batches that the factor looks back on."""

LEARNT_MIN = 3
"""So many must have been measured before anything is expected."""

STEP = 8
"""The factor is told in eighths, and only where the gap costs an eighth at least: every change makes all tables of the
lane anew."""

FACTOR_MAX = 8.0
"""No first batch counts as slower than this: it was held up by something else."""


class IdleGap:
    """One lane. ``cold``: it has been idle for ``gap_ns``, so that its next batch is the first after a gap; ``factor``
    is how many times longer that one is expected to take, 1.0 where it hardly matters."""

    __slots__ = ("gap_ns", "cold", "factor", "ended_ns", "_ratios")

    def __init__(self, gap_ns: int, now_ns: int) -> None:
        self.gap_ns = gap_ns
        self.cold = False
        self.factor = 1.0
        self.ended_ns = now_ns  # when the last batch ended
        self._ratios: Deque[float] = deque(maxlen=LEARNT_LEN)

    def turns_cold(self, now_ns: int, busy: bool) -> bool:
        """Whether the lane has just been idle for long enough."""
        if self.cold or busy or now_ns - self.ended_ns < self.gap_ns:
            return False
        self.cold = True
        return True

    def learn(self, took_ns: int, warm_ns: int) -> None:
        """A first batch took so long, and a warm one of its kind would have taken ``warm_ns``."""
        self._ratios.append(min(FACTOR_MAX, max(1.0, took_ns / max(1, warm_ns))))
        if len(self._ratios) >= LEARNT_MIN:
            ordered = sorted(self._ratios)
            middle = round(ordered[len(ordered) // 2] * STEP) / STEP
            self.factor = middle if middle > 1.0 else 1.0
