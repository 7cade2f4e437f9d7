"""Draws from a distribution that is known by the quantiles that profiles store."""

from __future__ import annotations

from typing import Sequence

from edgeserve.config.profiles import QUANTILES, Timing

BEND_MAX = 1000.0
"""The highest power of the curve between the 99th percentile and the maximum: beyond it the maximum is never met."""


def value_at(quantiles_ns: Sequence[int], uniform: float, bend: float = 1.0) -> int:
    """The value at a uniform draw, straight lines between the stored quantiles. ``bend`` above 1 lets the last one,
    from the 99th percentile to the maximum, rise late."""
    for index in range(1, len(QUANTILES)):
        if uniform <= QUANTILES[index]:
            low, high = QUANTILES[index - 1], QUANTILES[index]
            share = (uniform - low) / (high - low)
            if bend != 1.0 and index == len(QUANTILES) - 1:
                share = share**bend
            return round(quantiles_ns[index - 1] + share * (quantiles_ns[index] - quantiles_ns[index - 1]))
    return quantiles_ns[-1]


def bend_of(timing: Timing) -> float:
    """The bend with which draws have the mean that was measured. One outlier in thousands of runs would count as half
    of the slowest hundredth with a straight line: a stall of 100 ms in runs of 10 ms made them 4 % longer."""
    values = timing.quantiles_ns
    if len(values) != len(QUANTILES):
        return 1.0
    below = sum(
        (QUANTILES[index] - QUANTILES[index - 1]) * (values[index] + values[index - 1]) / 2
        for index in range(1, len(QUANTILES) - 1)
    )
    last = QUANTILES[-1] - QUANTILES[-2]
    beyond, most = (timing.mean_ns - below) / last - values[-2], float(values[-1] - values[-2])
    if most <= 0:
        return 1.0
    return min(BEND_MAX, max(1.0, most / beyond - 1.0)) if beyond > 0 else BEND_MAX
