"""Accuracy profiles: shares of a drawn ensemble, bins, Eq. 3 beside counted shares, what answers say of the rest."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from edgeserve.config.ensemble_profile import EnsembleProfile
from edgeserve.predict import accuracy
from edgeserve.predict.combiner import Combiner


def drawn(records: int, models: int, seed: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of models that err more on harder records, and the records' difficulty."""
    random = np.random.default_rng(seed)
    difficulty = random.random(records)
    truth = random.integers(0, 3, records)
    outputs = np.full((records, models, 3), 0.1)
    for model in range(models):
        wrong = random.random(records) < difficulty * (0.4 + 0.05 * model)
        says = np.where(wrong, (truth + random.integers(1, 3, records)) % 3, truth)
        outputs[np.arange(records), model, says] = 0.8
    return outputs, difficulty


def test_bins_have_about_equal_numbers_and_ties_share_one() -> None:
    values = np.concatenate([np.zeros(50), np.linspace(0, 1, 50)])
    edges = accuracy.equal_edges(values, 4)
    places = accuracy.bin_of(values, edges)
    assert list(edges) == sorted(set(edges)) and len(edges) <= 2
    assert set(places[:50]) == {0}
    assert accuracy.equal_edges(np.zeros(10), 4) == ()


def test_shares_are_the_counted_ones_and_harder_bins_agree_less() -> None:
    outputs, difficulty = drawn(6000, 3)
    combiner = Combiner("average", "classification", (1.0, 1.0, 1.0))
    edges = accuracy.equal_edges(difficulty, 3)
    places = accuracy.bin_of(difficulty, edges)
    rows = accuracy.profile_rows(combiner, outputs, places, 3, 0.0)
    whole = combiner.answers(outputs, 7).argmax(axis=1)
    for subset in (1, 2, 4):
        agree = combiner.answers(outputs, subset).argmax(axis=1) == whole
        counted = [float(agree[places == place].mean()) for place in range(3)]
        assert [row[subset] for row in rows] == pytest.approx(counted, abs=0.01)
        assert rows[0][subset] > rows[1][subset] > rows[2][subset]
    EnsembleProfile(("a", "b", "c"), edges, rows)  # its checks: monotone, 0 for none, 1 for all


def test_a_small_bin_leans_on_the_mean() -> None:
    outputs, _ = drawn(1000, 2)
    places = np.zeros(1000, int)
    places[0] = 1
    rows = accuracy.profile_rows(Combiner("average", "classification", (1.0, 1.0)), outputs, places, 2, 0.0)
    assert rows[1][1] == pytest.approx(rows[0][1], abs=0.06)


def unsure(records: int, models: int) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of noisy logits, so that no two answers tie, and the records' difficulty."""
    random = np.random.default_rng(4)
    difficulty = random.random(records)
    logits = np.eye(3)[random.integers(0, 3, records)] * (4 - 3 * difficulty)[:, None]
    noisy = logits[:, None] + random.normal(0, 1, (records, 1, 3)) + random.normal(0, 1.2, (records, models, 3))
    powers = np.exp(noisy)
    return powers / powers.sum(axis=2, keepdims=True), difficulty


def test_large_ensembles_are_extended_from_pairs() -> None:
    """Six models: the mean squared error beside counting every subset is small."""
    outputs, difficulty = unsure(8000, 6)
    combiner = Combiner("average", "classification", (1.0,) * 6)
    places = accuracy.bin_of(difficulty, accuracy.equal_edges(difficulty, 4))
    rows = accuracy.profile_rows(combiner, outputs, places, 4, 0.0)
    assert accuracy.WHOLE_MODELS_MAX < 6
    for size in (3, 4, 5):
        subsets = [sum(1 << model for model in chosen) for chosen in combinations(range(6), size)]
        agree = accuracy.agreements(combiner, outputs, subsets, 0.0)
        errors = [
            (rows[place][subset] - float(agree[subset][places == place].mean())) ** 2
            for subset in subsets
            for place in range(4)
        ]
        assert np.mean(errors) < 1e-3, size


def test_regression_agrees_within_a_tolerance() -> None:
    outputs = np.array([[[0.0], [1.0]], [[0.0], [0.1]]])
    combiner = Combiner("average", "regression", (1.0, 1.0))
    agree = accuracy.agreements(combiner, outputs, [1, 3], 0.1)
    assert agree[1].tolist() == [False, True] and agree[3].all()


def test_what_two_models_said_tells_how_often_the_third_changes_the_answer() -> None:
    outputs, difficulty = drawn(9000, 3)
    combiner = Combiner("average", "classification", (1.0, 1.0, 1.0))
    tables = accuracy.observed_tables(combiner, outputs, difficulty, (0.5,), 0.0)
    assert sorted(tables) == [1, 2, 3, 4, 5, 6]
    rows = accuracy.profile_rows(combiner, outputs, np.zeros(9000, int), 1, 0.0)
    profile = EnsembleProfile(("a", "b", "c"), (), rows, observed=tables, score_edges=(0.5,))
    agreed, split = profile.observed_row(3, 0.7, 0.2), profile.observed_row(3, 0.0, 0.2)
    assert agreed is not None and split is not None
    assert agreed[3] > 0.99 and split[3] < 0.75
    assert agreed[7] == 1 and agreed[4] == 0  # a subset without the models that have answered


def test_margins() -> None:
    assert accuracy.margins_of(np.array([[0.7, 0.1, 0.2]]))[0] == pytest.approx(0.5)
