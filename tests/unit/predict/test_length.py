"""Length predictions: the distribution, the packaged model, learning from answers, and files that cannot be used."""

from __future__ import annotations

import math
import pathlib

import numpy as np
import pytest

from edgeserve.errors import ConfigError
from edgeserve.predict.length import (
    BUCKETS,
    RULES,
    WEIGHTS,
    LengthModel,
    LengthPrediction,
    buckets,
    load_length_model,
    packaged,
)


def model(**changes: object) -> LengthModel:
    """Every text has e^3 tokens, half and twice as many equally likely."""
    given = {
        "weights": np.zeros(WEIGHTS),
        "bias": 3.0,
        "shift": np.zeros(RULES),
        "scale": np.ones(RULES),
        "residuals": [math.log(2), -math.log(2)],
        "factor": 1.0,
        "about": {},
    }
    given.update(changes)
    return LengthModel(**given)  # type: ignore[arg-type]


def test_mean_and_quantiles_are_those_of_the_residuals_and_are_cut_where_the_answer_is() -> None:
    law = model().predict("Why?")
    middle = math.exp(3.0)
    assert law.mean() == pytest.approx(1.25 * middle)
    assert law.mean(most=middle) == pytest.approx(0.75 * middle)
    assert law.quantile(1.0) == pytest.approx(2 * middle) and law.quantile(0.0) == pytest.approx(middle / 2)
    assert law.quantile(1.0, most=30.0) == 30.0
    assert model(factor=2.0).predict("Why?").mean() == pytest.approx(2.5 * middle)
    assert LengthPrediction(0.0, np.array([-5.0])).mean() == 1.0  # an answer has a token
    with pytest.raises(ValueError, match=r"share = 2, expected a number from 0 to 1"):
        law.quantile(2)


def test_the_spread_is_that_of_a_lognormal_law_with_this_mean() -> None:
    sigma = model().sigma
    assert math.exp(3.0 + sigma * sigma / 2.0) == pytest.approx(1.25 * math.exp(3.0))


def test_words_and_pairs_have_buckets_and_a_long_text_costs_no_more_than_a_bound() -> None:
    assert len(buckets("Switch the light on")) == 4 + 5
    assert set(buckets("on the light")) != set(buckets("light the on"))  # the pairs
    assert np.array_equal(buckets("word " * 401), buckets("word " * 100_000))
    assert len(buckets("")) == 1


def test_the_packaged_model_tells_open_questions_from_closed_ones() -> None:
    closed = ["What is the capital of Malta?", "Is water wet? Answer yes or no.", "Who wrote Dracula?"]
    opened = ["Write a long story about a dragon and a king.", "Explain how and why birds migrate, with examples."]
    means = [packaged().predict(text).mean(512) for text in (*closed, *opened)]
    assert sum(means[:3]) / 3 < 0.6 * sum(means[3:]) / 2
    assert all(1 <= mean <= 512 for mean in means)


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "cannot be used"), (b"no model", "cannot be used"), (None, "No such file")]
)
def test_a_file_that_is_no_model(tmp_path: pathlib.Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "m.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_length_model(str(path))


def test_another_version_is_refused(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "m.npz")
    np.savez(path, header=np.frombuffer(b'{"format": "edgeserve length model", "version": 99}', np.uint8))
    with pytest.raises(ConfigError, match="version 99, expected 'edgeserve length model' version 2"):
        load_length_model(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": np.zeros(BUCKETS)}, "weights"),
        ({"scale": np.zeros(RULES)}, "scale"),
        ({"residuals": []}, "residuals"),
        ({"bias": math.nan}, "not finite"),
        ({"weights": np.full(WEIGHTS, np.inf)}, "not finite"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        model(**changes)  # type: ignore[arg-type]
