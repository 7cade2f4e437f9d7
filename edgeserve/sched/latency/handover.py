"""What lies between two batches of a lane beside the batches themselves, learnt per lane.

A lane that is given one batch at a time stands still from the end of a batch until the next one starts: the loop has
to hear of the end, decide, and wake the lane's thread. What waits for a lane starts later by that, once for each batch
that goes before it. Knows no clock.
"""

from __future__ import annotations

from collections import deque
from typing import Deque

from edgeserve.units import NS_PER_MS

WINDOW_LEN = 32
"""Batches looked back on: a lane that has become quicker or slower is believed after so many."""

LEARNT_MIN = 8
"""So many must have been measured before anything is expected; as many new ones make the numbers anew."""

HANDOVER_NS_MAX = 10 * NS_PER_MS
"""A longer one counts as this long: the machine stood still, or the loop was held up by something else."""


class Handover:
    """One lane. ``likely_ns`` is the median of the last batches' handovers, ``careful_ns`` what seven of eight took at
    most; 0 until enough were measured. A few that were held up (four of a full window) move ``careful_ns`` no further
    than the worst of the others. ``version`` rises when a number changes.
    """

    __slots__ = ("likely_ns", "careful_ns", "version", "_recent", "_unseen")

    def __init__(self) -> None:
        self.likely_ns = 0
        self.careful_ns = 0
        self.version = 0
        self._recent: Deque[int] = deque(maxlen=WINDOW_LEN)
        self._unseen = 0

    def took(self, handover_ns: int) -> None:
        """From the decision on a batch until the loop heard of its end, less what the batch itself took."""
        self._recent.append(max(0, min(HANDOVER_NS_MAX, handover_ns)))
        self._unseen += 1
        if self._unseen >= LEARNT_MIN:
            self._unseen = 0
            ordered = sorted(self._recent)
            likely_ns, careful_ns = ordered[(len(ordered) - 1) // 2], ordered[7 * (len(ordered) - 1) // 8]
            if (likely_ns, careful_ns) != (self.likely_ns, self.careful_ns):
                self.likely_ns, self.careful_ns = likely_ns, careful_ns
                self.version += 1
