"""Latency as a distribution: profile first, a rolling window of measured durations after, scaled by lane speed.

:class:`Distribution` is the general form (quantiles, ``P(finish by)``, the maximum of independent draws).
:class:`ModelLatency` is what the policies ask many times a step: one model on one lane, integer estimates per batch
size, cached. The estimate is the rolling 99th percentile of the last ten durations, that is their maximum
(Clockwork, section 3); before the first measurement it is the profile's 99th percentile.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from typing import Deque, Dict, Iterable, List, Mapping, Sequence, Tuple

from edgeserve.config.profiles import QUANTILES, Timing
from edgeserve.errors import ConfigError, ProfileError
from edgeserve.sched.latency.drift import PPM, Drift
from edgeserve.units import NS_PER_MS

WINDOW_LEN = 10
"""Durations per batch size that the estimate looks back on (Clockwork, section 3: the last 10)."""

LIKELY = QUANTILES.index(0.8)
"""The stored quantile that stands for :meth:`ModelLatency.likely_ns` before the first measurement."""

WINDOW_AGE_NS = 10_000 * NS_PER_MS
"""A duration older than this no longer counts, so that a batch size whose estimate became too pessimistic is tried
again (Clockwork's pitfall: what is never run is never re-measured)."""


class Distribution:
    """A distribution of times in nanoseconds as rising points ``(time, P(T <= time))``, linear in between.

    Immutable. Built from samples, from stored quantiles, or as the maximum of others. All reads are O(log points).
    """

    __slots__ = ("times_ns", "shares", "_mean_ns")

    def __init__(self, times_ns: Sequence[float], shares: Sequence[float]) -> None:
        if not times_ns or len(times_ns) != len(shares):
            raise ValueError(f"a distribution needs as many times as shares, at least one: got {len(times_ns)} and "
                             f"{len(shares)}")
        self.times_ns = tuple(float(time) for time in times_ns)
        self.shares = tuple(shares)
        self._mean_ns = -1.0

    @classmethod
    def of_samples(cls, samples_ns: Iterable[float]) -> Distribution:
        """The empirical distribution: the i-th of n sorted samples is the quantile ``i / (n - 1)``."""
        times = sorted(samples_ns)
        last = max(1, len(times) - 1)
        return cls(times, [index / last if len(times) > 1 else 1.0 for index in range(len(times))])

    @classmethod
    def of_quantiles(cls, quantiles_ns: Sequence[float], shares: Sequence[float] = QUANTILES) -> Distribution:
        """From stored quantiles, as a profile holds them."""
        return cls(quantiles_ns, shares)

    def p_by(self, time_ns: float) -> float:
        """P(T <= time_ns)."""
        times = self.times_ns
        if time_ns < times[0]:
            return 0.0
        if time_ns >= times[-1]:
            return 1.0
        right = bisect_left(times, time_ns)
        if times[right] == time_ns:
            while right + 1 < len(times) and times[right + 1] == time_ns:
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
            parts = [(high - low) * (after + before) for low, high, before, after
                     in zip(shares, shares[1:], times, times[1:])]
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


class ModelLatency:
    """One model on one lane: how long a batch of each size takes now.

    Integers only, so that decisions are the same on every Python. ``sizes`` are the batch sizes that were profiled;
    a batch of n jobs runs as the smallest size that holds it. ``alone_ns`` is the careful estimate of the smallest,
    ``alone_likely_ns`` the likely one. ``fixed_ns`` is the part of a batch's time that does not grow with it (c0 of the
    affine fit), ``alone`` the profiled times alone by app, for models whose time depends on the input; both at speed 1.
    :meth:`observe`, :meth:`forget` and :meth:`set_speed` are the only methods that change it. Durations are kept at
    speed 1 and scaled on the way out, rounded up.
    """

    __slots__ = ("model", "lane", "sizes", "size_max", "_seeds", "_windows", "_estimates", "_drift", "_speed",
                 "_oldest_ns", "age_ns", "_size_for", "alone_ns", "alone_likely_ns", "fixed_ns", "alone")

    def __init__(self, model: str, lane: str, seeds: Mapping[int, Timing], sizes: Sequence[int],
                 age_ns: int = WINDOW_AGE_NS, fixed_ns: int = 0,
                 alone: Mapping[str, Sequence[int]] | None = None) -> None:
        missing = [size for size in sizes if size not in seeds]
        if missing:
            raise ProfileError(f"model {model!r} on lane {lane!r}: batch sizes {missing} have no measured time "
                               f"(measured: {', '.join(map(str, sorted(seeds))) or 'none'}); run 'edgeserve profile' "
                               f"or give [model.{model}.expected]")
        self.model = model
        self.lane = lane
        self.sizes = tuple(sizes)
        self.size_max = self.sizes[-1]
        self.age_ns = age_ns
        self.fixed_ns = fixed_ns or fixed_part_ns({size: seeds[size].median_ns for size in sizes})
        self.alone: Mapping[str, Sequence[int]] = alone or {}
        self._seeds = {size: seeds[size] for size in self.sizes}
        self._windows: Dict[int, Deque[Tuple[int, int]]] = {size: deque(maxlen=WINDOW_LEN) for size in self.sizes}
        self._speed = 1.0
        self._estimates: Dict[int, int] = {}
        self._oldest_ns = 2**62
        self._drift = _drift_of(self._seeds)
        self._size_for = [next(size for size in self.sizes if size >= count) for count in range(1, self.size_max + 1)]
        for size in self.sizes:
            self._refresh(size)

    def size_for(self, count: int) -> int:
        """The smallest profiled batch size that holds ``count`` jobs. ``count`` must not exceed ``size_max``."""
        return self._size_for[count - 1]

    def estimate_ns(self, size: int) -> int:
        """The careful estimate for planning: the maximum of the window, else the profile's 99th percentile."""
        return self._estimates[size]

    def likely_ns(self, size: int) -> int:
        """What three of four batches stay below (``sched/latency/drift.py``): for decisions that one slow batch in ten
        must not sway. The careful estimate would refuse everything for as long as a single outlier above the deadline
        stays in the window."""
        return self._scaled(self._drift.likely_ns(size))

    def slowest_ns(self, size: int) -> int:
        """As slow as the slowest of the last ten batches of any size: for what must not be late."""
        return self._scaled(self._drift.slowest_ns(size))

    def typical_ns(self, size: int) -> int:
        """The middle of what batches take now: what the work is worth, not what it may take."""
        return self._scaled(self._drift.typical_ns(size))

    def profiled_ns(self, size: int) -> int:
        """The profile's mean, whatever was measured since: for policies that planned ahead of time."""
        return self._scaled(self._seeds[size].mean_ns)

    def fixed_now_ns(self) -> int:
        """The part of a batch's time that does not grow with it, at the present speed."""
        return self._scaled(self.fixed_ns)

    def factor(self, size: int) -> float:
        """How many times the part of the smallest batch's time that grows, a batch of this size takes beyond the fixed
        part, as profiled: c(k) of ``fixed + c(k) * u``. Where the profile does not tell, as many as it has jobs."""
        first = self.sizes[0]
        alone_ns = self._seeds[first].median_ns - self.fixed_ns
        if alone_ns <= 0:
            return size / first
        return max(1.0, (self._seeds[size].median_ns - self.fixed_ns) / alone_ns)

    def distribution(self, size: int) -> Distribution:
        """All that is known of a batch of this size, at the present speed: the window if it is full, else the
        profile."""
        window = self._windows[size]
        if len(window) == WINDOW_LEN:
            return Distribution.of_samples([duration for _, duration in window]).scaled(1 / self._speed)
        seed = self._seeds[size]
        known = Distribution.of_quantiles(seed.quantiles_ns) if seed.quantiles_ns else Distribution(
            [seed.median_ns, seed.p99_ns], [0.5, 1.0])
        return known.scaled(1 / self._speed)

    def observe(self, now_ns: int, size: int, duration_ns: int) -> None:
        """A batch of this size took ``duration_ns`` at the present speed."""
        duration = duration_ns if self._speed == 1.0 else math.ceil(duration_ns * self._speed)
        self._windows[size].append((now_ns, duration))
        self._drift.observe(now_ns, size, duration)
        if now_ns < self._oldest_ns:
            self._oldest_ns = now_ns
        self._refresh(size)

    def forget(self, now_ns: int) -> None:
        """Let go of durations older than ``age_ns``. Cheap when there is nothing to forget."""
        if now_ns - self._oldest_ns <= self.age_ns:
            return
        self._oldest_ns = 2**62
        self._drift.forget(now_ns - self.age_ns)
        for size, window in self._windows.items():
            while window and now_ns - window[0][0] > self.age_ns:
                window.popleft()
            if window:
                self._oldest_ns = min(self._oldest_ns, window[0][0])
            self._refresh(size)

    def set_speed(self, speed: float) -> None:
        """The lane runs at another speed from now on (1.0 = as profiled)."""
        if speed <= 0:
            raise ValueError(f"lane {self.lane!r}: speed {speed} must be above 0")
        self._speed = speed
        for size in self.sizes:
            self._refresh(size)

    def _refresh(self, size: int) -> None:
        window = self._windows[size]
        self._estimates[size] = self._scaled(max([duration for _, duration in window]) if window
                                             else self._seeds[size].p99_ns)
        self.alone_ns = self._estimates.get(self.sizes[0], 0)
        self.alone_likely_ns = self.likely_ns(self.sizes[0])

    def _scaled(self, time_ns: int) -> int:
        return time_ns if self._speed == 1.0 else math.ceil(time_ns / self._speed)


def fixed_part_ns(times_ns: Mapping[int, int]) -> int:
    """c0 of the straight line ``c0 + c1 * size`` through the times (least squares), between 0 and the smallest time;
    0 for a single size, which tells nothing about it. Where small batches lie below the line (times that rise ever
    slower), that of the parallel through the first: with all of the first time fixed, no part would be left to grow."""
    if len(times_ns) < 2:
        return 0
    mean_size = sum(times_ns) / len(times_ns)
    mean_ns = sum(times_ns.values()) / len(times_ns)
    rise = sum([(size - mean_size) * (time_ns - mean_ns) for size, time_ns in times_ns.items()], 0.0) \
        / sum([(size - mean_size) ** 2 for size in times_ns], 0.0)
    first = min(times_ns)
    return max(0, min(round(mean_ns - rise * mean_size), round(times_ns[first] - rise * first), min(times_ns.values())))


def _drift_of(seeds: Mapping[int, Timing]) -> Drift:
    """Before the first measurement: the profile's medians, and its spread over all sizes."""
    spreads = sorted([seed.quantiles_ns[LIKELY] * PPM // max(1, seed.median_ns) if seed.quantiles_ns else PPM
                      for seed in seeds.values()])
    return Drift({size: seed.median_ns for size, seed in seeds.items()}, spreads[len(spreads) // 2])


def timing_of(samples_ns: Sequence[int]) -> Timing:
    """Summarise measured durations as a profile's timing."""
    if not samples_ns:
        raise ConfigError("a timing needs at least one measured duration")
    times = sorted(samples_ns)
    mean = sum(times) / len(times)
    spread = math.sqrt(sum((time - mean) ** 2 for time in times) / len(times))
    empirical = Distribution.of_samples(times)
    return Timing(count=len(times), median_ns=empirical.quantile_ns(0.5), p99_ns=empirical.quantile_ns(0.99),
                  mean_ns=math.ceil(mean), sd_ns=math.ceil(spread),
                  quantiles_ns=tuple(empirical.quantile_ns(share) for share in QUANTILES))


def timing_constant(time_ns: int) -> Timing:
    """A timing that says one time: a configured expectation, not a measurement (``count`` 0)."""
    return Timing(count=0, median_ns=time_ns, p99_ns=time_ns, mean_ns=time_ns, sd_ns=0)
