"""Models that answer with texts: what their words become, and what a vote over them says."""

from __future__ import annotations

import numpy as np
import pytest

from edgeserve.predict import texts
from edgeserve.predict.combiner import Combiner
from edgeserve.predict.history import EnsembleHistory

EQUAL = Combiner("average", "classification", (1.0, 1.0, 1.0))


def test_equal_texts_share_a_column_and_the_rest_is_spread() -> None:
    different, rows = texts.classes([("to", 0.7), ("too", 0.4), ("to", 0.88)])
    assert different == ["to", "too"]
    assert rows == pytest.approx(np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.4, 0.2, 0.2], [0.88, 0.04, 0.04, 0.04]]))


def test_two_who_agree_win_against_one_who_is_surer_until_that_one_counts_more() -> None:
    said = [("coin", 0.7), ("corn", 0.95), ("coin", 0.8)]
    assert texts.combined(said, EQUAL)[0] == "coin"
    assert texts.combined(said, Combiner("weighted_average", "classification", (0.1, 0.8, 0.1)))[0] == "corn"
    assert texts.combined(said, Combiner("vote", "classification", (1.0, 1.0, 1.0))) == ("coin", pytest.approx(2 / 3))


def test_models_that_did_not_run_are_left_out() -> None:
    assert texts.combined([None, ("corn", 0.9), None], EQUAL) == ("corn", pytest.approx(0.9))
    with pytest.raises(ValueError, match="no model"):
        texts.combined([None, None], EQUAL)


def test_the_answer_of_a_subset_is_that_of_the_history() -> None:
    """A fitted and a served predictor must judge alike under any names of columns."""
    draw = np.random.default_rng(1)
    words = ("a", "b", "c", "d")
    combiner = Combiner("weighted_average", "classification", (0.5, 0.2, 0.3))
    for _ in range(200):
        said = [(words[draw.integers(4)], float(draw.uniform(0.3, 1.0))) for _ in range(3)]
        different, rows = texts.classes(said)
        for subset in range(1, 8):
            part = [item if subset >> model & 1 else None for model, item in enumerate(said)]
            column = int(combiner.answers(rows[None].astype(float), subset)[0].argmax())
            assert texts.combined(part, combiner)[0] == different[column]


@pytest.mark.parametrize("sure", [float(0), 1.0, 2.0, -1.0])
def test_rows_are_probabilities_that_a_history_takes(sure: float) -> None:
    rows = texts.classes([("a", sure), ("b", 0.5)])[1]
    assert len(EnsembleHistory(("x", "y"), np.stack([rows] * 50).astype(float))) == 50


def test_the_true_text_is_a_label_or_any_other() -> None:
    said = [("to", 0.7), ("too", 0.4)]
    assert [texts.label_of(said, truth) for truth in ("to", "too", "two")] == [0, 1, 2]


def test_hints_of_equal_texts_are_equal() -> None:
    one, other = texts.hints("tiny", "coin", 0.8), texts.hints("small", "coin", 1.0)
    assert one["tiny.label"] == other["small.label"] != texts.hints("tiny", "corn", 0.8)["tiny.label"]
    assert (one["tiny.margin"], other["small.margin"]) == (0.8, texts.SURE_MAX)
