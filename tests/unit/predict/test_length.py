"""Length predictions: the distribution, the packaged model, learning from answers, and files that cannot be used."""

from __future__ import annotations

import math
import pathlib
import pickle

import numpy as np
import pytest

from edgeserve.errors import ConfigError
from edgeserve.predict.length import (
    BUCKETS,
    RULES,
    WEIGHTS,
    LearningModel,
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


def test_it_learns_the_people_it_serves_without_keeping_their_words_and_never_grows() -> None:
    before, learning = packaged(), LearningModel(packaged())
    kept = [name for name in LearningModel.__slots__ if name != "_lock"] + ["weights", "residuals"]
    size = len(pickle.dumps({name: getattr(learning, name) for name in kept}))
    fresh = {"zebra": 6, "gnu": 300}

    def ratio(of: LengthModel) -> float:
        return of.predict("recount the gnu saga").mean() / of.predict("recount the zebra saga").mean()

    for number in range(150):
        for word, tokens in fresh.items():
            learning.learn(f"recount the {word} {'abcd'[number % 4]}", tokens)
    assert 0.3 < ratio(before) < 3.0
    assert ratio(learning) > 10.0
    assert learning.predict("recount the gnu saga").mean() == pytest.approx(300, rel=0.4)
    assert learning.answers == 300
    held = pickle.dumps({name: getattr(learning, name) for name in kept})
    assert len(held) < size + 2500 and b"gnu" not in held  # the last 128 residuals


def test_what_is_learnt_stays_out_of_the_model_that_it_started_from() -> None:
    start = model()
    learning = LearningModel(start)
    learning.learn("Why?", 1)
    assert start.predict("Why?").mean() == model().predict("Why?").mean() > learning.predict("Why?").mean()


def test_an_answer_that_was_cut_below_its_prediction_teaches_nothing_and_one_beyond_it_does() -> None:
    learning = LearningModel(model())
    learning.learn("Why?", 5, most=5)
    assert learning.answers == 0 and learning.predict("Why?").mean() == model().predict("Why?").mean()
    learning.learn("Why?", 200, most=200)
    assert learning.predict("Why?").mean() > model().predict("Why?").mean()


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
