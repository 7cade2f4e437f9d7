"""True if stated quantiles hold: of the batches that were said to end by a time with 90 %, how many did?

What is stated is corrected by what happened. After a batch that took longer than stated, the next statements are a
little later, after one that kept it, a ninth of that earlier (adaptive conformal inference, Gibbs and Candes, 2021):
for any error of the prediction and any shift of the inputs, the share that holds in the long run is the one
that was stated. A model of independent lengths cannot know of a kernel that is slow at one width; the factor does.
Knows no model, no clock and no policy.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Deque, Dict, Tuple

QUANTILE = 0.9
"""The quantile that is stated."""

STEP = 0.05
"""The distance by which one batch moves the factor, in its logarithm: a miss by 4.6 %, a hit by 0.5 %. A shift that
makes all batches half as long again is made up for by nine of them; at rest the factor trembles by a few percent."""

FACTOR_MAX = 8.0
"""The factor stays between this and one over it."""

HITS_LEN = 200
"""Batches of which :meth:`Calibration.recent` tells the share."""


class Calibration:
    """States by when a batch ends with :data:`QUANTILE`, and counts how often that was true.

    ``stated`` batches have ended, ``covered`` of them in time, ``uncorrected`` by the model's own quantile;
    :meth:`recent` is the share kept of the last ones.
    """

    __slots__ = ("stated", "covered", "uncorrected", "_hits", "_open", "_factor")

    def __init__(self) -> None:
        self.stated = 0
        self.covered = 0
        self.uncorrected = 0
        self._hits: Deque[bool] = deque(maxlen=HITS_LEN)
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
        self.covered += hit
        self.uncorrected += took_ns <= predicted_ns
        self._hits.append(hit)
        moved = self._factor * math.exp(STEP * ((0.0 if hit else 1.0) - (1.0 - QUANTILE)))
        self._factor = min(FACTOR_MAX, max(1.0 / FACTOR_MAX, moved))

    def lost(self, work_id: int) -> None:
        """A batch never ended: forget what was stated."""
        self._open.pop(work_id, None)

    def recent(self) -> float:
        """The share of the last :data:`HITS_LEN` batches that ended by what was stated; 1 before the first."""
        return sum(self._hits) / len(self._hits) if self._hits else 1.0
