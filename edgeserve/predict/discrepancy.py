"""The disagreement of an ensemble's models about a request: the discrepancy score (Schemble, section IV, Eq. 1).

Classification compares temperature-scaled distributions by the Jensen-Shannon divergence, regression compares vectors
by the Euclidean distance. Each model's distance to the ensemble is divided by its mean over the history, so that a
model that always disagrees says little; 0 stays 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Tuple

import numpy as np
from numpy.typing import NDArray

SMALLEST = 1e-6
TEMPERATURES = (0.05, 20.0)
SCORE_QUANTILE = 0.99


@dataclass(frozen=True)
class Discrepancy:
    """The parameters of the score: a temperature and a mean distance per model, and the score that counts as 1."""

    task: str
    temperatures: Tuple[float, ...]
    scales: Tuple[float, ...]
    top: float

    def scores(self, outputs: NDArray[Any], answers: NDArray[Any]) -> NDArray[Any]:
        """Scores from 0 (every model agrees with the ensemble) to 1, shape (records,), of outputs (records, models,
        values) and the ensemble's answers (records, values)."""
        distances = _distances(self.task, outputs, answers, self.temperatures)
        raw = (distances / np.asarray(self.scales)).mean(axis=1)
        scores: NDArray[Any] = np.clip(raw / self.top, 0.0, 1.0)
        return scores


def fit_discrepancy(
    task: str, outputs: NDArray[Any], answers: NDArray[Any], temperatures: Tuple[float, ...]
) -> Discrepancy:
    """The statistics of a history. ``temperatures`` are :func:`fit_temperature`'s, 1.0 each for regression."""
    distances = _distances(task, outputs, answers, temperatures)
    means = distances.mean(axis=0)
    scales = tuple(float(mean) if mean > 1e-12 else 1.0 for mean in means)
    raw = (distances / np.asarray(scales)).mean(axis=1)
    top = float(np.quantile(raw, SCORE_QUANTILE))
    return Discrepancy(task, temperatures, scales, top if top > 1e-12 else 1.0)


def fit_temperature(probabilities: NDArray[Any], labels: NDArray[Any]) -> float:
    """The temperature with the least negative log-likelihood of ``labels`` (shape (records,)) under the scaled
    ``probabilities`` (records, classes): golden-section search over the logarithm of the temperature."""
    logs = np.log(np.clip(probabilities, SMALLEST, None))
    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        scaled = logs / math.exp(log_temperature)
        top = scaled.max(axis=1)
        return float((top + np.log(np.exp(scaled - top[:, None]).sum(axis=1)) - scaled[rows, labels]).mean())

    low, high = math.log(TEMPERATURES[0]), math.log(TEMPERATURES[1])
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(40):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


def scale(probabilities: NDArray[Any], temperature: float) -> NDArray[Any]:
    """``softmax(log p / temperature)`` over the last axis."""
    logs = np.log(np.clip(probabilities, SMALLEST, None)) / temperature
    powers = np.exp(logs - logs.max(axis=-1, keepdims=True))
    scaled: NDArray[Any] = powers / powers.sum(axis=-1, keepdims=True)
    return scaled


def jensen_shannon(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """The divergence in nats, 0 to ln 2, over the last axis."""
    one, other = np.clip(one, SMALLEST, None), np.clip(other, SMALLEST, None)
    middle = (one + other) / 2
    both = (one * np.log(one / middle) + other * np.log(other / middle)).sum(axis=-1) / 2
    divergence: NDArray[Any] = np.maximum(both, 0.0)
    return divergence


def _distances(
    task: str, outputs: NDArray[Any], answers: NDArray[Any], temperatures: Tuple[float, ...]
) -> NDArray[Any]:
    """Shape (records, models): how far each model is from the ensemble's answer."""
    if task == "regression":
        distances: NDArray[Any] = np.sqrt(((outputs - answers[:, None, :]) ** 2).sum(axis=2))
        return distances
    return np.stack(
        [
            jensen_shannon(scale(outputs[:, model], temperature), answers)
            for model, temperature in enumerate(temperatures)
        ],
        axis=1,
    )
