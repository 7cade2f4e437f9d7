"""Ranks and correlations, for errors that do not depend on a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ranks_of(values: NDArray[Any]) -> NDArray[Any]:
    """The rank of every value from 1, equal values the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle: NDArray[Any] = last - (counts - 1) / 2
    ranks: NDArray[Any] = middle[inverse]
    return ranks


def correlation(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Pearson's correlation; 0 where one of them is constant."""
    spread = float(one.std() * other.std())
    return float(((one - one.mean()) * (other - other.mean())).mean() / spread) if spread > 1e-12 else 0.0
