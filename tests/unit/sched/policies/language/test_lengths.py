"""Predicted lengths: what is left of a sequence that has begun, and declared lengths corrected by real ones."""

from __future__ import annotations

import math
import random

from edgeserve.sched.policies.language.lengths import HOPELESS, Length, Lengths


def test_the_mean_of_a_lognormal_length():
    assert abs(Length(3.0, 0.5).mean() - math.exp(3.125)) < 1e-9
    assert Length(-5.0, 0.1).mean() == 1.0


def test_what_is_left_is_the_mean_of_those_that_are_longer():
    draw = random.Random(1)
    drawn = [draw.lognormvariate(3.0, 0.6) for _ in range(200_000)]
    length = Length(3.0, 0.6)
    for done in (5, 20, 40):
        longer = [value for value in drawn if value > done]
        assert abs(length.remaining(done) - (sum(longer) / len(longer) - done)) < 0.05 * length.remaining(done)
    assert length.remaining(0) == length.mean()


def test_the_chance_to_be_whole_is_that_among_those_that_are_longer_already():
    draw = random.Random(3)
    drawn = [draw.lognormvariate(3.0, 0.6) for _ in range(100_000)]
    length = Length(3.0, 0.6)
    for done, more in ((0, 10.0), (5, 10.0), (20, 3.0), (40, 30.0)):
        longer = [value for value in drawn if value > done]
        share = sum(value <= done + more for value in longer) / len(longer)
        assert abs(length.chance(done, more) - share) < 0.02, (done, more)
    assert length.chance(0, 0.5) == length.chance(30, 0.0) == 0.0  # it needs one more step at least
    assert abs(length.chance(0, length.least()) - HOPELESS) < 1e-3


def finished(lengths, factor, seed=2, count=100, sigma=0.3, useless=False):
    draw = random.Random(seed)
    for _ in range(count):
        mean = draw.lognormvariate(3.0, 0.5)
        real = mean * draw.lognormvariate(-sigma * sigma / 2, sigma)
        told = draw.lognormvariate(3.0, 0.5) if useless else mean * factor
        lengths.finished(told, max(1, round(real)))


def test_declared_lengths_are_believed_before_anything_was_seen_and_where_nothing_is_corrected():
    assert abs(Lengths(True, 64.0).predict(40.0, None).mean() - 40.0) < 1e-9
    believing = Lengths(False, 64.0)
    finished(believing, 3.0)
    assert abs(believing.predict(40.0, 0.2).mean() - 40.0) < 1e-9


def test_lengths_declared_three_times_too_long_or_short_are_corrected():
    for factor in (3.0, 1 / 3):
        lengths = Lengths(True, 64.0)
        finished(lengths, factor)
        for mean in (10.0, 20.0, 40.0):
            assert abs(lengths.predict(mean * factor, None).mean() / mean - 1) < 0.25


def test_hints_that_say_nothing_become_equal_predictions():
    useless, good = Lengths(True, 64.0), Lengths(True, 64.0)
    finished(useless, 1.0, useless=True)
    finished(good, 1.0)

    def ratio(lengths):
        return lengths.predict(40.0, None).mean() / lengths.predict(10.0, None).mean()

    assert ratio(useless) < 1.6
    assert 3.0 < ratio(good) < 5.0
    assert useless.predict(20.0, None).sigma > good.predict(20.0, None).sigma


def test_without_hints_the_finished_answers_of_the_app_tell():
    lengths = Lengths(True, 64.0)
    assert 50 < lengths.predict(None, None).mean() < 80  # what the option assumes
    for _ in range(30):
        lengths.finished(None, 200)
    assert 150 < lengths.predict(None, None).mean() < 260
    assert lengths.figures()["answers"] == 30


def test_answers_of_one_token_and_absurd_hints_stay_finite():
    lengths = Lengths(True, 64.0)
    for told in (0.0, -5.0, 1e30):
        lengths.finished(told, 1)
        assert 1.0 <= lengths.predict(told, None).mean() < 1e7
