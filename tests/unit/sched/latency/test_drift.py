"""The pace of a model: what all batch sizes share, and the shape that only slowly changes."""

from __future__ import annotations

import random
from collections import deque

import pytest

from edgeserve.sched.latency.drift import Drift

DRIFT_LEN = 10


def pace(likely_ppm: int = 1_000_000) -> Drift:
    return Drift({1: 1000, 4: 2000, 16: 5000}, likely_ppm)


def test_before_the_first_batch_the_profile_speaks():
    known = pace(1_100_000)
    assert [known.typical_ns[size] for size in (1, 4, 16)] == [1000, 2000, 5000]
    assert [known.likely_ns[size] for size in (1, 4, 16)] == [1100, 2200, 5500]


def test_a_slower_device_is_slower_for_every_size_at_once():
    known = pace()
    for step in range(DRIFT_LEN):
        known.observe(step, 16, 7500)
    assert abs(known.typical_ns[1] - 1500) < 20
    assert abs(known.typical_ns[16] - 7500) < 100


def test_one_slow_batch_sways_nothing():
    known = pace()
    for step in range(DRIFT_LEN - 1):
        known.observe(step, 4, 2000)
    known.observe(DRIFT_LEN, 4, 60_000)
    assert abs(known.likely_ns[1] - 1000) <= 40
    assert abs(known.likely_ns[16] - 5000) <= 200


def test_a_size_that_is_always_slower_than_its_shape_finds_its_place():
    known = pace()
    for step in range(200):
        known.observe(2 * step, 4, 3000)
        known.observe(2 * step + 1, 16, 5000)
    assert 0.55 < known.typical_ns[4] / known.typical_ns[16] < 0.65  # 0.4 in the profile


def test_a_size_that_runs_alone_moves_no_other_however_noisy_it_is():
    known = pace()
    rng = random.Random("pace/alone")
    for step in range(500):
        known.observe(step, 4, int(2000 * rng.lognormvariate(0, 0.1)))
    assert 2.3 < known.typical_ns[16] / known.typical_ns[4] < 2.7  # 2.5 in the profile


def test_two_sizes_keep_their_places_under_noise():
    known = pace()
    rng = random.Random("pace/two")
    for step in range(1000):
        size, time = ((4, 2000), (16, 5000))[step % 2]
        known.observe(step, size, int(time * rng.lognormvariate(0, 0.1)))
    assert 2.1 < known.typical_ns[16] / known.typical_ns[4] < 2.9


def test_a_rare_size_keeps_its_place_beside_a_usual_one_under_noise():
    for seed in range(4):
        known, rng, places = pace(), random.Random(f"pace/rare/{seed}"), []
        for step in range(1500):
            size, time = (16, 5000) if step % 12 == 0 else (4, 2000)
            known.observe(step, size, int(time * rng.lognormvariate(0, 0.1)))
            places.append(known.typical_ns[16] / known.typical_ns[4])
        assert min(places) > 2.0  # 2.5 in truth; from 1.6 to 3.4 if one slow batch moved the usual size ten times
        assert max(places) < 3.0


def test_a_rare_size_that_is_slower_than_its_shape_finds_its_place():
    known = pace()
    for step in range(160):
        known.observe(step, *((16, 7500) if step % 12 == 0 else (4, 2000)))
    assert 3.4 < known.typical_ns[16] / known.typical_ns[4] < 4.0  # 3.75 in truth, 2.5 in the profile


def test_what_is_forgotten_leaves_the_profile():
    known = pace()
    for step in range(DRIFT_LEN):
        known.observe(step, 16, 10_000)
    known.forget(before_ns=DRIFT_LEN)
    assert abs(known.typical_ns[1] - 1000) < 10


def test_a_model_of_one_size_has_no_shape_to_learn():
    known = Drift({1: 1000})
    known.observe(0, 1, 2000)
    known.observe(1, 1, 2000)
    assert (known.typical_ns[1], known.likely_ns[1]) == (2000, 2000)


def test_wild_times_keep_every_estimate_positive_and_near():
    known = pace()
    for step in range(5000):
        known.observe(step, (1, 4, 16)[step % 3], (1, 50, 2000, 90_000)[step % 4])
        assert 1 <= known.typical_ns[1] <= known.likely_ns[1] <= known.slowest_ns[1] <= 2**40


