"""Promises of learnt batch times, of any estimator. Only the helpers below know what that is called."""

from __future__ import annotations

import random

import pytest

from edgeserve.sched.latency.batch_time import LIVE, BatchTime, fixed_part_ns
from edgeserve.sched.latency.contradiction import EXPECTED
from edgeserve.sched.latency.timings import timing_constant
from edgeserve.units import NS_PER_MS as MS

SIZES = (1, 2, 4, 8)
FIXED, EACH = 10 * MS, 20 * MS
EVERY = 50 * MS
TRUE = {size: FIXED + size * EACH for size in SIZES}


def believed(factor=1.0, sizes=SIZES):
    """The knowledge before the first batch: the true times, all wrong by a factor."""
    return BatchTime("m", "l", {size: timing_constant(round(TRUE[size] * factor)) for size in sizes}, sizes)


def typical(known, size):
    return known.typical_ns[size]


def careful(known, size):
    return known.estimate_ns[size]


def ran(known, draw, batches, slow=1.0, noise=0.03, sizes=SIZES, start=0, **more):
    """Batches of these sizes, drawn."""
    for step in range(start, start + batches):
        size = draw.choice(sizes)
        known.observe(step * EVERY, size, round(slow * TRUE[size] * draw.gauss(1.0, noise)), **more)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0, 10.0])
def test_a_wrong_belief_is_mended_by_batches_of_every_size(factor, seed):
    draw, known = random.Random(f"wrong/{factor}/{seed}"), believed(factor)
    ran(known, draw, 100)
    for size in SIZES:
        assert typical(known, size) == pytest.approx(TRUE[size], rel=0.15)
        assert 0.97 * TRUE[size] <= careful(known, size) <= 1.25 * TRUE[size]


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_device_is_slow_for_sizes_that_have_not_run(seed):
    draw, known = random.Random(f"slow/{seed}"), believed()
    ran(known, draw, 60, slow=2.5, sizes=(1, 2))
    assert typical(known, 8) == pytest.approx(2.5 * TRUE[8], rel=0.15)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("off", [0.8, 1.25])
def test_a_size_that_the_profile_has_wrong_is_learnt_beside_the_others(off, seed):
    draw, known = random.Random(f"shape/{off}/{seed}"), believed()
    for step in range(300):
        size = draw.choice(SIZES)
        known.observe(step * EVERY, size, round(TRUE[size] * (off if size == 4 else 1) * draw.gauss(1.0, 0.05)))
    for size in SIZES:
        assert typical(known, size) == pytest.approx(TRUE[size] * (off if size == 4 else 1), rel=0.1)


@pytest.mark.parametrize("seed", range(8))
def test_one_slow_batch_moves_no_typical_time_and_the_careful_one_until_it_is_old(seed):
    draw, known = random.Random(f"outlier/{seed}"), believed()
    ran(known, draw, 20)
    known.observe(20 * EVERY, 4, 10 * TRUE[4])
    assert typical(known, 4) == pytest.approx(TRUE[4], rel=0.15)
    assert careful(known, 4) >= 9 * TRUE[4]
    known.forget(20 * EVERY + 11_000 * MS)
    assert careful(known, 4) < 2 * TRUE[4]


@pytest.mark.parametrize("seed", range(4))
def test_the_mean_counts_rare_slow_batches_and_the_typical_time_does_not(seed):
    """One of seven takes five times as long: in the mean a batch takes 11/7 of the usual time."""
    known, draw = believed(), random.Random(seed)
    for batch in range(140):
        ran(known, draw, 1, slow=5.0 if batch % 7 == 3 else 1.0, start=batch)
    for size in SIZES:
        assert typical(known, size) == pytest.approx(TRUE[size], rel=0.15)
        assert known.mean_ns(size) == pytest.approx(11 / 7 * TRUE[size], rel=0.2)


def test_before_many_batches_the_mean_is_their_typical_time():
    known, draw = believed(), random.Random(1)
    assert known.mean_ns(4) == known.typical_ns[4]
    ran(known, draw, 3, slow=10.0)
    assert known.mean_ns(4) == pytest.approx(known.typical_ns[4], rel=0.1)


def test_slow_batches_before_a_long_pause_are_not_in_the_mean():
    known, draw = believed(), random.Random(2)
    ran(known, draw, 100, slow=3.0)
    known.forget(100 * EVERY + 11_000 * MS)
    for size in SIZES:
        assert known.mean_ns(size) == typical(known, size) == pytest.approx(TRUE[size], rel=0.15)


def test_what_is_old_is_forgotten_however_many_batches_of_other_sizes_follow():
    known = believed()
    known.observe(0, 8, 5 * TRUE[8])
    for second in range(1, 13):
        known.observe(second * 1000 * MS, 1, TRUE[1])
        known.forget(second * 1000 * MS)
    assert careful(known, 8) == pytest.approx(TRUE[8], rel=0.1)


