"""Combiners: each kind by hand, with models left out; stacking fills what is missing; tables that cannot be used."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest

from edgeserve.errors import ConfigError
from edgeserve.predict.combiner import Combiner, combiner_of

OUTPUTS = np.array([[[0.6, 0.4], [0.1, 0.9], [0.7, 0.3]]])
WEIGHTS = (0.2, 0.7, 0.1)


@pytest.mark.parametrize(
    ("kind", "subset", "answer"),
    [
        ("vote", 7, [2 / 3, 1 / 3]),
        ("vote", 2, [0, 1]),
        ("weighted_vote", 7, [0.3, 0.7]),
        ("weighted_vote", 5, [1, 0]),
        ("average", 7, [1.4 / 3, 1.6 / 3]),
        ("average", 3, [0.35, 0.65]),
        ("weighted_average", 7, [0.26, 0.74]),
        ("weighted_average", 5, [0.19 / 0.3, 0.11 / 0.3]),
    ],
)
def test_each_kind_by_hand(kind: str, subset: int, answer: Any) -> None:
    combiner = Combiner(kind, "classification", WEIGHTS)
    unknown = OUTPUTS.copy()
    for model in range(3):
        if not subset >> model & 1:
            unknown[:, model] = np.nan
    assert combiner.answers(unknown, subset)[0] == pytest.approx(answer)


def test_models_of_no_weight_alone_are_averaged() -> None:
    combiner = Combiner("weighted_average", "regression", (0.0, 0.0, 1.0))
    assert combiner.answers(np.array([[[1.0], [3.0], [9.0]]]), 3)[0] == pytest.approx([2.0])


def test_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one of 3"):
        Combiner("vote", "classification", WEIGHTS).answers(OUTPUTS, 0)


def stacking() -> Combiner:
    """Regression on two models: the sum of both. In the records the second is ten times the first."""
    first = np.arange(1, 41, dtype=float)
    records = np.stack([first, 10 * first], axis=1)[:, :, None]
    return Combiner("stacking", "regression", (0.5, 0.5), np.ones((2, 1)), np.zeros(1), records)


def test_stacking_fills_what_is_missing_from_near_records() -> None:
    outputs = np.array([[[20.0], [np.nan]]])
    assert stacking().answers(outputs, 1)[0, 0] == pytest.approx(220, rel=0.01)
    assert stacking().answers(np.array([[[np.nan], [200.0]]]), 2)[0, 0] == pytest.approx(220, rel=0.01)
    assert stacking().answers(np.array([[[3.0], [4.0]]]), 3)[0, 0] == 7


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "median"}, "expected one of vote"),
        ({"weights": [0, 0]}, "weights"),
        ({"weights": None}, "f.json"),
        ({"records": [[1.0]]}, "do not fit"),
        ({"coefficients": None}, "f.json"),
        ({"kind": "vote"}, "needs classes"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(changes: Dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="f.json") as refused:
        combiner_of({**stacking().table(), **changes}, "f.json")
    assert said in str(refused.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match="no key 'weights'"):
        combiner_of({"kind": "vote", "task": "classification"}, "f.json")
    with pytest.raises(ConfigError, match="expected a table"):
        combiner_of(None, "f.json")
