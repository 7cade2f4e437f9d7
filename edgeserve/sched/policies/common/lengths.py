"""The lengths of answers: declared lengths corrected by finished answers', and the rest of one that has begun.

A length is lognormal: ``log_mean`` and ``sigma`` of its logarithm. The correction is a straight line from the logarithm
of the declared length to that of the real one, fitted to the last answers and held back by a prior that believes the
declared lengths. Hints that say nothing flatten the line: the order falls back to that of arrival.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Deque, Dict, Final, Sequence, Tuple

from edgeserve.lognormal import Lognormal

ANSWERS_LEN: Final = 128
"""Answers that are looked back on."""

PRIOR: Final = 8.0
"""Answers that the belief in what was declared counts as."""

PRIOR_SPREAD: Final = 0.5
"""Deviation of the logarithms of lengths that is assumed before anything was seen: the normal variance of the paper's
workloads, as the reference simulation has it."""

SLOPE_MAX: Final = 2.0
"""The line is never steeper, and never falls."""

STEPS_MAX: Final = 1_000_000.0
"""No answer is predicted longer."""

HOPELESS: Final = 0.2
"""An answer whose chance to be in time is smaller may be given up."""

TRUSTED: Final = 4
"""The number of answers after which the lengths are known well enough to give requests up for them."""

GIVEN_UP_MAX: Final = 8
"""So many may be given up for their length in a row: then one is served, to measure whether lengths are as believed."""


class LearnedLengths:
    """The lengths learnt from the finished answers of one app. ``corrects``: whether declared lengths are corrected;
    without, they are believed."""

    def __init__(self, corrects: bool, default_steps: float) -> None:
        self.given_up = 0  # for their length, since an answer was seen
        self._corrects = corrects
        self._default = math.log(max(1.0, default_steps))
        self._told: Deque[Tuple[float, float]] = deque(maxlen=ANSWERS_LEN)  # logarithms: declared, real
        self._all: Deque[float] = deque(maxlen=ANSWERS_LEN)
        self._centre = 0.0  # of the declared logarithms
        self._level = -PRIOR_SPREAD * PRIOR_SPREAD / 2.0  # a declared length is a mean: the logarithm's lies below
        self._slope = 1.0
        self._sigma = PRIOR_SPREAD
        self._log_mean = self._default
        self._spread = PRIOR_SPREAD

    def predict(self, declared: float | None, sigma: float | None) -> Lognormal:
        """The length of an answer whose request declared so many steps (None: nothing), with this deviation."""
        if declared is None:
            return _steps(self._log_mean, self._spread)
        told = math.log(max(1.0, min(STEPS_MAX, declared)))
        if not self._corrects or not self._told:
            known = PRIOR_SPREAD if sigma is None else max(0.0, sigma)
            return _steps(told - known * known / 2.0, known)
        return _steps(self._centre + self._level + self._slope * (told - self._centre), self._sigma)

    def finished(self, declared: float | None, steps: int) -> None:
        """An answer had so many steps. O(answers looked back on)."""
        self.given_up = 0
        real = math.log(max(1, steps))
        self._all.append(real)
        count = len(self._all)
        middle = sum(self._all, 0.0) / count
        self._log_mean = (middle * count + self._default) / (count + 1.0)  # one answer outweighs a guess
        self._spread = _spread([value - middle for value in self._all])
        if declared is not None and self._corrects:
            self._told.append((math.log(max(1.0, min(STEPS_MAX, declared))), real))
            self._fit()

    def knows(self, declared: float | None) -> bool:
        """True if a prediction is more than the assumed length."""
        return declared is not None or bool(self._all)

    def may_give_up(self) -> bool:
        """True if a request may be given up for how long its answer would be."""
        return len(self._all) >= TRUSTED and self.given_up < GIVEN_UP_MAX

    def _fit(self) -> None:
        rows = self._told
        count = len(rows)
        centre = sum([told for told, _ in rows], 0.0) / count
        middle = sum([real for _, real in rows], 0.0) / count
        spread = PRIOR * PRIOR_SPREAD**2
        across = sum([(told - centre) ** 2 for told, _ in rows], 0.0)
        along = sum([(told - centre) * (real - middle) for told, real in rows], 0.0)
        self._centre = centre
        self._slope = min(SLOPE_MAX, max(0.0, (along + spread) / (across + spread)))
        prior = -PRIOR_SPREAD * PRIOR_SPREAD / 2.0
        self._level = (count * (middle - centre) + PRIOR * prior) / (count + PRIOR)
        self._sigma = _spread([real - middle - self._slope * (told - centre) for told, real in rows])

    def figures(self) -> Dict[str, Any]:
        """The learnt numbers, for people: answers seen, their middle length, the line's slope and factor."""
        return {
            "answers": len(self._all),
            "middle_steps": math.exp(self._log_mean),
            "slope": self._slope,
            "factor": math.exp(self._level),
            "sigma": self._sigma if self._told else self._spread,
        }


def _steps(log_mean: float, sigma: float) -> Lognormal:
    """The law of a number of steps."""
    return Lognormal(log_mean, sigma, 1.0, STEPS_MAX)


def _spread(residuals: Sequence[float]) -> float:
    """The deviation of the logarithms, held back by the prior."""
    squares = sum([off * off for off in residuals], 0.0)
    return math.sqrt((squares + PRIOR * PRIOR_SPREAD**2) / (len(residuals) + PRIOR))
