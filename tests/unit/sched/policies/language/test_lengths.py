"""Predicted lengths: what is left of a sequence that has begun, and declared lengths corrected by real ones."""

from __future__ import annotations

import math
import random

import pytest

from edgeserve.sched.policies.language.lengths import GIVEN_UP_MAX, HOPELESS, TRUSTED, Length, Lengths


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


def test_a_sequence_far_beyond_its_prediction_is_expected_to_double():
    assert Length(1.0, 0.1).remaining(500) == 500.0
    assert Length(3.0, 0.0).remaining(5) == math.exp(3.0) - 5
    assert Length(3.0, 0.0).remaining(50) == 1.0


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


def test_the_chance_where_the_length_is_certain_and_far_beyond_the_prediction():
    assert [Length(math.log(20.0), 0.0).chance(15, more) for more in (4.0, 5.5)] == [0.0, 1.0]
    assert Length(1.0, 0.1).chance(500, 500.0) == 0.5


def test_requests_are_given_up_for_their_length_only_where_answers_confirm_it_and_only_so_many_in_a_row():
    lengths = Lengths(True, 64.0)
    assert not lengths.may_give_up()
    for _ in range(TRUSTED):
        lengths.finished(30.0, 90)
    assert lengths.may_give_up()
    lengths.given_up = GIVEN_UP_MAX
    assert not lengths.may_give_up()
    lengths.finished(30.0, 10)
    assert lengths.may_give_up()


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


def test_the_shortest_answers_are_taken_for_what_they_declare():
    lengths = Lengths(True, 64.0)
    for _ in range(200):
        lengths.finished(1.0, 1)
        lengths.finished(2.0, 2)
    assert [lengths.predict(told, None).mean() for told in (1.0, 2.0)] == pytest.approx([1.0, 2.0], rel=0.05)


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


def test_no_answer_is_predicted_longer_than_a_million_steps():
    assert Length(19.0, 1.0).mean() == 1_000_000.0


def test_the_chance_and_what_is_left_at_the_bounds():
    for length in (Length(3.0, 0.6), Length(0.5, 2.0)):
        below = 0.5 * math.erfc(length.log_mean / length.sigma / math.sqrt(2.0))
        assert length.chance(0, 1.0) == pytest.approx(below)
        assert length.chance(0, 0.999) == 0.0
    assert Length(-5.0, 0.1).remaining(1) == 1.0, "far beyond its prediction"
    known, almost = Length(3.0, 0.9e-6), Length(3.0, 1e-6)
    assert (known.remaining(50), almost.remaining(50)) == (1.0, 50.0)
    assert (known.chance(50, 50.0), almost.chance(50, 50.0)) == (1.0, 0.5)
    assert Length(3.0, 0.5).least() == pytest.approx(math.exp(3.0 - 0.8416 * 0.5))
    assert Length(-3.0, 0.5).least() == 1.0


def test_before_any_answer_lengths_are_those_of_the_prior():
    assert Lengths(True, 64.0).figures() == {
        "answers": 0,
        "middle_steps": pytest.approx(64.0),
        "slope": 1.0,
        "factor": pytest.approx(math.exp(-0.125)),
        "sigma": 0.5,
    }
    assert Lengths(True, 64.0).predict(None, None) == Length(math.log(64.0), 0.5)
    assert Lengths(True, 64.0).predict(40.0, None) == Length(pytest.approx(math.log(40.0) - 0.125), 0.5)
    assert Lengths(True, 64.0).predict(40.0, 0.2) == Length(pytest.approx(math.log(40.0) - 0.02), 0.2)
    assert Lengths(True, 64.0).predict(40.0, -1.0) == Length(math.log(40.0), 0.0)


def test_the_line_is_fitted_to_answers_and_to_a_prior_of_eight():
    lengths = Lengths(True, 64.0)
    lengths.finished(math.exp(1.0), 5)
    lengths.finished(math.exp(3.0), 40)
    half = math.log(8.0) / 2.0  # of the distance of their logarithms
    slope = (2 * half + 2.0) / (2.0 + 2.0)
    level = (2 * (math.log(5.0) + half - 2.0) + 8 * -0.125) / 10.0
    sigma = math.sqrt((2 * (half - slope) ** 2 + 2.0) / 10.0)
    found = lengths.predict(math.exp(2.5), None)
    assert found == (pytest.approx(2.0 + level + 0.5 * slope), pytest.approx(sigma))
    told = lengths.figures()
    assert (told["answers"], told["slope"], told["factor"]) == (2, pytest.approx(slope), pytest.approx(math.exp(level)))
    assert told["sigma"] == pytest.approx(sigma)
    unknown = lengths.predict(None, None)
    assert unknown.log_mean == pytest.approx((math.log(5.0) + math.log(40.0) + math.log(64.0)) / 3.0)
    assert unknown.sigma == pytest.approx(math.sqrt((2 * half**2 + 2.0) / 10.0))


def test_the_line_never_falls_and_is_never_steeper_than_two():
    for steps, slope in (((200, 2), 0.0), ((1, 20_000), 2.0)):
        lengths = Lengths(True, 64.0)
        for _ in range(20):
            for told, real in zip((10.0, 40.0), steps):
                lengths.finished(told, real)
        assert lengths.figures()["slope"] == slope


def test_the_last_128_answers_are_looked_back_on():
    lengths = Lengths(True, 64.0)
    for steps in [1000] + [10] * 128:
        lengths.finished(10.0, steps)
    assert lengths.figures()["answers"] == 128
    assert lengths.figures()["sigma"] == pytest.approx(math.sqrt(2.0 / 136.0)), "the first one is forgotten"
