"""The dispatch gap of a lane: what passes between two of its batches beside what they run. Knows no clock."""

from __future__ import annotations

from edgeserve.sched.latency.window import Window
from edgeserve.units import NS_PER_MS

DISPATCH_LEN = 32
"""Batches that the dispatch gap looks back on: a lane that has become quicker or slower is believed after so many."""

DISPATCH_EVERY = 8
"""So many must have been measured before anything is expected; as many new ones make the numbers anew."""

DISPATCH_NS_MAX = 10 * NS_PER_MS
"""A longer gap counts as this long: the machine stood still, or the loop was held up by something else."""


class DispatchGap:
    """The gap from the end of a batch until the next one starts, on a lane that is given one batch at a time: the loop
    hears of the end, decides, and wakes the lane's thread. Waiting jobs start later by that for each batch before them.

    ``likely_ns`` is the median of the last gaps, ``careful_ns`` the time that seven of eight took at most; 0 until
    enough were measured. ``version`` rises when a number changes.
    """

    def __init__(self) -> None:
        self.likely_ns = 0
        self.careful_ns = 0
        self.version = 0
        self._window = Window(DISPATCH_LEN, DISPATCH_EVERY)

    def took(self, gap_ns: int) -> None:
        """Note a gap: the time from the decision on a batch until the loop heard of its end, less the batch's own
        time."""
        if self._window.add(max(0, min(DISPATCH_NS_MAX, gap_ns))):
            likely_ns, careful_ns = self._window.quantile(1 / 2), self._window.quantile(7 / 8)
            if (likely_ns, careful_ns) != (self.likely_ns, self.careful_ns):
                self.likely_ns, self.careful_ns = likely_ns, careful_ns
                self.version += 1
