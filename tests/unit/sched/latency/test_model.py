"""Latency: closed forms of the distribution, and the integer estimates that policies plan with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.config.profiles import QUANTILES, Timing
from edgeserve.errors import ConfigError, ProfileError
from edgeserve.sched.latency.model import (
    WINDOW_AGE_NS,
    WINDOW_LEN,
    Distribution,
    ModelLatency,
    fixed_part_ns,
    timing_constant,
    timing_of,
)

A = Distribution([10, 20], [0.0, 1.0])  # uniform(10, 20)
B = Distribution([15, 35], [0.0, 1.0])  # uniform(15, 35)


@pytest.mark.parametrize(("parts", "expected"), [
    ([A], 15.0), ([B], 25.0), ([A, A], 16.666667), ([A, B], 25.104167), ([A, A, B, B], 28.356771)])
def test_means_of_maxima_are_those_of_the_orloj_specification(parts, expected):
    maximum = Distribution.maximum(parts)
    # The specification integrates exactly; ours is a line between points, four more between each two that are given.
    assert maximum.mean_ns() == pytest.approx(expected, rel=0.005)
    fine = [Distribution([part.quantile_ns(0) + step * (part.times_ns[-1] - part.times_ns[0]) / 20
                          for step in range(21)], [step / 20 for step in range(21)]) for part in parts]
    assert Distribution.maximum(fine).mean_ns() == pytest.approx(expected, rel=2e-5)
    assert maximum.times_ns[0] == min(part.times_ns[0] for part in parts)
    assert maximum.p_by(17) == pytest.approx(0.7 ** parts.count(A) * 0.1 ** parts.count(B), abs=0.011)


rising = st.lists(st.integers(1, 10**6), min_size=2, max_size=12, unique=True).map(sorted)


@given(rising, st.floats(0.001, 0.999))
def test_a_quantile_is_the_first_nanosecond_by_which_its_share_is_over(samples, share):
    known = Distribution.of_samples(samples)
    time_ns = known.quantile_ns(share)
    assert known.p_by(time_ns) >= share - 1e-9
    assert known.p_by(time_ns - 1.001) < share + 1e-9


@given(rising, st.floats(0.25, 4.0))
def test_scaling_a_distribution_scales_its_mean_and_moves_no_share(samples, factor):
    known = Distribution.of_samples(samples)
    assert known.scaled(factor).mean_ns() == pytest.approx(known.mean_ns() * factor)
    assert known.scaled(factor).p_by(samples[1] * factor) == pytest.approx(known.p_by(samples[1]), abs=1e-9)


@given(rising)
def test_shares_rise_from_nothing_to_all(samples):
    known = Distribution.of_samples(samples)
    shares = [known.p_by(time) for time in range(samples[0] - 1, samples[-1] + 2, max(1, samples[-1] // 50))]
    assert shares == sorted(shares)
    assert known.p_by(samples[0] - 1) == 0.0
    assert known.p_by(samples[-1]) == 1.0


def test_a_constant_is_over_at_once_and_a_repeated_sample_is_a_step():
    constant = Distribution([7], [1.0])
    assert (constant.p_by(6.9), constant.p_by(7), constant.mean_ns(), constant.quantile_ns(0.5)) == (0.0, 1.0, 7, 7)
    assert Distribution.of_samples([5]).quantile_ns(0.99) == 5
    step = Distribution.of_samples([1, 5, 5, 5, 9])
    assert step.p_by(5) == 0.75
    assert step.p_by(4.999) == pytest.approx(0.25, abs=0.001)
    assert [step.quantile_ns(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)] == [1, 5, 5, 5, 9]


def test_a_distribution_needs_as_many_shares_as_times():
    with pytest.raises(ValueError, match="got 2 and 1"):
        Distribution([1, 2], [1.0])
    with pytest.raises(ValueError, match="got 0 and 0"):
        Distribution([], [])


# --- what a batch takes -----------------------------------------------------------------------------------------------


def latency(sizes=(1, 4), age_ns=WINDOW_AGE_NS):
    seeds = {1: Timing(9, 100, 120, 101, 3), 4: Timing(9, 300, 330, 301, 3)}
    return ModelLatency("m", "gpu0", seeds, sizes, age_ns)


def test_before_the_first_measurement_the_profile_speaks():
    known = latency()
    assert (known.estimate_ns(1), known.typical_ns(1)) == (120, 100)
    assert (known.estimate_ns(4), known.typical_ns(4)) == (330, 300)


def test_the_estimate_is_the_maximum_of_the_last_ten_and_the_typical_their_middle():
    known = latency()
    for index, duration in enumerate([500, *range(90, 100)]):
        known.observe(index, 1, duration)
        assert known.estimate_ns(1) == (500 if index < 10 else 99)
    assert known.typical_ns(1) == 95
    assert known.estimate_ns(4) == 330  # another size learns nothing from it


def test_the_likely_time_is_what_three_of_four_batches_stay_below():
    known = ModelLatency("m", "gpu0", {1: Timing(5, 100, 120, 100, 5)}, (1,))
    assert (known.likely_ns(1), known.alone_likely_ns, known.alone_ns) == (100, 100, 120)
    for index, duration in enumerate([10, 20, 30, 40, 50, 60, 70, 80]):
        known.observe(index, 1, duration)
    assert (known.likely_ns(1), known.alone_likely_ns, known.alone_ns) == (70, 70, 80)
    known.set_speed(0.5)
    assert (known.likely_ns(1), known.alone_likely_ns, known.alone_ns) == (140, 140, 160)
    assert ModelLatency("m", "gpu0", {1: timing_of(list(range(0, 101)))}, (1,)).likely_ns(1) in range(75, 81)


def test_a_batch_runs_as_the_smallest_size_that_holds_it():
    known = latency()
    assert [known.size_for(count) for count in (1, 2, 3, 4)] == [1, 4, 4, 4]
    assert known.size_max == 4


def test_speed_scales_what_is_known_and_measurements_are_kept_at_full_speed():
    known = latency()
    known.set_speed(0.5)
    assert (known.estimate_ns(1), known.typical_ns(1)) == (240, 200)
    known.observe(0, 1, 300)
    assert known.estimate_ns(1) == 300
    known.set_speed(1.0)
    assert known.estimate_ns(1) == 150
    known.set_speed(0.7)
    assert known.estimate_ns(1) == 215  # 150 / 0.7 = 214.3, rounded up
    with pytest.raises(ValueError, match="lane 'gpu0': speed 0.0 must be above 0"):
        known.set_speed(0.0)


def test_old_measurements_are_forgotten_so_that_a_pessimistic_size_is_tried_again():
    known = latency(age_ns=1000)
    known.observe(0, 4, 9999)
    known.observe(600, 4, 305)
    known.forget(1000)
    assert known.estimate_ns(4) == 9999
    known.forget(1001)
    assert known.estimate_ns(4) == 305
    known.forget(1601)
    assert known.estimate_ns(4) == 330
    known.forget(10**9)
    assert known.estimate_ns(4) == 330


def test_the_distribution_is_the_profile_until_the_window_is_full():
    seeds = {1: timing_of(list(range(100, 201)))}
    known = ModelLatency("m", "gpu0", seeds, (1,))
    assert known.distribution(1).quantile_ns(0.5) == 150
    for index in range(WINDOW_LEN):
        assert known.distribution(1).quantile_ns(1.0) == 200
        known.observe(index, 1, 300 + index)
    assert known.distribution(1).quantile_ns(1.0) == 309
    known.set_speed(0.5)
    assert known.distribution(1).quantile_ns(1.0) == 618
    assert latency().distribution(1).quantile_ns(1.0) == 120


def test_a_size_without_a_time_is_refused_with_the_mend():
    with pytest.raises(ProfileError, match=r"model 'm' on lane 'gpu0': batch sizes \[2, 3\] have no measured time "
                                           r"\(measured: 1, 4\); run 'edgeserve profile' or give \[model.m.expected\]"):
        latency(sizes=(1, 2, 3, 4))


def test_measured_durations_become_a_timing():
    timing = timing_of([4, 1, 3, 2, 5])
    assert (timing.count, timing.median_ns, timing.p99_ns, timing.mean_ns, timing.sd_ns) == (5, 3, 5, 3, 2)
    assert len(timing.quantiles_ns) == len(QUANTILES)
    assert (timing.quantiles_ns[0], timing.quantiles_ns[-1]) == (1, 5)
    assert timing_constant(7) == Timing(0, 7, 7, 7, 0)
    with pytest.raises(ConfigError, match="at least one measured duration"):
        timing_of([])


def test_the_fixed_part_is_the_intercept_of_the_times_and_never_more_than_the_smallest() -> None:
    assert fixed_part_ns({1: 15, 2: 20, 4: 30}) == 10
    assert fixed_part_ns({1: 10, 2: 20}) == 0
    assert fixed_part_ns({1: 496, 2: 735, 4: 1149, 8: 1695, 16: 2667}) == 355  # the line itself starts at 474
    assert fixed_part_ns({1: 10, 2: 5}) == 5  # times that fall are noise: the smallest bounds it
    assert fixed_part_ns({4: 30}) == 0
