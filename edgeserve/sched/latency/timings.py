"""Measured durations as a profile keeps them."""

from __future__ import annotations

import math
from typing import Sequence

from edgeserve.config.profile_record import QUANTILES, Timing
from edgeserve.errors import ConfigError


def timing_of(samples_ns: Sequence[int]) -> Timing:
    """Summarise measured durations as a profile's timing."""
    if not samples_ns:
        raise ConfigError("a timing needs at least one measured duration")
    times = sorted(samples_ns)
    mean = sum(times) / len(times)
    spread = math.sqrt(sum((time - mean) ** 2 for time in times) / len(times))
    return Timing(
        count=len(times),
        median_ns=_quantile_ns(times, 0.5),
        p99_ns=_quantile_ns(times, 0.99),
        mean_ns=math.ceil(mean),
        sd_ns=math.ceil(spread),
        quantiles_ns=tuple(_quantile_ns(times, share) for share in QUANTILES),
    )


def timing_constant(time_ns: int) -> Timing:
    """A timing that says one time: a configured expectation, not a measurement (``count`` 0)."""
    return Timing(count=0, median_ns=time_ns, p99_ns=time_ns, mean_ns=time_ns, sd_ns=0)


def _quantile_ns(times: Sequence[int], share: float) -> int:
    """The time by which a share of these is over, between two on a straight line. ``times`` rise."""
    last = len(times) - 1
    right = next((index for index in range(1, last) if index / last >= share), last)
    if not last or share <= 0.0:
        return times[0]
    left = right - 1
    part = (share - left / last) / (right / last - left / last)
    return math.ceil(times[left] + part * (times[right] - times[left]))
