"""The discrepancy score: temperatures that are known, divergences by hand, and what the score must rank."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgeserve.predict.discrepancy import (
    fit_discrepancy,
    fit_temperature,
    jensen_shannon,
    scale,
)


def test_divergences_by_hand() -> None:
    one, other = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert jensen_shannon(one, other) == pytest.approx(math.log(2), abs=1e-4)
    assert jensen_shannon(one, one) == 0
    half, most = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    middle = np.array([0.7, 0.3])
    expected = (0.5 * np.log(half / middle) * half * 2 / 2 + 0.5 * most * np.log(most / middle)).sum()
    assert jensen_shannon(half, most) == pytest.approx(expected)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.8])
def test_a_temperature_is_found_again(temperature: float) -> None:
    """Labels drawn from the true probabilities, which were then distorted by the inverse temperature."""
    random = np.random.default_rng(7)
    true = random.dirichlet(np.ones(4), 6000)
    labels = np.array([random.choice(4, p=row) for row in true])
    distorted = scale(true, 1 / temperature)
    assert fit_temperature(distorted, labels) == pytest.approx(temperature, rel=0.1)


def test_scaling_by_one_changes_nothing() -> None:
    rows = np.array([[0.7, 0.2, 0.1]])
    assert scale(rows, 1.0) == pytest.approx(rows)
    assert scale(rows, 1e6)[0] == pytest.approx([1 / 3] * 3, abs=1e-4)


def test_a_reliable_model_that_disagrees_counts_more() -> None:
    """Three binary models, right in 70, 90 and 90 of 100 cases: a lone vote of the first says little."""
    random = np.random.default_rng(3)
    truth = random.integers(0, 2, 4000)
    outputs = np.zeros((4000, 3, 2))
    for model, accuracy in enumerate((0.7, 0.9, 0.9)):
        right = random.random(4000) < accuracy
        says = np.where(right, truth, 1 - truth)
        outputs[np.arange(4000), model, says] = accuracy
        outputs[np.arange(4000), model, 1 - says] = 1 - accuracy
    weights = np.log(np.array([0.7, 0.9, 0.9]) / np.array([0.3, 0.1, 0.1]))
    answers = np.tensordot(outputs, weights / weights.sum(), axes=([1], [0]))
    fitted = fit_discrepancy("classification", outputs, answers, (1.0, 1.0, 1.0))

    def score(*votes: int) -> float:
        one = np.array([[[1 - p, p] if vote else [p, 1 - p] for vote, p in zip(votes, (0.7, 0.9, 0.9))]])
        return float(fitted.scores(one, np.tensordot(one, weights / weights.sum(), axes=([1], [0])))[0])

    assert score(1, 1, 1) < score(0, 1, 1) < score(1, 0, 1)
    assert all(0 <= score(a, b, c) <= 1 for a in (0, 1) for b in (0, 1) for c in (0, 1))


def test_regression_counts_distances_by_each_models_usual_one() -> None:
    answers = np.zeros((100, 1))
    outputs = np.stack([np.full((100, 1), 1.0), np.full((100, 1), 10.0)], axis=1)
    fitted = fit_discrepancy("regression", outputs, answers, (1.0, 1.0))
    assert fitted.scales == (1.0, 10.0)
    assert fitted.scores(np.array([[[0.5], [5.0]]]), np.zeros((1, 1)))[0] == pytest.approx(0.5)
    assert fitted.scores(np.array([[[0.0], [0.0]]]), np.zeros((1, 1)))[0] == 0


def test_models_that_always_agree_score_nothing() -> None:
    outputs = np.full((60, 2, 2), 0.5)
    fitted = fit_discrepancy("classification", outputs, np.full((60, 2), 0.5), (1.0, 1.0))
    assert fitted.scores(outputs, np.full((60, 2), 0.5)).max() == 0
