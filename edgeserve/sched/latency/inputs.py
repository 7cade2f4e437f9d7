"""Input variance, seen from outside: how unequal a model's inputs are, and what that does to larger batches.

A batch takes as long as its longest input makes it, and a profile that was measured with one input does not know that.
On a slow device every batch takes as much longer; with unequal inputs batches of one size differ. So the spread of the
growing part of measured times, as the deviation of its logarithm, tells how much longer than the usual input the
longest of any number is expected to be. Successive batches are compared, so that a slowdown that changes is no spread.

Where every input adds its own time, batches differ too, but larger ones take as long as the profile says. So the spread
counts only where the times show a third of the rise that it tells of: from the profile to what was measured, and from
smaller to larger batches where several sizes ran. Integers, millionths, so that every machine decides alike.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist
from typing import Deque, Dict, List, Mapping, Tuple

from edgeserve.units import PPM

LOOKED_BACK = 48
"""Batches whose spread is looked at, of any size, whenever a quarter of them is new; fewer tell of no spread."""

NOISE_PPM = 120_000
"""Deviation of whole batch times that noise alone explains: a spread up to this is none."""

SHOWN = 3
"""Measured times must show at least one part in so many of what a spread is expected to do to them."""

SIZES_APART = 7
"""The rise from smaller to larger batches is judged by their own times from this sum of squares on (of the expected
maxima's distances from their mean): then the slope is known to a quarter of the deviation."""

STEP_PPM = 50_000
"""The deviation moves when it is off by this much."""

APART_MAX_PPM = 1_400_000
"""Two successive batches are no further apart than this (four times): one outlier makes no spread."""

DEVIATION_MAX_PPM = 1_200_000
"""Wider spreads count as this one: the longest of eight inputs is then five times as long as the usual one."""

MEAN_APART = 2 / math.sqrt(math.pi)
"""The mean distance of two draws of a normal distribution, in its deviations."""

ONE_DEVIATION = NormalDist().cdf(1.0)


def longest_ppm(count: int) -> int:
    """The expected maximum of so many standard normal draws, by Blom's formula."""
    return round(PPM * NormalDist().inv_cdf((count - 0.375) / (count + 0.25)))


def spread_ppm(count: int) -> int:
    """The deviation of that maximum: half of what its quantiles at one deviation to either side are apart."""
    high, low = [NormalDist().inv_cdf(share ** (1 / count)) for share in (ONE_DEVIATION, 1 - ONE_DEVIATION)]
    return round(PPM * (high - low) / 2)


class InputVariance:
    """How unequal the inputs of one model are. ``deviation_ppm`` is the deviation of the logarithm of what an input
    adds to a batch's fixed part, 0 where noise explains all. :meth:`observe` alone changes it.

    ``times_ns`` are the profiled times by batch size, ``fixed_ns`` is the part that the inputs leave alone.
    """

    def __init__(self, times_ns: Mapping[int, int], fixed_ns: int) -> None:
        self.deviation_ppm = 0
        self._fixed_ns = max(0, min(fixed_ns, min(times_ns.values()) - 1))
        self._growing_ns: Dict[int, int] = {
            size: max(1, time_ns - self._fixed_ns) for size, time_ns in times_ns.items()
        }
        self._longest_ppm: Dict[int, int] = {size: longest_ppm(size) for size in times_ns}
        self._spread_ppm: Dict[int, int] = {size: spread_ppm(size) for size in times_ns}
        self._noise_ppm: Dict[int, int] = {  # what noise alone explains of the spread
            size: NOISE_PPM * max(1, time_ns) // self._growing_ns[size] * PPM // self._spread_ppm[size]
            for size, time_ns in times_ns.items()
        }
        self._logs: Deque[Tuple[int, int]] = deque(maxlen=LOOKED_BACK)  # (size, log of measured over profiled growth)
        self._new = 0

    def observe(self, size: int, took_ns: int) -> bool:
        """A batch took so long. True where the deviation has changed. O(1), but every few batches
        O(:data:`LOOKED_BACK`)."""
        usual_ns = self._growing_ns[size]
        growing_ns = max(took_ns - self._fixed_ns, usual_ns // 20, 1)
        self._logs.append((size, round(PPM * math.log(growing_ns / usual_ns))))
        self._new += 1
        if 4 * self._new < LOOKED_BACK or len(self._growing_ns) < 2:
            return False
        self._new = 0
        deviation_ppm = self._beyond_noise_ppm()
        if not self._is_shown(deviation_ppm):
            deviation_ppm = 0
        if abs(deviation_ppm - self.deviation_ppm) < STEP_PPM:
            return False
        self.deviation_ppm = deviation_ppm
        return True

    def time_ns(self, size: int, time_ns: int) -> int:
        """What a batch takes that is profiled to take ``time_ns``, with the inputs as unequal as they are."""
        if not self.deviation_ppm:
            return time_ns
        longer = math.exp(self.deviation_ppm * self._longest_ppm[size] / (PPM * PPM))
        return time_ns + self._growing_ns[size] * round(PPM * (longer - 1)) // PPM

    def _beyond_noise_ppm(self) -> int:
        """The deviation that the distances of successive batches tell of, less what noise explains of it."""
        rows = list(self._logs)
        apart_ppm = noise_ppm = 0
        for (before, log_before), (size, log) in zip(rows, rows[1:]):
            distance = log - log_before
            distance -= self.deviation_ppm * (self._longest_ppm[size] - self._longest_ppm[before]) // PPM
            spread = self._spread_ppm[size] + self._spread_ppm[before]
            apart_ppm += min(APART_MAX_PPM, abs(distance)) * 2 * PPM // spread
            noise_ppm += self._noise_ppm[size]
        count = len(rows) - 1
        found, noise = min(DEVIATION_MAX_PPM, round(apart_ppm / count / MEAN_APART)), noise_ppm // count
        return math.isqrt(found * found - noise * noise) if found > noise else 0

    def _is_shown(self, deviation_ppm: int) -> bool:
        """Whether the times rise with the expected maxima as inputs so unequal would have it.

        Where the longest input decides, the logarithms rise by the deviation along the maxima. So their mean must be
        high enough, which a slow device raises too, and so must their slope where several sizes ran. Lone inputs have
        no rise to show: their spread is believed. The mean of a lognormal is half its variance above its middle: the
        logarithm of a batch is too low by that, and of a small batch by more."""
        variance_ppm = deviation_ppm * deviation_ppm // PPM
        rows: List[Tuple[int, int]] = [
            (self._longest_ppm[size], log + variance_ppm // (2 * size)) for size, log in self._logs
        ]
        count, along = len(rows), sum([longest for longest, _ in rows])
        rise = sum([log for _, log in rows])
        if along and rise * SHOWN < along * deviation_ppm // PPM:
            return False
        squares = sum([longest * longest for longest, _ in rows]) // PPM - along * along // (PPM * count)
        if squares < SIZES_APART * PPM:
            return True
        slope = (sum([longest * log for longest, log in rows]) - along * rise // count) // PPM
        return slope * SHOWN >= squares * deviation_ppm // PPM
