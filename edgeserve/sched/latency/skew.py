"""Unequal inputs, seen from outside: how unequal a model's inputs are, and what that does to larger batches.

A batch takes as long as its longest input makes it. A profile that was measured with one input knows nothing of that:
it says that eight take what eight copies of that input do, and where eight inputs differ, the longest of them may be
three times as long. What tells unequal inputs from a slow device is the spread: on a slow device every batch takes as
much longer, with unequal inputs batches of one size differ. So the spread of the growing part of measured times, as the
deviation of its logarithm, tells how much longer than the usual input the longest of any number of inputs is expected
to be. Successive batches are compared, so that a pace that drifts is no spread; what noise explains counts as none.

Integers, millionths; logarithms are rounded to them, so that every machine decides alike.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist
from typing import Deque, Dict, Mapping, Tuple

PPM = 1_000_000

LOOKED_BACK = 48
"""Batches whose spread is looked at, of any size."""

FROM = 12
"""Fewer batches tell of no spread."""

EVERY = 4
"""The spread is looked at again after so many batches."""

NOISE_PPM = 120_000
"""Deviation of whole batch times that noise alone explains: a spread up to this is none."""

CLEARLY = 4
"""A spread counts that is more than noise's by one part in so many: that of 48 batches is known to a tenth."""

STEP_PPM = 50_000
"""The skew moves when it is off by this much."""

SKEW_MAX_PPM = 1_200_000
"""Wider spreads count as this one: the longest of eight inputs is then five times as long as the usual one."""

APART_MAX_PPM = 1_400_000
"""Two successive batches are no further apart than this (four times): one outlier makes no spread."""

MEAN_APART_PPM = 1_128_379
"""The mean distance of two draws of a normal distribution, in its deviations: 2 / sqrt(pi)."""

SPREADS_PPM = ((1, 1_000_000), (2, 825_600), (3, 748_000), (4, 701_200), (6, 644_900), (8, 610_700), (12, 568_000),
               (16, 546_000), (32, 497_000))
"""Deviation of the maximum of so many standard normal draws (tables of order statistics)."""


def longest_ppm(size: int) -> int:
    """The expected maximum of so many standard normal draws, by Blom's formula."""
    return 0 if size == 1 else round(PPM * NormalDist().inv_cdf((size - 0.375) / (size + 0.25)))


def spread_ppm(size: int) -> int:
    """The deviation of that maximum."""
    return [spread for count, spread in SPREADS_PPM if count <= size][-1]


class Skew:
    """How unequal the inputs are: ``skew_ppm``, the deviation of the logarithm of what an input adds to the fixed part,
    0 where noise explains all. :meth:`observe` alone changes it."""

    __slots__ = ("skew_ppm", "_fixed_ns", "_growing_ns", "_noise_ppm", "_longest_ppm", "_spread_ppm", "_logs", "_count")

    def __init__(self, times_ns: Mapping[int, int], fixed_ns: int) -> None:
        self.skew_ppm = 0
        self._fixed_ns = max(0, min(fixed_ns, min(times_ns.values()) - 1))
        self._growing_ns: Dict[int, int] = {size: max(1, time_ns - self._fixed_ns)
                                            for size, time_ns in times_ns.items()}
        self._longest_ppm = {size: longest_ppm(size) for size in times_ns}
        self._spread_ppm = {size: spread_ppm(size) for size in times_ns}
        self._noise_ppm: Dict[int, int] = {size: NOISE_PPM * max(1, time_ns) // self._growing_ns[size] * PPM
                                           // self._spread_ppm[size] for size, time_ns in times_ns.items()}
        self._logs: Deque[Tuple[int, int]] = deque(maxlen=LOOKED_BACK)  # (size, logarithm of measured over told)
        self._count = 0

    def observe(self, size: int, took_ns: int) -> bool:
        """A batch took so long. True where the skew has changed. O(1), every few batches O(:data:`LOOKED_BACK`)."""
        growing_ns = max(1, self._growing_ns[size] // 20, took_ns - self._fixed_ns)
        self._logs.append((size, round(PPM * math.log(growing_ns / self._growing_ns[size]))))
        self._count += 1
        if len(self._logs) < FROM or self._count % EVERY or len(self._growing_ns) < 2:
            return False
        spread = min(SKEW_MAX_PPM, self._spread_of())
        noises = sorted([self._noise_ppm[its_size] for its_size, _ in self._logs])
        noise = noises[len(noises) // 2]
        skew_ppm = math.isqrt(spread * spread - noise * noise) if spread * CLEARLY > noise * (CLEARLY + 1) else 0
        if abs(skew_ppm - self.skew_ppm) < STEP_PPM:
            return False
        self.skew_ppm = skew_ppm
        return True

    def time_ns(self, size: int, time_ns: int) -> int:
        """What a batch takes of which ``time_ns`` is told, with the inputs as unequal as they are."""
        if not self.skew_ppm or size == 1:
            return time_ns
        longer_ppm = round(PPM * math.exp(self.skew_ppm * self._longest_ppm[size] / (PPM * PPM)))
        return time_ns + self._growing_ns[size] * (longer_ppm - PPM) // PPM

    def _spread_of(self) -> int:
        """The deviation of an input's logarithm that explains the distances between successive batches."""
        skew, logs = self.skew_ppm, list(self._logs)
        apart = 0
        for (size, log), (before, log_before) in zip(logs[1:], logs):
            usual = skew * (self._longest_ppm[size] - self._longest_ppm[before]) // PPM
            distance = min(APART_MAX_PPM, abs(log - log_before - usual))
            apart += distance * 2 * PPM // (self._spread_ppm[size] + self._spread_ppm[before])
        return apart // (len(logs) - 1) * PPM // MEAN_APART_PPM
