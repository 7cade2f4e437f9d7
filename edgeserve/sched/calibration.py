"""Whether stated quantiles hold: of the batches that were said to end by a time with 90 %, how many did?

What is stated is corrected by what happened: the predicted quantile times the factor that would have been right for
the last batches (split conformal prediction). A model of independent lengths cannot know of a kernel that is slow at
one width; the factor does. Knows no model, no clock and no policy.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Deque, Dict, Tuple

QUANTILE = 0.9
"""The quantile that is stated."""

RATIOS_LEN = 200
"""Batches that the correction looks back on: the 0.9-quantile of so many has a standard error of 2 points."""

RATIOS_LEN_MIN = 20
"""Before so many the prediction is stated as it is."""


class Calibration:
    """States by when a batch ends with :data:`QUANTILE`, and counts how often that was true.

    ``stated`` batches have ended, ``kept`` of them in time; :meth:`recent` is the share of the last ones.
    """

    __slots__ = ("stated", "kept", "_ratios", "_hits", "_open", "_factor")

    def __init__(self) -> None:
        self.stated = 0
        self.kept = 0
        self._ratios: Deque[float] = deque(maxlen=RATIOS_LEN)
        self._hits: Deque[bool] = deque(maxlen=RATIOS_LEN)
        self._open: Dict[int, Tuple[int, int]] = {}  # work -> predicted, stated
        self._factor = 1.0

    def state(self, work_id: int, predicted_ns: int) -> int:
        """The time in ns that a batch ends within, with 90 %, given the model's own 0.9-quantile."""
        stated_ns = math.ceil(predicted_ns * self._factor)
        self._open[work_id] = (predicted_ns, stated_ns)
        return stated_ns

    def ended(self, work_id: int, took_ns: int) -> None:
        """A batch took so long. Batches that nothing was stated of are ignored."""
        entry = self._open.pop(work_id, None)
        if entry is None:
            return
        predicted_ns, stated_ns = entry
        hit = took_ns <= stated_ns
        self.stated += 1
        self.kept += hit
        self._hits.append(hit)
        self._ratios.append(took_ns / max(1, predicted_ns))
        if len(self._ratios) >= RATIOS_LEN_MIN:
            ordered = sorted(self._ratios)
            self._factor = ordered[min(len(ordered) - 1, math.ceil(QUANTILE * (len(ordered) + 1)) - 1)]

    def lost(self, work_id: int) -> None:
        """A batch never ended: forget what was stated."""
        self._open.pop(work_id, None)

    def recent(self) -> float:
        """The share of the last :data:`RATIOS_LEN` batches that ended by what was stated; 1 before the first."""
        return sum(self._hits) / len(self._hits) if self._hits else 1.0