def test_a_size_never_strays_far_from_its_place_beside_the_others():
    known = pace()
    for step in range(2000):
        known.observe(2 * step, 4, 200_000)
        known.observe(2 * step + 1, 16, 5000)
    assert known.typical_ns[4] <= 5 * known.typical_ns[16]


def test_a_place_moves_by_a_part_of_32_towards_what_the_middle_of_the_other_sizes_batches_says():
    def place_after(*others: int, took: int) -> float:
        """The place of size 4 beside the others, after batches of 16 and one of size 4 that took so long."""
        known = Drift({1: 1_000_000, 4: 2_000_000, 16: 5_000_000})
        for step, time_ns in enumerate(others):
            known.observe(step, 16, time_ns)
        known.observe(9, 4, took)
        return round(known.typical_ns[4] / known.typical_ns[1] / 2, 4)

    assert place_after(5_000_000, 6_000_000, 10_000_000, took=2_300_000) == round(1 - 1 / 32, 4), "the middle: 1.2"
    assert place_after(5_000_000, 6_000_000, 10_000_000, took=2_500_000) == round(1 + 1 / 32, 4)
    assert place_after(5_000_000, 6_000_000, 10_000_000, took=2_400_000) == 1.0
    assert place_after(5_000_000, 6_000_000, 7_000_000, 10_000_000, took=2_550_000) == round(1 - 1 / 32, 4), "1.3"
    assert place_after(took=2_500_000) == 1.0


@pytest.mark.parametrize(
    ("count", "middle", "likely"),
    [(1, 0, 0), (2, 0, 0), (3, 1, 1), (4, 1, 2), (5, 2, 3), (6, 3, 4), (7, 3, 5), (8, 4, 6), (9, 4, 6), (10, 5, 7)],
)
def test_of_few_batches_neither_the_middle_nor_the_likely_time_is_the_largest(count, middle, likely):
    known, times_ns = Drift({1: 1000}), [500 * (place + 1) for place in range(count)]
    random.Random(count).shuffle(times_ns)
    for step, time_ns in enumerate(times_ns):
        known.observe(step, 1, time_ns)
    assert known.measured == count
    assert (known.typical_ns[1], known.likely_ns[1]) == (500 * (middle + 1), 500 * (likely + 1))
    assert known.slowest_ns[1] == 500 * count


def test_batches_that_take_no_time_leave_a_pace_of_a_millionth():
    known = Drift({1: 10**7})
    assert known.observe(0, 1, 0)
    assert not known.observe(1, 1, 0)
    assert (known.pace_ppm, known.typical_ns, known.likely_ns, known.slowest_ns) == (1, {1: 10}, {1: 10}, {1: 10})
    small = Drift({1: 0})
    small.observe(0, 1, 0)
    assert (small.typical_ns, small.likely_ns, small.slowest_ns) == ({1: 1}, {1: 1}, {1: 1})


@pytest.mark.parametrize(
    ("settled_ms", "since_ms", "is_explained"), [((4, 8), 7, False), ((4, 8), 8, True), ((8,), 7, True), ((), 9, True)]
)
def test_what_few_batches_say_of_the_pace_before_the_settled_one_of_that_moment_says_better(
    settled_ms, since_ms, is_explained
):
    """A model at twice its profile's time (settled at 4), at the profile's (at 8): a clock at half the speed explains
    a batch that took twice as long, unless it always did."""
    known = Drift({1: 1000})
    for at_ms, took in ((3, 2000), (6, 1000)):
        known.observe(at_ms, 1, took)
        if at_ms + 1 in settled_ms:
            known.settle(at_ms + 1)
    known.forget(7)
    known.observe(7, 1, 1000)
    if 8 in settled_ms:
        known.settle(8)
    known.forget(8)
    known.observe(10, 1, 2000)
    known.explain(since_ms, 0.5)
    assert known.typical_ns[1] == (1000 if is_explained else 2000)


def test_no_measurement_becomes_nothing_when_a_clock_explains_it():
    known = Drift({1: 1}, 1_000_000)
    windows = {1: deque([(5, 4), (6, 1)])}
    known.explain_durations(0, 0.1, windows)
    assert [duration_ns for _, duration_ns in windows[1]] == [1, 1]
