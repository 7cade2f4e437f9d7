"""The lognormal law: numbers whose logarithm is normal. Lengths of answers are believed to follow it.

The one implementation of the project: for predicted lengths (``predict/length.py``), for what the policies of language
models believe of answers (``sched/policies/common/lengths.py``), and for what a simulation draws
(``sim/spreads.py``). Pure.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final, NamedTuple

LOG_MAX: Final = 20.0
"""Logarithms are cut here: e^20 tokens are beyond any use."""

TAIL: Final = 1e-9
"""Quantiles further out are cut: six deviations. A smaller chance says that a number is far beyond what was predicted:
the number itself is the only evidence then."""

FLAT: Final = 1e-6
"""The smallest ``sigma`` of a spread: with a smaller one all numbers count as equal."""

_NORMAL: Final = NormalDist()
SQRT2: Final = math.sqrt(2.0)


class Lognormal(NamedTuple):
    """Half of the numbers are below ``exp(log_mean)``, two thirds within a factor of ``exp(sigma)`` of it. No mean and
    no quantile lies outside ``least`` to ``most``."""

    log_mean: float
    sigma: float
    least: float = 0.0
    most: float = math.inf

    def mean(self) -> float:
        """The expected number."""
        return self._cut(self._mean())

    def quantile(self, share: float) -> float:
        """The number that ``share`` (0 to 1) of them do not exceed."""
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share = {share}, expected a number from 0 to 1")
        return self._cut(math.exp(min(self.log_mean + self.sigma * deviate(share), LOG_MAX)))

    def pick(self, uniform: float) -> float:
        """The number at a uniform draw in [0, 1)."""
        return self.quantile(uniform)

    def remaining(self, done: int) -> float:
        """The expected remainder of a number that is above ``done`` already, at least 1."""
        if done <= 0:
            return max(1.0, self.mean())
        if self.sigma < FLAT:
            return max(1.0, self.mean() - done)
        z = (math.log(done) - self.log_mean) / self.sigma
        above = _above(z)
        if above < TAIL:
            return max(1.0, min(float(done), self.most - done))
        return max(1.0, min(self.most, self._mean() * _above(z - self.sigma) / above) - done)

    def rest(self, done: int, share: float) -> float:
        """The ``share`` quantile of the remainder of a number that is above ``done`` already, at least 1."""
        if done <= 0 or self.sigma < FLAT:
            return max(1.0, self.quantile(share) - done)
        above = _above((math.log(done) - self.log_mean) / self.sigma)
        if above < TAIL:
            return max(1.0, min(done * share / (1.0 - share) if share < 1.0 else self.most, self.most - done))
        return max(1.0, self.quantile(1.0 - (1.0 - share) * above) - done)

    def chance(self, done: int, more: float) -> float:
        """The chance that a number above ``done`` is at most ``more`` above it."""
        return self.chance_of(done, self.above(done), more)

    def above(self, done: int) -> float:
        """The chance of a number above ``done``; 1 where all are equal."""
        if done <= 0 or self.sigma < FLAT:
            return 1.0
        return 0.5 * math.erfc((math.log(done) - self.log_mean) / self.sigma / SQRT2)

    def chance_of(self, done: int, above: float, more: float) -> float:
        """:meth:`chance`, by what :meth:`above` says of ``done``."""
        if self.sigma < FLAT:
            return 1.0 if self.mean() <= done + more else 0.0
        if above < TAIL:
            return more / (done + more)
        beyond = 0.5 * math.erfc((math.log(done + more) - self.log_mean) / self.sigma / SQRT2) / above
        return 1.0 - beyond if beyond < 1.0 else 0.0

    def _mean(self) -> float:
        return math.exp(min(LOG_MAX, self.log_mean + self.sigma * self.sigma / 2.0))

    def _cut(self, number: float) -> float:
        return max(self.least, min(self.most, number))


def deviate(share: float) -> float:
    """The number that ``share`` (0 to 1) of normal draws do not exceed, in deviations."""
    return _NORMAL.inv_cdf(min(max(share, TAIL), 1.0 - TAIL))


def _above(z: float) -> float:
    """The chance of a normal draw above ``z``."""
    return 0.5 * math.erfc(z / SQRT2)
