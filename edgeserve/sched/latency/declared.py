"""The share of declared work that shows in the times of batches.

The slope of the measured times over what they would be if every hint ``work`` was right: 1 where hints are right, less
the more they err, 0 where they tell nothing. Hints count as much as that, so a wrong one does no harm for long.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Tuple

from edgeserve.units import PPM

LOOKED_BACK = 64
"""Batches that the slope is of; the first quarter of them believes the hints."""

RENEWED_EVERY = 4
"""Batches after which the slope is computed again."""


class DeclaredShare:
    """``share_ppm``: the part of declared extra work that counts, in millionths. :meth:`observe` alone changes it."""

    def __init__(self) -> None:
        self.share_ppm = PPM
        self._rows: Deque[Tuple[int, int]] = deque(maxlen=LOOKED_BACK)
        self._new = 0

    def observe(self, declared_ppm: int, took_ppm: int) -> None:
        """A batch was declared to take so much longer than a standard one, and took so many times that one's time."""
        self._rows.append((declared_ppm, took_ppm))
        self._new += 1
        count = len(self._rows)
        if self._new < RENEWED_EVERY or count * 4 < LOOKED_BACK:
            return
        self._new = 0
        declared_mean = sum([declared for declared, _ in self._rows]) // count
        took_mean = sum([took for _, took in self._rows]) // count
        squares = sum([(declared - declared_mean) ** 2 for declared, _ in self._rows])
        if squares:  # else all declare the same: nothing tells hints from a slow device
            along = sum([(declared - declared_mean) * (took - took_mean) for declared, took in self._rows])
            self.share_ppm = max(0, min(PPM, along * PPM // squares))
