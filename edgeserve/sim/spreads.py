"""Spreads: small distributions as scenario files write them, and draws from them.

A draw is a function of one uniform number, so that the same seed gives the same values beside any other draws.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import accumulate
from typing import Any, Mapping, NamedTuple, Sequence, Tuple, Union

from edgeserve.config.profiles import QUANTILES, Timing
from edgeserve.config.readers import number
from edgeserve.errors import ConfigError, nearest
from edgeserve.lognormal import Lognormal

SIGMA_MAX = 10.0
"""The greatest ``sigma`` of a lognormal law: a larger one is a mistake, since draws then differ by more than a factor
of e^60."""

POINTS = 1000
"""Into how many equally likely draws a lognormal law is cut where whole numbers are wanted."""


class Spread(NamedTuple):
    """A small distribution over whole numbers: ``values`` with cumulative ``weights`` that end at 1."""

    values: Tuple[int, ...]
    weights: Tuple[float, ...]

    def mean(self) -> float:
        """The expected value."""
        low, total = 0.0, 0.0
        for value, high in zip(self.values, self.weights):
            total += value * (high - low)
            low = high
        return total

    def pick(self, uniform: float) -> int:
        """The value at a uniform draw in [0, 1)."""
        return self.values[_place(uniform, self.weights)]


def read_spread(value: Any, where: str) -> Spread:
    """``7`` (always), ``[2, 9]`` (uniform, both ends included) or ``{10 = 0.7, 60 = 0.3}`` (weights)."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Spread((value,), (1.0,))
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(type(item) is int for item in value)
        and 0 <= value[0] <= value[1] <= value[0] + 100_000
    ):
        count = value[1] - value[0] + 1
        return Spread(tuple(range(value[0], value[1] + 1)), tuple((index + 1) / count for index in range(count)))
    if isinstance(value, Mapping) and "lognormal" in value:
        return _whole(read_lognormal(value, where))
    if isinstance(value, Mapping) and all(str(key).isdecimal() for key in value):
        weights = _cumulated(value, where)
        if weights:
            return Spread(tuple(int(key) for key in value), weights)
    raise ConfigError(
        f"{where} = {value!r}: expected a whole number, [low, high], {{value = weight, ...}} "
        "or {lognormal = [median, sigma]}"
    )


class Range(NamedTuple):
    """Numbers between two, all equally likely."""

    low: float
    high: float

    def pick(self, uniform: float) -> float:
        """The number at a uniform draw in [0, 1)."""
        return self.low + (self.high - self.low) * uniform


class Chances(NamedTuple):
    """A :class:`Spread` of numbers that need not be whole."""

    values: Tuple[float, ...]
    weights: Tuple[float, ...]

    def pick(self, uniform: float) -> float:
        """The number at a uniform draw in [0, 1)."""
        return self.values[_place(uniform, self.weights)]


Hint = Union[Spread, Range, Chances, Lognormal]


def read_lognormal(value: Mapping[str, Any], where: str) -> Lognormal:
    """``{ lognormal = [median, sigma] }``, and ``max`` where larger ones are cut to it."""
    for key in value:
        if key not in ("lognormal", "max"):
            raise ConfigError(f"{where} has no key {key!r}{nearest(str(key), ('lognormal', 'max'))}")
    given = value["lognormal"]
    if (
        not isinstance(given, list)
        or len(given) != 2
        or not all(map(_is_hint, given))
        or given[0] <= 0
        or not 0 <= given[1] <= SIGMA_MAX
    ):
        raise ConfigError(
            f"{where} lognormal = {given!r}: expected [median, sigma], a median above 0 and a sigma from "
            f"0 to {SIGMA_MAX:g}, such as [1.0, 0.5]"
        )
    most = value.get("max", math.inf)
    if isinstance(most, bool) or not isinstance(most, (int, float)) or not most >= given[0]:
        raise ConfigError(f"{where} max = {most!r}: expected a number, at least the median {given[0]:g}")
    return Lognormal(math.log(given[0]), float(given[1]), most=float(most))


def read_hint(value: Any, where: str) -> Hint:
    """A spread, whose numbers need not be whole: ``0.5``, ``[0.5, 2.0]`` (anything between),
    ``{"0.5" = 0.7, "2" = 0.3}`` (weights) or ``{ lognormal = [median, sigma] }``."""
    if isinstance(value, Mapping) and "lognormal" in value:
        return read_lognormal(value, where)
    if (
        isinstance(value, list)
        and len(value) == 2
        and float in map(type, value)
        and all(map(_is_hint, value))
        and value[0] <= value[1]
    ):
        return Range(float(value[0]), float(value[1]))
    if isinstance(value, float) and _is_hint(value):
        return Range(value, value)
    if (
        isinstance(value, Mapping)
        and any(not str(key).isdecimal() for key in value)
        and all(re.fullmatch(r"-?\d+(\.\d+)?", str(key)) for key in value)
    ):
        weights = _cumulated(value, where)
        if weights:
            return Chances(tuple(float(key) for key in value), weights)
    try:
        return read_spread(value, where)
    except ConfigError:
        raise ConfigError(
            f'{where} = {value!r}: expected a number, [low, high], {{"number" = weight, ...}} with a '
            "weight above 0, or {lognormal = [median, sigma]}"
        ) from None


def _whole(law: Lognormal) -> Spread:
    """The whole numbers of a lognormal law, rounded, by :data:`POINTS` equally likely draws."""
    counts = Counter(round(law.pick((index + 0.5) / POINTS)) for index in range(POINTS))
    values = tuple(sorted(counts))
    shares = accumulate(counts[value] for value in values)
    return Spread(values, tuple(share / POINTS for share in shares))


def _cumulated(weights: Mapping[str, Any], where: str) -> Tuple[float, ...]:
    """Rising shares that end at 1; none where all weights are 0."""
    numbers = [number(0.0)(weight, f"{where}.{key}") for key, weight in weights.items()]
    total, running, sums = sum(numbers), 0.0, []
    for weight in numbers:
        running += weight
        sums.append(running / total if total else 0.0)
    return tuple(sums) if total > 0 else ()


def _place(uniform: float, weights: Sequence[float]) -> int:
    """The place among the cumulated ``weights`` that a draw in [0, 1) falls to."""
    for place, high in enumerate(weights):
        if uniform < high:
            return place
    return len(weights) - 1


def _is_hint(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 2**63


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
