"""Distributions of what inputs add to a batch, from left-censored values, and whether inputs differ at all. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from typing import Dict, Final, Iterable, List, Mapping, Sequence, Tuple

SPREAD: Final = 0.2
"""Deviation of whole batch times, in their logarithm, from which on inputs differ; 12 % are noise."""

DOUBT: Final = 4
"""Batches of no spread that count beside those seen, so that one that was slow by chance tells little."""

APART_MAX: Final = 1.4
"""Two batches are no further apart than this, in the logarithm: one outlier makes no spread."""

ALONE_SPREAD: Final = 1.5
"""Profiled times alone differ with the input where their 90th percentile is so many times their 10th."""

SHOWN_FROM: Final = 16
"""From so many batches on, a spread is believed while it tells their times no worse than a law without it."""

SEEN_ALONE: Final = 8
"""Inputs of an app that were seen alone, from which on their median counts."""

CHANCE: Final = 3.0
"""Standard errors by which two medians differ beyond chance."""

LEAST: Final = 0.02
"""An input takes at least this part of the usual one."""

ALONE_WEIGHT: Final = 64.0
"""Inputs beside those seen that profiled times alone count as."""

POINTS: Final = 64
"""Points at which distributions are kept."""

Draws = Tuple[Tuple[str, int], ...]
"""The number of inputs of each distribution, in the order of their names."""

Item = Tuple[float, float, float]
"""A value, how many inputs had it, and how many had it or less."""


def differ(logs: Sequence[Tuple[int, float]], alone: Mapping[str, Sequence[int]]) -> bool:
    """True if batches (size, logarithm of measured over even time) of one size differ by more than noise. A few do not
    contradict profiled times alone."""
    last: Dict[int, float] = {}
    apart, count = 0.0, 0
    for size, log in logs:
        if size in last:
            apart += min(APART_MAX, abs(log - last[size])) ** 2 / 2.0
            count += 1
        last[size] = log
    if apart > SPREAD * SPREAD * (count + DOUBT):
        return True
    spreads = [times[len(times) * 9 // 10] / max(1, times[len(times) // 10]) for times in alone.values() if len(times)]
    return len(logs) < SHOWN_FROM and max(spreads, default=0.0) > ALONE_SPREAD


def apps_differ(apps: Iterable[Sequence[float]], fixed: float) -> bool:
    """True if inputs of one app add more than those of another, beyond chance, so that the largest batches of both take
    unequal times. ``apps``: what inputs of each added alone, over the usual one; ``fixed``: the fixed part of the
    largest batch, over what usual inputs add to it."""
    low, high = (math.inf, 0.0), (-math.inf, 0.0)  # the median, and the square of its standard error
    for values in apps:
        if len(values) >= SEEN_ALONE:
            rising, count = sorted(values), len(values)
            error = (rising[count * 3 // 4] - rising[count // 4]) / math.sqrt(count)
            found = max(LEAST, rising[count // 2]), error * error
            low, high = min(low, found), max(high, found)
    if high[0] - low[0] <= CHANCE * math.sqrt(high[1] + low[1]):
        return False
    return fixed + high[0] > (1.0 + SPREAD) * (fixed + low[0])


def at_most(items: Sequence[Item], points: Sequence[float]) -> List[float]:
    """The product-limit estimate of P(value <= point)."""
    rising = sorted([item for item in items if item[2] > 0.0])
    no_more = list(accumulate([item[2] for item in rising]))
    found = [0.0] * len(points)
    share, place = 1.0, len(points) - 1
    for index in range(len(rising) - 1, -1, -1):
        while place >= 0 and points[place] >= rising[index][0]:
            found[place] = share
            place -= 1
        share *= max(0.0, 1.0 - rising[index][1] / no_more[index])
    return found


def parts(shares: Sequence[float]) -> List[float]:
    """What each point adds to P(value <= point)."""
    return [share - (shares[place - 1] if place else 0.0) for place, share in enumerate(shares)]


def sample(ratios: Sequence[float]) -> List[Item]:
    """Times alone, by 32 of their quantiles."""
    rising = sorted(ratios) or [1.0]
    part = ALONE_WEIGHT / 32
    return [(max(LEAST, rising[(2 * place + 1) * len(rising) // 64]), part, part) for place in range(32)]


def thinned(values: Sequence[float]) -> List[float]:
    """At most :data:`POINTS` of the values, the largest among them, rising."""
    rising = sorted(set(values))
    if len(rising) <= POINTS:
        return rising
    return [rising[(place + 1) * len(rising) // POINTS - 1] for place in range(POINTS)]


def chance_of(name: str, draws: Draws, ratio: float, known: Tuple[List[float], Dict[str, List[float]]]) -> float:
    """The chance that the longest input of a batch was of this distribution, as far as is known: by the part of each
    that lies just there."""
    points, shares = known
    high, low = bisect_right(points, ratio * 1.1) - 1, bisect_right(points, ratio / 1.1) - 1
    weights: Dict[str, float] = {}
    for other, count in draws:
        weights[other] = float(count)
        if high >= 0 and other in shares and shares[other][high] > 0.0:
            weights[other] *= 1.01 - (shares[other][low] / shares[other][high] if low >= 0 else 0.0)
    return weights[name] / sum([weights[other] for other, _ in draws])


def squares(values: Sequence[float]) -> float:
    """The sum of the squared distances from the mean."""
    mean = sum(values) / len(values)
    return sum([(value - mean) ** 2 for value in values])
