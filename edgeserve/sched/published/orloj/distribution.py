"""Distributions of durations: quantiles, ``P(finish by)``, the maximum of independent draws. Floats, rounded up on the
way out."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Iterable, List, Sequence

from edgeserve.config.profiles import QUANTILES
from edgeserve.sched.latency.batch_time import WINDOW_LEN, BatchTime


class Distribution:
    """A distribution of times in nanoseconds as rising points ``(time, P(T <= time))``, linear in between.

    Immutable. Built from samples, from stored quantiles, or as the maximum of others. All reads are O(log points).
    """

    __slots__ = ("times_ns", "shares", "_mean_ns")

    def __init__(self, times_ns: Sequence[float], shares: Sequence[float]) -> None:
        if not times_ns or len(times_ns) != len(shares):
            raise ValueError(
                f"a distribution needs as many times as shares, at least one: got {len(times_ns)} and {len(shares)}"
            )
        self.times_ns = tuple(float(time) for time in times_ns)
        self.shares = tuple(shares)
        self._mean_ns = -1.0

    @classmethod
    def of_samples(cls, samples_ns: Iterable[float]) -> Distribution:
        """The empirical distribution: the i-th of n sorted samples is the quantile ``i / (n - 1)``."""
        times = sorted(samples_ns)
        last = max(1, len(times) - 1)
        return cls(times, [index / last if len(times) > 1 else 1.0 for index in range(len(times))])

    def p_by(self, time_ns: float) -> float:
        """P(T <= time_ns)."""
        times = self.times_ns
        if time_ns < times[0]:
            return 0.0
        if time_ns >= times[-1]:
            return 1.0
        right = bisect_left(times, time_ns)
        if times[right] == time_ns:
            while times[right + 1] == time_ns:  # the last one is later
                right += 1
            return self.shares[right]
        left = right - 1
        part = (time_ns - times[left]) / (times[right] - times[left])
        return self.shares[left] + part * (self.shares[right] - self.shares[left])

    def quantile_ns(self, share: float) -> int:
        """The time by which a ``share`` of the draws is over, rounded up."""
        if share <= self.shares[0]:
            return math.ceil(self.times_ns[0])
        right = bisect_left(self.shares, share)
        if right >= len(self.shares):
            return math.ceil(self.times_ns[-1])
        left = right - 1
        rise = self.shares[right] - self.shares[left]
        part = (share - self.shares[left]) / rise if rise else 1.0
        return math.ceil(self.times_ns[left] + part * (self.times_ns[right] - self.times_ns[left]))

    def mean_ns(self) -> float:
        """E[T], exact for the piecewise linear distribution; computed once."""
        if self._mean_ns < 0:
            times, shares = self.times_ns, self.shares
            parts = [
                (high - low) * (after + before)
                for low, high, before, after in zip(shares, shares[1:], times, times[1:])
            ]
            self._mean_ns = shares[0] * times[0] + sum(parts) / 2
        return self._mean_ns

    def scaled(self, factor: float) -> Distribution:
        """The distribution of ``factor * T``."""
        return Distribution([time * factor for time in self.times_ns], self.shares)

    @staticmethod
    def maximum(parts: Sequence[Distribution]) -> Distribution:
        """The maximum of independent draws: the product of the CDFs (Orloj, section 2 of the specification), read at
        every point of the parts and at four between each two, since a product of lines is no line."""
        knots = sorted({time for part in parts for time in part.times_ns})
        times: List[float] = []
        for left, right in zip(knots, knots[1:]):
            times.extend(left + (right - left) * step / 5 for step in range(5))
        times.append(knots[-1])
        return Distribution(times, [math.prod(part.p_by(time) for part in parts) for time in times])


def known_of(latency: BatchTime, size: int) -> Distribution:
    """All that is known of a batch of this size, at the present speed: its last durations if there are enough, else the
    profile."""
    seed, durations_ns = latency.seeds[size], latency.durations_ns(size)
    if len(durations_ns) == WINDOW_LEN:
        known = Distribution.of_samples(durations_ns)
    elif seed.quantiles_ns:
        known = Distribution(seed.quantiles_ns, QUANTILES)
    else:
        known = Distribution([seed.median_ns, seed.p99_ns], [0.5, 1.0])
    return known.scaled(1 / latency.speed)
