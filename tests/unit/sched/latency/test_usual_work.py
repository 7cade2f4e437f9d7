"""Times of usual work: what is learnt where jobs tell their work and where they do not, under noise, how surely."""

from __future__ import annotations

import random
from functools import lru_cache
from statistics import pstdev

import pytest
from hand_world import MS

from edgeserve.sched.latency.distribution import timing_constant
from edgeserve.sched.latency.model import ModelLatency
from edgeserve.sched.latency.usual_work import UsualWork

COUNT_MAX, WINDOW_AGE_NS = 4096, 10_000 * MS


def split_of(fixed_ms, each_ms, sizes=(1, 2, 4)):
    profile = {size: round((fixed_ms + each_ms * size) * MS) for size in sizes}
    latency = ModelLatency("m", "l", {size: timing_constant(time_ns) for size, time_ns in profile.items()}, list(sizes))
    return latency.usual(), latency


# --- work that jobs tell ----------------------------------------------------------------------------------------------


def batches_ns(usual, *jobs):
    """The times of the batches alone."""
    return [time_ns for _, time_ns in usual.batches(*jobs)]


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
    assert sum(batches_ns(usual, 5000)) == 50 * MS and sum(batches_ns(usual, 5000, 2500)) == 75 * MS
    assert batches_ns(usual, 5000, 2500) == [round(1.5 * time_ns) for time_ns in batches_ns(usual, 5000)]
    # No work takes no negative time.
    assert min(batches_ns(usual, 3000, -3000)) >= 1 and usual.time_ns(3000, -3000) >= 1


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


def test_what_is_just_old_enough_is_still_known():
    usual, latency = split_of(8, 10)
    for number in range(10):
        latency.observe(number, 4, 60 * MS)
    learnt_ns = usual.time_ns(4000)
    latency.forget(WINDOW_AGE_NS)
    assert usual.time_ns(4000) == learnt_ns
    latency.forget(WINDOW_AGE_NS + 1)
    assert usual.time_ns(4000) != learnt_ns
    later = 10 * WINDOW_AGE_NS
    latency.forget(later)
    latency.observe(later, 4, 70 * MS)
    learnt_ns = usual.time_ns(4000)
    latency.forget(later + 5)
    assert usual.time_ns(4000) == learnt_ns, "nothing is old"


def test_a_pace_that_is_followed_step_by_step_moves_with_batches_and_not_with_time():
    usual, latency = split_of(8, 10)
    for number in range(5, 15):
        latency.observe(number, 4, 51 * MS)  # 48 in the profile
    learnt_ns = usual.time_ns(4000)
    for now_ns in (15, 1000, 5 + WINDOW_AGE_NS):
        latency.forget(now_ns)
        assert usual.time_ns(4000) == learnt_ns < 51 * MS


def test_a_pace_does_not_move_while_no_batch_is_old_however_late_the_first_one_came():
    usual, latency = split_of(8, 10)
    first = WINDOW_AGE_NS // 2
    for number in range(10):
        latency.observe(first + number, 4, 51 * MS)
    learnt_ns = usual.time_ns(4000)
    latency.forget(WINDOW_AGE_NS + first)
    assert usual.time_ns(4000) == learnt_ns


def test_of_jobs_that_tell_their_work_what_is_just_old_enough_still_counts():
    usual, latency = split_of(0, 10, (1,))
    for now_ns in (0, 10, 10, 10):
        latency.observe(now_ns, 1, 80 * MS, 1000)  # four times as slow, beside the work
    learnt_ns = usual.time_ns(1000)
    assert learnt_ns < 50 * MS
    latency.forget(WINDOW_AGE_NS + 10)
    assert usual.time_ns(1000) == learnt_ns
    latency.forget(WINDOW_AGE_NS + 11)
    assert usual.time_ns(1000) < learnt_ns, "the profile's pace and the size's own place"


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
    latency = ModelLatency(
        "m", "l", {size: timing_constant(time_ns) for size, time_ns in profile.items()}, list(profile)
    )
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
    latency = ModelLatency(
        "m", "l", {size: timing_constant(time_ns) for size, time_ns in profile.items()}, list(profile)
    )
    usual, draw = latency.usual(), random.Random(f"sure/{noise}")
    for number in range(batches):
        size = draw.randrange(1, sizes + 1)
        took_ns = round(profile[size] * draw.gauss(1.0, noise))
        latency.observe(number, size, took_ns)
    return usual


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_the_learnt_deviation_of_a_sum_is_that_of_independent_batches(noise):
    usual = noisy_split(noise)
    times_us = [time_ns / 1000 for time_ns in batches_ns(usual, 21_000)]
    wanted = noise * sum(time_us**2 for time_us in times_us) ** 0.5
    assert usual.variance_us2(21_000) ** 0.5 == pytest.approx(wanted, rel=0.25)
    assert usual.variance_us2(21_000, 21_000) ** 0.5 == pytest.approx(  # twice the work, twice as far off
        2 * usual.variance_us2(21_000) ** 0.5, rel=0.05
    )


def test_exact_times_leave_nothing_to_be_unsure_of():
    assert noisy_split(0.0).variance_us2(21_000) == 0


# --- times in between, and beyond -------------------------------------------------------------------------------------


