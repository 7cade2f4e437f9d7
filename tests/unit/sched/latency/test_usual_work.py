"""Times of usual work: what is learnt where jobs tell their work and where they do not, under noise, how surely."""

from __future__ import annotations

import random
from statistics import pstdev

import pytest
from hand_world import MS

from edgeserve.sched.latency.distribution import timing_constant
from edgeserve.sched.latency.model import WINDOW_AGE_NS, ModelLatency


def split_of(fixed_ms, each_ms, sizes=(1, 2, 4)):
    profile = {size: round((fixed_ms + each_ms * size) * MS) for size in sizes}
    latency = ModelLatency("m", "l", {size: timing_constant(time_ns) for size, time_ns in profile.items()}, list(sizes))
    return latency.usual(), latency


# --- work that jobs tell ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fixed_ms", [0, 8])
def test_the_learnt_times_are_those_of_usual_work_whatever_work_was_seen(fixed_ms):
    usual, latency = split_of(fixed_ms, 10)
    draw = random.Random(f"work/{fixed_ms}")
    for number in range(400):
        size = draw.choice((1, 2, 4))
        works = [draw.uniform(0.2, 3.0) for _ in range(size)]
        took_ns = round((fixed_ms + 10 * sum(works)) * MS * 1.5)  # the machine is half as slow again as profiled
        latency.observe(number, size, took_ns, round(sum(work - 1 for work in works) * 1000))
    for size in (1, 2, 4):
        assert usual.time_ns(size * 1000) == pytest.approx(1.5 * (fixed_ms + 10 * size) * MS, rel=0.01)
    assert usual.time_ns(2000, 3000) == pytest.approx(1.5 * (fixed_ms + 50) * MS, rel=0.01)
    assert usual.time_ns(2000, -1000) == pytest.approx(1.5 * (fixed_ms + 10) * MS, rel=0.01)


def test_one_request_of_much_work_is_not_taken_for_a_slow_machine():
    usual, latency = split_of(0, 10, (1,))
    for number in range(10):  # as after a page of ten wide lines
        latency.observe(number, 1, 25 * MS, 1500)
    assert latency.typical_ns[1] == 25 * MS and usual.time_ns(1000) == 10 * MS


def test_batches_that_are_said_to_be_no_work_teach_nothing():
    usual, latency = split_of(0, 10)
    for number in range(30):
        latency.observe(number, 1, 20 * MS, -1000)
    assert usual.time_ns(1000) == 10 * MS and usual.variance_us2(1000) == 0


def test_work_beyond_the_usual_lies_in_the_batches_in_proportion():
    usual, _ = split_of(0, 10)
    assert sum(usual.batches_ns(5000)) == 50 * MS and sum(usual.batches_ns(5000, 2500)) == 75 * MS
    assert usual.batches_ns(5000, 2500) == [round(1.5 * time_ns) for time_ns in usual.batches_ns(5000)]
    # No work takes no negative time.
    assert min(usual.batches_ns(3000, -3000)) >= 1 and usual.time_ns(3000, -3000) >= 1


def test_who_does_not_tell_counts_as_those_who_did_lately():
    usual, latency = split_of(0, 10, (1, 2, 4))
    for number in range(60):  # told in a unit of one's own: a usual job is 3 of them
        told = number % 2 == 0
        latency.observe(number, 2, 60 * MS, 2 * 2000 if told else None)
    assert usual.time_ns(2000) == 20 * MS and usual.variance_us2(2000) == 0


def test_nothing_that_is_told_is_known_for_ever():
    usual, latency = split_of(0, 10, (1,))
    for number in range(20):
        latency.observe(number, 1, 80 * MS, 1000)  # four times as slow, beside the work
    assert usual.time_ns(1000) == pytest.approx(40 * MS, rel=0.01)
    latency.forget(20 + WINDOW_AGE_NS)
    assert usual.time_ns(1000) == pytest.approx(10 * MS, rel=0.01)


