"""Unequal inputs, seen from outside: how unequal a model's inputs are, and what that does to larger batches.

A batch takes as long as its longest input makes it. A profile that was measured with one input knows nothing of that:
it says that eight take what eight copies of that input do, and where eight inputs differ, the longest of them may be
three times as long. What tells unequal inputs from a slow device is the spread: on a slow device every batch takes as
much longer, with unequal inputs batches of one size differ. So the spread of the growing part of measured times, as the
deviation of its logarithm, tells how much longer than the usual input the longest of any number of inputs is expected
to be. Successive batches are compared, so that a pace that drifts is no spread; what noise explains counts as none.

A spread alone does not tell that the longest input decides. Where every input adds its own time (a batch runs its
inputs one after another, or its tokens count), batches differ too, but larger ones take as long as the profile says.
So the spread counts only where the times themselves show a third of the rise that it tells of: from the profile to
what was measured, and from smaller to larger batches where several sizes ran.

Integers, millionths; logarithms are rounded to them, so that every machine decides alike.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist
from typing import Deque, Dict, List, Mapping, Tuple

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

SHOWN = 3
"""Measured times must show at least one part in so many of what a spread is expected to do to them."""

SIZES_APART = 7
"""The rise from smaller to larger batches is judged by their own times from this sum of squares on (of the expected
maxima's distances from their mean): then the slope is known to a quarter of the skew."""

STEP_PPM = 50_000
"""The skew moves when it is off by this much."""

SKEW_MAX_PPM = 1_200_000
"""Wider spreads count as this one: the longest of eight inputs is then five times as long as the usual one."""

APART_MAX_PPM = 1_400_000
"""Two successive batches are no further apart than this (four times): one outlier makes no spread."""

MEAN_APART_PPM = 1_128_379
"""The mean distance of two draws of a normal distribution, in its deviations: 2 / sqrt(pi)."""

SPREADS_PPM = (
    (1, 1_000_000),
    (2, 825_600),
    (3, 748_000),
    (4, 701_200),
    (6, 644_900),
    (8, 610_700),
    (12, 568_900),
    (16, 543_100),
    (32, 491_500),
)
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

    __slots__ = (
        "skew_ppm",
        "_fixed_ns",
        "_growing_ns",
        "_least_ns",
        "_noises",
        "_longest_ppm",
        "_spread_ppm",
        "_logs",
        "_apart",
        "_counts",
        "_until_next",
    )

    def __init__(self, times_ns: Mapping[int, int], fixed_ns: int) -> None:
        self.skew_ppm = 0
        self._fixed_ns = max(0, min(fixed_ns, min(times_ns.values()) - 1))
        self._growing_ns: Dict[int, int] = {
            size: max(1, time_ns - self._fixed_ns) for size, time_ns in times_ns.items()
        }
        self._least_ns: Dict[int, int] = {
            size: max(1, growing_ns // 20) for size, growing_ns in self._growing_ns.items()
        }
        self._longest_ppm = {size: longest_ppm(size) for size in times_ns}
        self._spread_ppm = {size: spread_ppm(size) for size in times_ns}
        self._noises: List[Tuple[int, int]] = sorted(
            [  # (what noise alone explains, size)
                (NOISE_PPM * max(1, time_ns) // self._growing_ns[size] * PPM // self._spread_ppm[size], size)
                for size, time_ns in times_ns.items()
            ]
        )
        # (size, logarithm of measured over told, how far that is from the batch before), and the sum of the latter
        # without the first; how many there are of each size
        self._logs: Deque[Tuple[int, int, int]] = deque()
        self._apart = 0
        self._counts: Dict[int, int] = dict.fromkeys(times_ns, 0)
        self._until_next = EVERY

    def observe(self, size: int, took_ns: int) -> bool:
        """A batch took so long. True where the skew has changed: then O(:data:`LOOKED_BACK`), else O(1), every few
        batches O(sizes)."""
        counts = self._counts
        if len(counts) < 2:
            return False
        growing_ns = took_ns - self._fixed_ns
        if growing_ns < self._least_ns[size]:
            growing_ns = self._least_ns[size]
        log = round(PPM * math.log(growing_ns / self._growing_ns[size]))
        logs, apart = self._logs, 0
        if logs:
            before, log_before, _ = logs[-1]
            apart = self._distance(size, log, before, log_before)
        logs.append((size, log, apart))
        self._apart += apart
        counts[size] += 1
        if len(logs) > LOOKED_BACK:
            counts[logs.popleft()[0]] -= 1
            self._apart -= logs[0][2]
        self._until_next -= 1
        if self._until_next:
            return False
        self._until_next = EVERY
        count = len(logs)
        if count < FROM:
            return False
        spread = min(SKEW_MAX_PPM, self._apart // (count - 1) * PPM // MEAN_APART_PPM)
        noise = self._noise(count // 2)
        skew_ppm = math.isqrt(spread * spread - noise * noise) if spread * CLEARLY > noise * (CLEARLY + 1) else 0
        if skew_ppm and not self._is_shown(skew_ppm):
            skew_ppm = 0
        if abs(skew_ppm - self.skew_ppm) < STEP_PPM:
            return False
        self.skew_ppm = skew_ppm
        self._measure_apart()
        return True

    def time_ns(self, size: int, time_ns: int) -> int:
        """What a batch takes of which ``time_ns`` is told, with the inputs as unequal as they are."""
        if not self.skew_ppm or size == 1:
            return time_ns
        longer_ppm = round(PPM * math.exp(self.skew_ppm * self._longest_ppm[size] / (PPM * PPM)))
        return time_ns + self._growing_ns[size] * (longer_ppm - PPM) // PPM

    def _is_shown(self, skew_ppm: int) -> bool:
        """Whether the times rise with the expected maxima as inputs so unequal would have it: O(:data:`LOOKED_BACK`).

        Where the longest input decides, the logarithms rise by the skew along the maxima; where all add up, they do
        not. So their mean must be high enough, which a device that is slower than the profile raises too, and so must
        their slope where several sizes ran, which holds at any pace. Lone inputs have no rise to show: the spread of
        those is believed.

        Inputs that add up are usual in the mean, and the mean of a lognormal is half its variance above its middle: the
        logarithm of a batch is too low by that, and of a small batch by more."""
        variance_ppm = skew_ppm * skew_ppm // PPM
        rows = [(self._longest_ppm[size], log + variance_ppm // (2 * size)) for size, log, _ in self._logs]
        count, along = len(rows), sum([longest for longest, _ in rows])
        rise = sum([log for _, log in rows])
        if along and rise * SHOWN < along * skew_ppm // PPM:
            return False
        squares = sum([longest * longest for longest, _ in rows]) // PPM - along * along // (PPM * count)
        if squares < SIZES_APART * PPM:
            return True
        return (
            sum([longest * log for longest, log in rows]) - along * rise // count
        ) // PPM * SHOWN >= squares * skew_ppm // PPM

    def _distance(self, size: int, log: int, before: int, log_before: int) -> int:
        """How far a batch is from the one before it, in the deviation of the maxima of so many inputs. Batches of two
        sizes are usually apart by what the skew does to them."""
        distance = log - log_before
        if size == before:
            return min(APART_MAX_PPM, abs(distance)) * PPM // self._spread_ppm[size]
        distance -= self.skew_ppm * (self._longest_ppm[size] - self._longest_ppm[before]) // PPM
        return min(APART_MAX_PPM, abs(distance)) * 2 * PPM // (self._spread_ppm[size] + self._spread_ppm[before])

    def _measure_apart(self) -> None:
        """The skew has changed, and with it how far batches of two sizes are usually apart."""
        logs = list(self._logs)
        size, log, _ = logs[0]
        for index in range(1, len(logs)):
            before, log_before = size, log
            size, log, _ = logs[index]
            if size != before:
                logs[index] = size, log, self._distance(size, log, before, log_before)
        self._logs.clear()
        self._logs.extend(logs)
        self._apart = sum([apart for _, _, apart in logs]) - logs[0][2]

    def _noise(self, place: int) -> int:
        """What noise explains of the batch that stands at this place, ordered by that."""
        for noise, size in self._noises:
            place -= self._counts[size]
            if place < 0:
                return noise
        raise ValueError(f"{place} places beyond the last batch")
