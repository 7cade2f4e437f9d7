"""Batch times of requests of unknown length: order statistics, the law of a batch, windows, corrections."""

from __future__ import annotations

import random

import pytest

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.timings import timing_constant
from edgeserve.sched.published.orloj.calibration import HITS_LEN, Calibration
from edgeserve.sched.published.orloj.lengths import BIAS_LEN_MIN, POINTS_MAX, LengthWindow, SizeBias, lengths_of

UNIT = 1_000_000  # one unit of the specification's vectors, in ns


def latency(fixed=0.0, per_unit=1.0, mean=20.0, sizes=(1, 2, 4)):
    """A model whose profile says fixed + per_unit * size * mean."""
    return BatchTime(
        "m", "l", {size: timing_constant(round((fixed + per_unit * size * mean) * UNIT)) for size in sizes}, sizes
    )


def window(low, high, count=4001):
    """Times alone that are uniform between two values."""
    made = LengthWindow(count)
    for index in range(count):
        made.add(round((low + (high - low) * index / (count - 1)) * UNIT))
    return made


def test_quantiles_are_those_of_drawn_batches():
    draw = random.Random("batches")
    known = lengths_of(
        latency(fixed=10), {"short": window(12, 20), "long": window(30, 60)}, {"short": 0.75, "long": 0.25}
    )

    def alone(name):
        return draw.uniform(2, 10) if name == "short" else draw.uniform(20, 50)

    drawn = sorted(
        10 + 4 * max(alone("long" if draw.random() < 0.25 else "short") for _ in range(4)) for _ in range(20_000)
    )
    common = known.expected(None, 4, 4)
    own = known.expected("short", 4, 4)
    for share in (0.1, 0.5, 0.9):
        assert common.quantile_ns(share) / UNIT == pytest.approx(drawn[int(share * len(drawn))], rel=0.03)
    assert own.mean_ns() < common.mean_ns() < known.expected("long", 4, 4).mean_ns()


def test_however_many_classes_the_law_is_kept_at_a_bounded_number_of_points():
    windows = {f"class {number}": window(10 + number, 20 + 2 * number, 101) for number in range(20)}
    known = lengths_of(latency(), windows, dict.fromkeys(windows, 1.0))
    assert len(known.points) <= POINTS_MAX
    assert (known.points[0], known.points[-1]) == (pytest.approx(10 * UNIT), pytest.approx(58 * UNIT))
    assert known.mean_alone_ns("class 0") / UNIT == pytest.approx(15, rel=0.01)


def test_static_models_follow_their_profile_not_the_law():
    """If a batch of 4 costs twice a single one, c(4) says so."""
    static = BatchTime(
        "m",
        "l",
        {1: timing_constant(10 * UNIT), 2: timing_constant(13 * UNIT), 4: timing_constant(20 * UNIT)},
        (1, 2, 4),
    )
    exact = LengthWindow(4, [10 * UNIT] * 4)
    known = lengths_of(static, {"a": exact}, {"a": 1.0})
    for size, took in ((1, 10), (2, 13), (4, 20)):
        assert known.batch(size, ("a",) * size).mean_ns() / UNIT == pytest.approx(took, abs=0.01)


def test_stated_quantiles_hold_even_where_the_prediction_is_wrong_and_again_after_a_shift():
    draw = random.Random("calibration")
    calibration = Calibration()
    for work in range(3000):
        slow = 1.7 if work < 1500 else 0.6
        calibration.state(work, 100_000)
        calibration.ended(work, round(slow * draw.uniform(50_000, 100_000)))
        if work in (1499, 1500 + 2 * HITS_LEN, 2999):
            assert calibration.recent() == pytest.approx(0.9, abs=0.07)
    assert calibration.stated == 3000
    assert calibration.covered / calibration.stated == pytest.approx(0.9, abs=0.03)


def test_a_size_that_takes_longer_than_the_law_says_is_corrected_by_as_much():
    bias = SizeBias(10 * UNIT)
    for _ in range(BIAS_LEN_MIN):
        bias.observe(1, 30 * UNIT, 30 * UNIT)
        bias.observe(4, 90 * UNIT, 170 * UNIT)
    for _ in range(BIAS_LEN_MIN - 1):
        bias.observe(2, 50 * UNIT, 90 * UNIT)
    assert bias.corrections() == {4: 2.0}
    known = lengths_of(latency(fixed=10), {"a": LengthWindow(4, [30 * UNIT] * 4)}, {"a": 1.0}, bias.corrections())
    for size, took in ((1, 30), (2, 50), (4, 170)):
        assert known.batch(size, ("a",) * size).mean_ns() / UNIT == pytest.approx(took, abs=0.01)
