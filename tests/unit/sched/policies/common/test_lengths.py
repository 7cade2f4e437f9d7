"""Predicted lengths: what is left of a sequence that has begun, and declared lengths corrected by real ones."""

from __future__ import annotations

import random

import pytest

from edgeserve.sched.policies.common.lengths import LearnedLengths


def finished(lengths, factor, seed=2, count=100, sigma=0.3, useless=False):
    draw = random.Random(seed)
    for _ in range(count):
        mean = draw.lognormvariate(3.0, 0.5)
        real = mean * draw.lognormvariate(-sigma * sigma / 2, sigma)
        told = draw.lognormvariate(3.0, 0.5) if useless else mean * factor
        lengths.finished(told, max(1, round(real)))


def test_declared_lengths_are_believed_before_anything_was_seen_and_where_nothing_is_corrected():
    assert abs(LearnedLengths(True, 64.0).predict(40.0, None).mean() - 40.0) < 1e-6
    believing = LearnedLengths(False, 64.0)
    finished(believing, 3.0)
    assert abs(believing.predict(40.0, 0.2).mean() - 40.0) < 1e-6


def test_lengths_declared_three_times_too_long_or_short_are_corrected():
    for factor in (3.0, 1 / 3):
        lengths = LearnedLengths(True, 64.0)
        finished(lengths, factor)
        for mean in (10.0, 20.0, 40.0):
            assert abs(lengths.predict(mean * factor, None).mean() / mean - 1) < 0.25


def test_one_answer_does_not_make_hints_equal():
    lengths = LearnedLengths(True, 64.0)
    lengths.finished(20.0, 20)
    assert lengths.predict(80.0, None).mean() > 3 * lengths.predict(20.0, None).mean()


def test_hints_that_say_nothing_become_equal_predictions():
    useless, good = LearnedLengths(True, 64.0), LearnedLengths(True, 64.0)
    finished(useless, 1.0, useless=True)
    finished(good, 1.0)

    def ratio(lengths):
        return lengths.predict(40.0, None).mean() / lengths.predict(10.0, None).mean()

    assert ratio(useless) < 1.6
    assert 3.0 < ratio(good) < 5.0
    assert useless.predict(20.0, None).sigma > good.predict(20.0, None).sigma


def test_without_hints_the_finished_answers_of_the_app_tell():
    lengths = LearnedLengths(True, 64.0)
    assert 50 < lengths.predict(None, None).mean() < 80  # what the option assumes
    for _ in range(30):
        lengths.finished(None, 200)
    assert 150 < lengths.predict(None, None).mean() < 260
    assert lengths.figures()["answers"] == 30


def learnt(told, draw_steps):
    """Predictions for 900 answers, each before it came, and how long they were."""
    lengths, predicted, real = LearnedLengths(True, 64.0), [], []
    for index in range(1000):
        steps = draw_steps()
        if index >= 100:
            predicted.append(lengths.predict(told, None))
            real.append(steps)
        lengths.finished(told, steps)
    return predicted, real


@pytest.mark.parametrize("told", [None, 48.0])
def test_of_lognormal_answers_the_mean_and_the_quantiles_are_right(told):
    draw = random.Random(4)
    predicted, real = learnt(told, lambda: max(1, round(draw.lognormvariate(3.5, 0.6))))
    assert abs(sum(law.mean() for law in predicted) / sum(real) - 1.0) < 0.05
    for share in (0.2, 0.5, 0.8):
        inside = sum(steps <= law.quantile(share) for law, steps in zip(predicted, real)) / len(real)
        assert abs(inside - share) < 0.05, share


def test_answers_of_one_token_and_absurd_hints_stay_finite():
    lengths = LearnedLengths(True, 64.0)
    for told in (0.0, -5.0, 1e30):
        lengths.finished(told, 1)
        assert 1.0 <= lengths.predict(told, None).mean() < 1e7
