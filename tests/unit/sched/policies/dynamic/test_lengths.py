"""Batch times of requests of unknown length: order statistics, the law of a batch, windows, corrections."""

from __future__ import annotations

import random

import pytest

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.distribution import timing_constant
from edgeserve.sched.policies.dynamic.calibration import HITS_LEN, Calibration
from edgeserve.sched.policies.dynamic.evidence import BatchRow
from edgeserve.sched.policies.dynamic.lengths import (
    BIAS_LEN,
    POINTS_MAX,
    LengthWindow,
    SizeBias,
    learnt_of,
    lengths_of,
)

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
        made.add(0, round((low + (high - low) * index / (count - 1)) * UNIT))
    return made


def test_the_expected_maximum_is_that_of_order_statistics():
    """A = uniform(10, 20), B = uniform(15, 35): the vectors of the specification, section 3; c0 = 0 and c(k) = 1."""
    flat = BatchTime("m", "l", {size: timing_constant(20 * UNIT) for size in (1, 2, 4)}, (1, 2, 4))
    flat.fixed_ns = 0
    known = lengths_of(flat, {"a": window(10, 20), "b": window(15, 35)}, {"a": 1.0, "b": 1.0})
    for members, expected in ((("a", "a"), 16.666667), (("a", "b"), 25.104167), (("a", "a", "b", "b"), 28.356771)):
        assert known.batch(len(members), members).mean_ns() / UNIT == pytest.approx(expected, rel=1e-3)


def test_a_batch_takes_the_fixed_part_and_its_longest_member_once_per_job():
    """c0 = 5, c1 = 0.5: E[L_B] of (A, A, B, B) is 61.713542 where u = c1 * l."""
    known = lengths_of(
        latency(fixed=5, per_unit=0.5),
        {"a": window(5 + 5, 5 + 10), "b": window(5 + 7.5, 5 + 17.5)},
        {"a": 1.0, "b": 1.0},
    )
    assert known.factors == {1: 1.0, 2: 2.0, 4: 4.0}
    assert known.batch(4, ("a", "a", "b", "b")).mean_ns() / UNIT == pytest.approx(61.713542, rel=1e-3)
    assert known.batch(1, ("b",)).mean_ns() == pytest.approx(known.mean_alone_ns("b"))
    assert known.mean_alone_ns("a") / UNIT == pytest.approx(12.5, rel=1e-3)


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


def test_where_no_share_is_known_every_class_is_as_frequent():
    windows = {"a": window(10, 20), "b": window(15, 35)}
    known = lengths_of(latency(), windows, {"a": 1.0, "b": 1.0}).expected(None, 2, 2).mean_ns()
    assert lengths_of(latency(), windows, {"stranger": 5.0}).expected(None, 2, 2).mean_ns() == known


def test_however_many_classes_the_law_is_kept_at_a_bounded_number_of_points():
    windows = {f"class {number}": window(10 + number, 20 + 2 * number, 101) for number in range(20)}
    known = lengths_of(latency(), windows, dict.fromkeys(windows, 1.0))
    assert len(known.points) <= POINTS_MAX
    assert (known.points[0], known.points[-1]) == (pytest.approx(10 * UNIT), pytest.approx(58 * UNIT))
    assert known.mean_alone_ns("class 0") / UNIT == pytest.approx(15, rel=0.01)


def test_static_models_follow_their_profile_not_the_law():
    """Where a batch of 4 costs twice a single one, c(4) says so."""
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


def test_a_lane_at_half_speed_takes_twice_as_long():
    slow = lengths_of(latency(fixed=5), {"a": window(10, 20)}, {"a": 1.0}, speed=0.5)
    full = lengths_of(latency(fixed=5), {"a": window(10, 20)}, {"a": 1.0})
    assert slow.batch(2, ("a", "a")).mean_ns() == pytest.approx(2 * full.batch(2, ("a", "a")).mean_ns())


def test_a_law_that_holds_is_left_alone_and_one_that_does_not_is_corrected():
    draw = random.Random("bias")
    bias = SizeBias(fixed_ns=10.0)
    for _ in range(BIAS_LEN):
        bias.observe(2, 110.0, 110.0 * draw.uniform(0.7, 1.3))
        bias.observe(4, 110.0, 10.0 + 150.0 * draw.uniform(0.9, 1.1))
    bias.observe(8, 110.0, 1000.0)  # one batch says nothing
    corrections = bias.corrections()
    assert set(corrections) == {4}
    assert corrections[4] == pytest.approx(1.5, rel=0.05)


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


def rows(size, took_ms, count=1, name="a"):
    return [BatchRow(0, size, ((name, None),) * size, took_ms * UNIT)] * count


def learnt(model, batches, windows=None, speed=1.0, corrected=True):
    return learnt_of(model, windows or {}, {"a": 1.0}, batches, lambda app, hint: app, speed, corrected)


def test_a_batch_tells_its_longest_member_by_what_a_batch_of_its_size_multiplies():
    model = latency(fixed=10)  # 10 + 20 k
    lengths, corrections = learnt(model, rows(1, 31) + rows(2, 54) + rows(4, 70), corrected=False)
    for longest_ms in (21, 22, 15):  # (31 - 10) / 1, (54 - 10) / 2, (70 - 10) / 4
        assert longest_ms * UNIT in lengths.points.tolist()
    assert lengths.fixed_ns == 10 * UNIT and lengths.factors == {1: 1.0, 2: 2.0, 4: 4.0} and corrections == {}
