"""The online length oracle: ``orloj+`` that is told how long each request will take, as an upper bound for predictions.

It knows nothing of arrivals to come, so it is no bound for schedulers. Importing this module adds the kind
``length_oracle`` to the policies.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np

from edgeserve.sched.latency.distribution import Distribution
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.orloj_plus import OrlojPlus
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.published.orloj.lengths import Lengths, factor
from edgeserve.sched.published.orloj.model import DynamicModel
from edgeserve.sched.requests.states import Job


class KnownLengths(Lengths):
    """Every length is a class of its own, and certain."""

    def __init__(self, fixed_ns: float, factors: Dict[int, float]) -> None:
        super().__init__(fixed_ns, factors, np.zeros(1), {}, np.ones(1))

    def alone(self, name: str) -> Distribution:
        """The time alone, all of it at one point."""
        return Distribution([self.mean_alone_ns(name)], [1.0])

    def mean_alone_ns(self, name: str) -> float:
        """The time alone."""
        return self.fixed_ns + float(name)

    def batch(self, size: int, members: Tuple[str, ...]) -> Distribution:
        """The time of a batch of these lengths."""
        return Distribution([self.fixed_ns + self.factors[size] * max(float(name) for name in members)], [1.0])


class KnownModel(DynamicModel):
    """Jobs by their own lengths, in nanoseconds beyond the fixed part, as the request declares them."""

    def class_of(self, job: Job) -> str:
        """The length itself."""
        return str(job.request.hints[self._hint])

    def lengths(self, lane: str, board: Board) -> Lengths:
        """What follows from knowing them."""
        latency = board.latency(self.model, lane)
        known = self._lengths.get(lane)
        if known is None:
            known = KnownLengths(latency.fixed_ns, {size: factor(latency, size) for size in latency.sizes})
            self._lengths[lane] = known
        return known

    def refresh(self, board: Board) -> None:
        """There is nothing to learn."""


class LengthOracle(OrlojPlus):
    """Options as ``orloj+``; ``hint`` names the declared length."""

    def __init__(self, name: str, apps: Any, options: Any) -> None:
        super().__init__(name, apps, options)
        self._models = {
            model: KnownModel(model, (), window_len=1, reset_ns=0, hint=self._hint, learn=False)
            for model in self._models
        }


POLICIES["length_oracle"] = LengthOracle