@pytest.mark.parametrize("speed", [0.4, 0.8, 1.25])
def test_a_speed_that_is_told_scales_all_times_and_measurements_do_not_count_twice(speed):
    draw, known = random.Random(f"speed/{speed}"), believed()
    ran(known, draw, 30)
    profiled = dict(known.profiled_ns)
    known.set_speed(speed)
    for size in SIZES:
        assert known.profiled_ns[size] == pytest.approx(profiled[size] / speed)
    ran(known, draw, 30, slow=1 / speed, start=30)
    for size in SIZES:
        assert typical(known, size) == pytest.approx(TRUE[size] / speed, rel=0.15)
    known.set_speed(1.0)
    assert typical(known, 4) == pytest.approx(TRUE[4], rel=0.15)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slow", [4, 8, 20, 60])
@pytest.mark.parametrize("sizes", [(1,), SIZES])
@pytest.mark.parametrize("speed", [0.5, 0.7, 1.5])
def test_a_speed_that_is_told_late_explains_the_batches_before(speed, sizes, slow, seed):
    """Also where the slow batches are spread over several sizes, and not batches from before the clock changed."""
    draw, known = random.Random(f"late/{speed}/{sizes}/{slow}/{seed}"), believed(2.0)
    ran(known, draw, 15, sizes=sizes)
    known.forget(14 * EVERY)
    ran(known, draw, 5, sizes=sizes, start=15)
    ran(known, draw, slow, slow=1 / speed, sizes=sizes, start=20)
    known.set_speed(speed, since_ns=14 * EVERY)
    for size in sizes:
        assert typical(known, size) == pytest.approx(TRUE[size] / speed, rel=0.1)
        assert careful(known, size) <= 1.2 * TRUE[size] / speed
        assert known.mean_ns(size) == pytest.approx(TRUE[size] / speed, rel=0.2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("speed", [0.5, 0.7, 1.5])
def test_a_speed_that_is_told_a_moment_late_is_told_from_the_last_batches_before(speed, seed):
    draw, known = random.Random(f"a moment/{speed}/{seed}"), believed(2.0, sizes=(1,))
    ran(known, draw, 20, sizes=(1,))
    ran(known, draw, 7, slow=1 / speed, sizes=(1,), start=20)
    known.set_speed(speed, since_ns=18 * EVERY)
    assert typical(known, 1) == pytest.approx(TRUE[1] / speed, rel=0.1)
    assert known.mean_ns(1) == pytest.approx(TRUE[1] / speed, rel=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_work_that_jobs_declare_is_taken_out_of_what_is_usual(seed):
    draw, known = random.Random(f"work/{seed}"), believed()
    known.work()
    for step in range(300):
        size = draw.choice(SIZES)
        works = [draw.uniform(0.2, 3.0) for _ in range(size)]
        more = round(sum(work - 1 for work in works) * 1000)
        known.observe(step * EVERY, size, round(1.5 * (FIXED + EACH * sum(works))), over_milli=more)
    for size in SIZES:
        assert known.work().time_ns(size * 1000) == pytest.approx(1.5 * TRUE[size], rel=0.02)


def test_requests_of_much_work_at_the_start_are_no_slow_device():
    known = believed(sizes=(1,))
    known.work()
    for step in range(10):
        known.observe(step * EVERY, 1, 3 * TRUE[1], over_milli=2000)
    assert known.work().time_ns(1000) == TRUE[1]


def test_the_fixed_part_is_what_a_batch_of_nothing_would_take():
    assert fixed_part_ns(TRUE) == FIXED
    assert fixed_part_ns({size: size * EACH for size in SIZES}) == 0
    assert fixed_part_ns({1: 10, 2: 30, 4: 35}) < 10  # and less than a batch of one


def test_a_time_says_what_it_stands_on_and_how_old_that_is():
    known = believed()
    assert known.known(1, 5 * EVERY).source == EXPECTED
    ran(known, random.Random("confidence"), 5, sizes=(1,))
    found = known.known(1, 14 * EVERY)
    assert (found.source, found.measured, found.age_ns) == (LIVE, 5, 10 * EVERY)


@pytest.mark.parametrize("more", [{"steps": 20}, {"over_milli": 9_000}, {}])
def test_what_a_rest_costs_is_none_of_the_work_of_the_batch_after_it(more):
    known = BatchTime("m", "l", {1: timing_constant(10 * MS)}, (1,), rested_ns=15 * MS)
    works_ms = {"steps": 200, "over_milli": 10 + 9 * 10}.get(next(iter(more), ""), 10)
    known.observe(0, 1, (works_ms + 7) * MS, rested=True, **more)
    assert known.rest_ns == pytest.approx(7 * MS)
