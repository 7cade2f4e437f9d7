"""Batch times of requests of unknown length: order statistics, the law of a batch, windows, corrections."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from edgeserve.sched.latency.distribution import timing_constant
from edgeserve.sched.latency.model import ModelLatency
from edgeserve.sched.policies.dynamic.calibration import FACTOR_MAX, HITS_LEN, Calibration
from edgeserve.sched.policies.dynamic.evidence import BatchRow, Longest, learn_lengths
from edgeserve.sched.policies.dynamic.lengths import (
    BIAS_LEN,
    POINTS_MAX,
    SEEDS_PER_SAMPLE,
    Lengths,
    LengthWindow,
    SizeBias,
    learnt_of,
    lengths_of,
)
from edgeserve.sched.policies.published.orloj.policy import Table

UNIT = 1_000_000  # one unit of the specification's vectors, in ns


def latency(fixed=0.0, per_unit=1.0, mean=20.0, sizes=(1, 2, 4)):
    """A model whose profile says fixed + per_unit * size * mean."""
    return ModelLatency(
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
    flat = ModelLatency("m", "l", {size: timing_constant(20 * UNIT) for size in (1, 2, 4)}, (1, 2, 4))
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


def test_a_class_that_was_never_seen_counts_as_any():
    known = lengths_of(latency(), {"a": window(10, 20)}, {"a": 1.0})
    assert known.alone("stranger").mean_ns() == known.alone("a").mean_ns()


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


def test_without_samples_the_profile_stands_for_every_request():
    known = lengths_of(latency(fixed=5, per_unit=2), {}, {})
    assert known.alone("a").mean_ns() / UNIT == pytest.approx(45, abs=0.01)
    assert known.batch(4, ("a",) * 4).mean_ns() / UNIT == pytest.approx(165, abs=0.01)


def test_static_models_follow_their_profile_not_the_law():
    """Where a batch of 4 costs twice a single one, c(4) says so."""
    static = ModelLatency(
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


def test_a_measured_time_displaces_several_of_the_profiles_as_long_as_there_are_any():
    made = LengthWindow(20, [100] * 20)
    made.add(1, 5)
    assert [time_ns for _, time_ns in made.samples] == [100] * (20 - SEEDS_PER_SAMPLE) + [5]
    for now in range(2, 5):
        made.add(now, 5)
    assert [time_ns for _, time_ns in made.samples] == [5] * 4


def test_windows_forget_the_oldest_and_what_is_too_old_but_never_everything():
    made = LengthWindow(3)
    for now, time_ns in ((1, 5), (5, 6), (10, 7), (20, 8)):
        made.add(now, time_ns)
    assert [time_ns for _, time_ns in made.samples] == [6, 7, 8]
    assert made.seen == 4
    made.forget(15)
    assert [time_ns for _, time_ns in made.samples] == [8]
    made.forget(100)
    assert len(made.samples) == 1


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


def test_sixteen_batches_tell_a_bias_that_is_kept_between_a_quarter_and_four():
    bias = SizeBias(fixed_ns=10.0)
    for _ in range(15):
        bias.observe(2, 110.0, 160.0)
    assert bias.corrections() == {}
    for _ in range(16):
        bias.observe(2, 110.0, 160.0)
        bias.observe(4, 110.0, 1000.0)
        bias.observe(8, 110.0, 11.0)
    assert bias.corrections() == {2: pytest.approx(1.5), 4: 4.0, 8: 0.25}
    for _ in range(64):
        bias.observe(2, 110.0, 110.0)
    assert 2 not in bias.corrections(), "the last 64 agree with the law"


@pytest.mark.parametrize(("beyond", "corrected"), [(0.151, True), (0.149, False), (-0.151, True), (-0.149, False)])
def test_a_bias_of_more_than_three_standard_errors_is_corrected(beyond, corrected):
    bias = SizeBias(fixed_ns=10.0)
    for index in range(16):  # a deviation of 0.2: the error of their mean is 0.05
        bias.observe(2, 110.0, 10.0 + 100.0 * (1.0 + beyond + (0.2 if index % 2 else -0.2)))
    assert bias.corrections() == ({2: pytest.approx(1.0 + beyond)} if corrected else {})


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


def test_the_first_batch_is_stated_as_predicted_and_lost_ones_do_not_count():
    calibration = Calibration()
    for work in range(5):
        assert calibration.state(work, 100) == 100
        calibration.lost(work)
        calibration.ended(work, 50)
    assert calibration.stated == 0
    assert calibration.recent() == 1.0


def test_the_correction_has_a_bound():
    calibration = Calibration()
    for work in range(2000):
        calibration.state(work, 100)
        calibration.ended(work, 10**9)
    assert calibration.state(2000, 100) == 100 * FACTOR_MAX
    assert calibration.covered == 0


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


def test_each_member_of_a_batch_counts_and_what_was_never_measured_is_taken_for_the_smallest_batch():
    model = latency(fixed=10)
    mixed = [BatchRow(0, 4, (("a", None), ("a", None), ("b", None), ("a", 1.0)), 90 * UNIT)] * 4
    found = learnt(model, mixed, corrected=False)[0]
    points, classes = learn_lengths([Longest(20 * UNIT, {"a": 3, "b": 1})] * 4, {}, 20 * UNIT)  # 30 - 10 alone
    assert found.points.tolist() == points.tolist()
    assert {name: cdf.tolist() for name, cdf in found.classes.items()} == {
        name: cdf.tolist() for name, cdf in classes.items()
    }


def test_the_fixed_part_is_no_more_than_the_shortest_time_that_was_measured():
    model = latency(fixed=10)
    assert learnt(model, rows(2, 50) + rows(1, 8))[0].fixed_ns == 8 * UNIT
    alone = LengthWindow(16)
    alone.add(0, 7 * UNIT)
    assert learnt(model, rows(2, 50), {"a": alone})[0].fixed_ns == 7 * UNIT
    assert learnt(model, rows(2, 50))[0].fixed_ns == 10 * UNIT


def test_what_was_learnt_at_speed_one_is_told_at_the_present_speed():
    model = latency(fixed=10)
    usual, fast = learnt(model, rows(2, 50) + rows(4, 70))[0], learnt(model, rows(2, 50) + rows(4, 70), speed=2.0)[0]
    assert fast.fixed_ns == usual.fixed_ns / 2 and fast.points.tolist() == (usual.points / 2).tolist()
    assert fast.mean_alone_ns("a") == pytest.approx(usual.mean_alone_ns("a") / 2)


def test_batches_that_contradict_times_alone_correct_their_size():
    alone = LengthWindow(4001)
    for index in range(400):
        alone.add(0, (30 + index % 2) * UNIT)
    model = latency(fixed=10)
    as_told = learnt(model, rows(2, 52, BIAS_LEN), {"a": alone})[1]
    slower = learnt(model, rows(2, 52, BIAS_LEN) + rows(4, 170, BIAS_LEN), {"a": alone})[1]
    assert set(slower) - {2} == {4} and slower[4] > 1.3, "10 + 4 * 21 would be 94"
    assert all(0.9 < factor < 1.1 for factor in as_told.values())
    assert learnt(model, rows(4, 170, BIAS_LEN), {"a": alone}, corrected=False)[1] == {}


def test_an_expected_time_is_rounded_up_to_a_whole_nanosecond():
    mix = np.array([0.0, 0.5, 1.0])
    lengths = Lengths(0.0, {1: 1.0}, np.array([10.0, 10.5, 11.5]), {}, mix)
    mean_ns = lengths.expected("a", 1, 1).mean_ns()
    assert mean_ns != int(mean_ns)
    assert Table(lengths, (1,), own=True, rate_per_ns=1e-10).expected_ns("a", 1) == math.ceil(mean_ns)


def test_batches_in_time_by_the_models_own_quantile_are_counted():
    calibration = Calibration()
    for work, took_ns in enumerate((100_000, 99_999, 100_001)):
        calibration.state(work, 100_000)
        calibration.ended(work, took_ns)
    assert (calibration.stated, calibration.uncorrected) == (3, 2)


def test_a_miss_moves_what_is_stated_nine_times_as_far_as_a_hit():
    calibration, factor, predicted = Calibration(), 1.0, 1_000_000
    for work, hit in enumerate((False, True, True, False, False, True)):
        stated = calibration.state(work, predicted)
        assert stated == math.ceil(predicted * factor)
        calibration.ended(work, stated if hit else stated + 1)
        factor *= math.exp(-0.005 if hit else 0.045)
    assert (calibration.stated, calibration.covered, calibration.recent()) == (6, 3, 0.5)


def test_what_is_stated_stays_between_an_eighth_and_eight_times_what_was_predicted():
    for took_ns, stated_ns in ((1, 125), (10**9, 8000)):
        calibration = Calibration()
        for work in range(600):
            calibration.state(work, 1000)
            calibration.ended(work, took_ns)
        assert calibration.state(600, 1000) == stated_ns


def test_the_recent_share_is_that_of_the_last_two_hundred():
    calibration = Calibration()
    for work in range(201):
        stated = calibration.state(work, 10**6)
        calibration.ended(work, stated + (work == 0))
        assert calibration.recent() == (work / (work + 1) if work < 200 else 1.0)


def test_a_profile_goes_in_scattered_by_the_golden_ratio():
    assert [time_ns for _, time_ns in LengthWindow(8, range(8)).samples] == [0, 5, 2, 7, 4, 1, 6, 3]
    made = LengthWindow(100, range(100))
    for now in range(6):
        made.add(now, 50)
    left = [time_ns for _, time_ns in made.samples][:-6]
    assert len(left) == 100 - 6 * SEEDS_PER_SAMPLE and sum(left) / len(left) == pytest.approx(49.5, abs=2)


def test_seeds_that_were_forgotten_are_displaced_no_more():
    made = LengthWindow(20, [100] * 10)
    made.forget(1)  # all but the last
    for now in range(1, 12):
        made.add(now, now)
    assert [time_ns for _, time_ns in made.samples] == list(range(1, 12))
    made.forget(6)
    assert [time_ns for _, time_ns in made.samples] == list(range(6, 12)), "what was seen just then is kept"


def test_a_class_of_one_length_takes_that_long_within_a_nanosecond():
    exact = LengthWindow(4, [25 * UNIT] * 4)
    alone = lengths_of(latency(fixed=10), {"a": exact}, {"a": 1.0}).alone("a")
    assert alone.times_ns == (25 * UNIT, 25 * UNIT + 1) and alone.shares == (0.0, 1.0)


def test_a_distribution_has_no_points_that_are_surely_too_short_or_too_long():
    known = lengths_of(latency(fixed=5), {"a": window(10, 20), "b": window(15, 35)}, {"a": 1.0, "b": 1.0})
    for name, low, high in (("a", 10, 20), ("b", 15, 35)):
        alone = known.alone(name)
        assert [alone.times_ns[0] / UNIT, alone.times_ns[-1] / UNIT] == pytest.approx([low, high])
        assert alone.shares[0] == 0.0 < alone.shares[1] and alone.shares[-2] < 1.0 == alone.shares[-1]


def test_the_shares_of_the_arrivals_weigh_the_classes_of_any_request():
    windows = {"a": window(10, 20), "b": window(30, 50), "c": window(60, 70)}
    for shares, mean in (
        ({"a": 3.0, "b": 1.0}, (3 * 15 + 40) / 4),
        ({"a": 0.1, "b": 0.1, "c": 0.2}, 46.25),
        ({}, 40.0),
        ({"stranger": 2.0, "c": 0.5}, 65.0),
    ):
        known = lengths_of(latency(), windows, shares)
        assert known.expected(None, 1, 1).mean_ns() / UNIT == pytest.approx(mean, rel=1e-3)


def test_what_corrects_a_size_multiplies_what_grows_in_it():
    windows = {"a": LengthWindow(4, [30 * UNIT] * 4)}
    known = lengths_of(latency(fixed=10), windows, {"a": 1.0}, {2: 1.5})
    assert [known.batch(size, ("a",) * size).mean_ns() / UNIT for size in (1, 2, 4)] == pytest.approx([30, 70, 90])
