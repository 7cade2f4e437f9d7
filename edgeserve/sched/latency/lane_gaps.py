"""What a lane's batches take beside what they run: the dispatch gap between two of them, and what an idle gap costs.

Both are learnt per lane, from windows of measurements. Neither knows a clock.
"""

from __future__ import annotations

from edgeserve.sched.latency.window import Window
from edgeserve.units import NS_PER_MS

PPM = 1_000_000

DISPATCH_LEN = 32
"""Batches that the dispatch gap looks back on: a lane that has become quicker or slower is believed after so many."""

DISPATCH_EVERY = 8
"""So many must have been measured before anything is expected; as many new ones make the numbers anew."""

DISPATCH_NS_MAX = 10 * NS_PER_MS
"""A longer gap counts as this long: the machine stood still, or the loop was held up by something else."""

IDLE_LEN = 8
"""First batches after an idle gap that the factor looks back on."""

IDLE_FROM = 3
"""So many must have been measured before anything is expected."""

STEP = 8
"""The factor of an idle gap is told in eighths, and only where the gap costs an eighth at least: every change makes all
tables of the lane anew."""

FACTOR_MAX = 8
"""No first batch counts as slower than this: something else held it up."""


class DispatchGap:
    """From the end of a batch until the next one starts, on a lane that is given one batch at a time: the loop hears of
    the end, decides, and wakes the lane's thread. What waits for the lane starts later by that, once for each batch
    that goes before it.

    ``likely_ns`` is the median of the last gaps, ``careful_ns`` what seven of eight took at most; 0 until enough were
    measured. A few that were held up (four of a full window) move ``careful_ns`` no further than the worst of the
    others. ``version`` rises when a number changes.
    """

    __slots__ = ("likely_ns", "careful_ns", "version", "_window")

    def __init__(self) -> None:
        self.likely_ns = 0
        self.careful_ns = 0
        self.version = 0
        self._window = Window(DISPATCH_LEN, DISPATCH_EVERY)

    def took(self, gap_ns: int) -> None:
        """From the decision on a batch until the loop heard of its end, less what the batch itself took."""
        if self._window.add(max(0, min(DISPATCH_NS_MAX, gap_ns))):
            likely_ns, careful_ns = self._window.quantile(1 / 2), self._window.quantile(7 / 8)
            if (likely_ns, careful_ns) != (self.likely_ns, self.careful_ns):
                self.likely_ns, self.careful_ns = likely_ns, careful_ns
                self.version += 1


class IdleGap:
    """How much slower a lane's first batch after an idle gap is, beside warm batches, by one factor: the governor of an
    idle device lowers its clock, and needs a moment to raise it again.

    ``cold``: the lane has been idle for ``gap_ns``, so that its next batch is the first after a gap; ``factor`` is how
    many times longer that one is expected to take, 1.0 where it hardly matters.
    """

    __slots__ = ("gap_ns", "cold", "factor", "ended_ns", "_window")

    def __init__(self, gap_ns: int, now_ns: int) -> None:
        self.gap_ns = gap_ns
        self.cold = False
        self.factor = 1.0
        self.ended_ns = now_ns  # when the last batch ended
        self._window = Window(IDLE_LEN)  # of factors, in millionths

    def turns_cold(self, now_ns: int, busy: bool) -> bool:
        """Whether the lane has just been idle for long enough."""
        if self.cold or busy or now_ns - self.ended_ns < self.gap_ns:
            return False
        self.cold = True
        return True

    def learn(self, took_ns: int, warm_ns: int) -> None:
        """A first batch took so long, and a warm one of its kind would have taken ``warm_ns``."""
        self._window.add(min(FACTOR_MAX * PPM, max(PPM, took_ns * PPM // max(1, warm_ns))))
        if self._window.count >= IDLE_FROM:
            self.factor = round(self._window.quantile(1 / 2) * STEP / PPM) / STEP