def usual_of(times_us):
    """Profiled times, in microseconds, by size."""
    latency = ModelLatency(
        "m", "l", {size: timing_constant(us * 1000) for size, us in times_us.items()}, sorted(times_us)
    )
    return UsualWork(latency.profiled_ns, latency.typical_ns, latency.fixed_now_ns)


def drawn(draw):
    sizes = sorted(draw.sample(range(1, 9), draw.randrange(1, 5)))
    return {size: draw.randrange(1000, 9000) for size in sizes}


@pytest.mark.parametrize("seed", range(40))
def test_jobs_are_split_into_the_batches_that_take_least(seed):
    times_us = drawn(random.Random(f"split {seed}"))
    usual = usual_of(times_us)

    @lru_cache(None)
    def least(count):  # what is no full batch runs in the smallest size that holds it
        holds = min([size for size in times_us if size >= count], default=max(times_us))
        return min([us + least(max(0, count - size)) for size, us in times_us.items() if size <= holds]) if count else 0

    for count in range(20):
        assert usual.time_ns(count * 1000) == least(count) * 1000
        batches = batches_ns(usual, count * 1000)
        assert sum(batches) == least(count) * 1000
        first = usual.split.first(count)
        assert sum(batches[1:]) == least(count - first) * 1000
        assert not count or batches[0] == times_us[min(size for size in times_us if size >= first)] * 1000
        usual._surprise_ppm = 10_000  # 0.01: batches miss by a tenth
        squares = sum((ns // 1000) ** 2 for ns in batches)
        assert usual.variance_us2(count * 1000) == squares * 10_000 // 1_000_000


def test_between_whole_numbers_times_lie_on_a_straight_line_and_batches_are_counted_up():
    usual = usual_of({1: 4000, 2: 6000})
    assert [usual.time_ns(milli) for milli in (0, 1, 250, 999, 1000, 1500, 2001)] == [
        0,
        4_000,
        1_000_000,
        3_996_000,
        4_000_000,
        5_000_000,
        6_004_000,
    ]
    assert batches_ns(usual, 1) == [4_000_000] and batches_ns(usual, 1001) == [6_000_000] and batches_ns(usual, 0) == []
    assert batches_ns(usual, 2001) in ([6_000_000, 4_000_000], [4_000_000, 6_000_000])


def test_beyond_the_table_times_are_in_proportion():
    usual = usual_of({1: 4000, 2: 6000})
    most = COUNT_MAX * 1000
    assert usual.time_ns(most) == COUNT_MAX // 2 * 6_000_000
    assert usual.time_ns(most - 500) == COUNT_MAX // 2 * 6_000_000 - 1_000_000
    assert usual.time_ns(3 * most) == 3 * usual.time_ns(most)
    assert usual.split.first(3 * COUNT_MAX) == 2
    assert sum(batches_ns(usual, 3 * most)) == usual.time_ns(most)  # a forecast looks no further


def test_work_beyond_the_usual_takes_the_part_of_a_batchs_time_that_grows():
    usual = usual_of({1: 4000, 2: 6000})  # 2 + 2k ms
    assert usual.each_ns == 2_000_000
    assert usual.time_ns(2000, 500) == 7_000_000 and usual.time_ns(2000, -1000) == 4_000_000
    assert usual.time_ns(1000, -9000) == 1  # never less than nothing
    assert batches_ns(usual, 3000, 3000) == [ns * 16 // 10 for ns in batches_ns(usual, 3000)]
    assert batches_ns(usual, 1000, -9000) == [1] and batches_ns(usual, 0, 500) == []
    usual._surprise_ppm = 10_000
    assert usual.variance_us2(2000, 3000) == 4 * usual.variance_us2(2000)  # twice the time, twice as far off
    assert usual.variance_us2(0, 500) == 0


def test_a_size_that_takes_longer_than_believed_is_learnt_step_by_step():
    usual = usual_of({1: 4000, 2: 6000, 4: 10000})
    for number in range(1, 4):
        before = usual.time_ns(4000)
        usual.observe(number, 4, 11_000_000, {1: 4_000_000, 2: 6_000_000, 4: 10_000_000}, None)
        now = usual.time_ns(4000)
        assert before < now < 11_000_000
        assert (now - before) / (11_000_000 - before) == pytest.approx(1 / (number + 8), rel=0.02)
    assert usual.time_ns(1000) == 4_000_000 and not usual.is_told


@pytest.mark.parametrize(("times", "counts_as"), [(1.9, 1.9), (5.0, 2.0), (0.6, 0.6), (0.1, 0.5)])
def test_a_place_is_a_mean_of_64_batches_none_of_which_counts_as_twice_as_slow_or_half_as_fast(times, counts_as):
    told_ns = {1: 10_000_000}
    usual, place_ppm = usual_of({1: 10_000}), 1_000_000
    for number in range(1, 100):
        usual.observe(number, 1, round(times * 10_000_000), told_ns, None)
        place_ppm += (round(counts_as * 1_000_000) - place_ppm) // (min(number, 64) + 8)
        assert usual.time_ns(1000) == place_ppm * 10


def test_how_far_batches_miss_is_known_from_sixteen_on():
    usual = usual_of({1: 10_000})
    for number in range(16):
        assert usual.miss_ppm() is None
        usual.observe(number, 1, (11_000_000, 9_000_000)[number % 2], {1: 10_000_000}, None)
    assert usual.miss_ppm() == pytest.approx(100_000, rel=0.04)