def test_another_speed_is_another_time_and_no_surprise():
    usual, latency = split_of(8, 10)
    latency.set_speed(0.5)
    assert usual.time_ns(4000) == 96 * MS and usual.each_ns == 20 * MS
    for number in range(20):
        latency.observe(number, 4, 96 * MS)
    assert usual.time_ns(4000) == 96 * MS and usual.variance_us2(4000) == 0
    latency.set_speed(1.0)
    assert usual.time_ns(4000) == 48 * MS


def test_parts_of_a_job_lie_on_a_line_between_whole_ones_and_very_many_in_proportion():
    usual, _ = split_of(8, 10)  # 18, 28, 48 ms: four at a time are best
    assert usual.time_ns(0) == 0 and usual.time_ns(500) == 9 * MS and usual.time_ns(1500) == 23 * MS
    assert usual.time_ns(8_192_000) == 2 * usual.time_ns(4_096_000) == 2048 * 48 * MS


# --- noise ------------------------------------------------------------------------------------------------------------


def learnt(sizes=32, truth=lambda size: 1.0, noise=0.0, batches=600, seed="noise"):
    """A usual after so many batches of random size, whose profile says ``10 + size`` ms."""
    profile = {size: (10 + size) * MS for size in range(1, sizes + 1)}
    latency = ModelLatency("m", "l", {size: timing_constant(time_ns) for size, time_ns in profile.items()},
                           list(profile))
    usual, draw = latency.usual(), random.Random(seed)
    for number in range(batches):
        size = draw.randrange(1, sizes + 1)
        took_ns = round(profile[size] * truth(size) * draw.gauss(1.0, noise))
        latency.observe(number, size, took_ns)
    return {size: usual.time_ns(size * 1000) / profile[size] for size in profile}, latency


def test_noise_does_not_carry_the_sizes_apart():
    ratios, latency = learnt(noise=0.1)
    shared = [latency.typical_ns[size] / ((10 + size) * MS) for size in ratios]
    assert pstdev(ratios.values()) < 0.5 * pstdev(shared) and abs(sum(ratios.values()) / len(ratios) - 1) < 0.03


def test_a_size_that_really_is_slower_is_learnt():
    ratios, _ = learnt(sizes=4, truth=lambda size: 1.3 if size == 3 else 1.0, noise=0.05)
    assert 1.2 < ratios[3] / ratios[1] < 1.4 and 0.9 < ratios[1] < 1.1


def test_a_pace_that_changed_by_half_is_followed_at_once_and_exact_times_stay_exact():
    ratios, _ = learnt(batches=100)
    assert set(ratios.values()) == {1.0}
    ratios, _ = learnt(sizes=4, truth=lambda size: 1.5, batches=12)
    assert all(abs(ratio - 1.5) < 0.05 for ratio in ratios.values())


def noisy_split(noise, sizes=4, batches=600):
    profile = {size: 10 * size * MS for size in range(1, sizes + 1)}
    latency = ModelLatency("m", "l", {size: timing_constant(time_ns) for size, time_ns in profile.items()},
                           list(profile))
    usual, draw = latency.usual(), random.Random(f"sure/{noise}")
    for number in range(batches):
        size = draw.randrange(1, sizes + 1)
        took_ns = round(profile[size] * draw.gauss(1.0, noise))
        latency.observe(number, size, took_ns)
    return usual


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_the_learnt_deviation_of_a_sum_is_that_of_independent_batches(noise):
    usual = noisy_split(noise)
    times_us = [time_ns / 1000 for time_ns in usual.batches_ns(21_000)]
    wanted = noise * sum(time_us ** 2 for time_us in times_us) ** 0.5
    assert usual.variance_us2(21_000) ** 0.5 == pytest.approx(wanted, rel=0.25)
    assert usual.variance_us2(21_000, 21_000) ** 0.5 == pytest.approx(  # twice the work, twice as far off
        2 * usual.variance_us2(21_000) ** 0.5, rel=0.05)


def test_exact_times_leave_nothing_to_be_unsure_of():
    assert noisy_split(0.0).variance_us2(21_000) == 0


