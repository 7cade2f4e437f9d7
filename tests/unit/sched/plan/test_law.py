"""The law of batch times: declared lengths from the first request, learnt ones from a few batches, noise never."""

from __future__ import annotations

import math
import random

import pytest
from hand_world import app_of, job

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.timings import timing_constant
from edgeserve.sched.plan.law import EVEN, OWN, Law, declared

MS = 1_000_000
APPS = {name: app_of("m", name) for name in ("a", "b")}


def times(alone=None, sizes=(1, 2, 4, 8), fixed=4, each=3):
    seeds = {size: timing_constant((fixed + each * size) * MS) for size in sizes}
    return BatchTime("m", "l", seeds, sizes, fixed_ns=fixed * MS, alone=alone)


def law(alone=None):
    return Law(times(alone))


def jobs(count, app="a", **hints):
    return [job(seq, APPS[app], hints=hints) for seq in range(1, count + 1)]


def took(known, lengths, app="a", hinted=False, noise=1.0):
    """A batch of these lengths ran as the law has it."""
    size = next(size for size in (1, 2, 4, 8) if size >= len(lengths))
    own = [job(seq, APPS[app], hints={"length": length} if hinted else {}) for seq, length in enumerate(lengths, 1)]
    known.took(size, own, round((4 + 3 * size * max(lengths)) * MS * noise))


def mean_ms(known, size, *members):
    return known.mean_ns(size, known.members([known.length_of(member) for member in members])) / MS


def test_a_length_is_declared_in_a_unit_of_its_own_or_as_work_beside_the_usual():
    (plain,) = jobs(1)
    assert declared(plain) is None
    assert declared(jobs(1, length=7.0)[0]) == 7.0
    assert declared(jobs(1, work=0.5)[0]) == 0.5
    assert declared(jobs(1, **{"m.work": 2.0, "work": 0.5})[0]) == 2.0


def test_declared_lengths_count_before_any_batch_ran():
    known = law()
    known.told(100.0)
    assert not known.is_wide
    known.told(300.0)
    assert known.is_wide
    assert mean_ms(known, 1, *jobs(1, length=100.0)) == pytest.approx(4 + 1.5)
    assert mean_ms(known, 8, *jobs(7, length=100.0), *jobs(1, length=300.0)) == pytest.approx(4 + 8 * 4.5)


def test_an_input_of_length_zero_is_short():
    known = law()
    known.told(0.0)
    known.told(200.0)
    assert mean_ms(known, 1, *jobs(1, length=0.0)) < 4 + 1


def test_lengths_that_tell_nothing_make_no_spread():
    known, draw = law(), random.Random(1)
    for _ in range(60):
        known.told(draw.uniform(1, 10))
    assert known.is_wide
    for _ in range(60):
        known.took(4, jobs(4, length=draw.uniform(1, 10)), 16 * MS)
    assert not known.is_wide


def test_declared_lengths_that_err_have_a_spread():
    known, draw = law(), random.Random(6)
    for length in (1.0, 3.0):
        known.told(length)
    for _ in range(60):
        took(known, [draw.choice((0.3, 0.5, 1.0, 2.0, 3.0))], hinted=True, noise=1.0)
        known.took(4, jobs(4, length=1.0), round((4 + 12 * draw.choice((0.4, 1.0, 2.5))) * MS))
    members = known.members([known.length_of(jobs(1, length=1.0)[0])])
    assert known.within_ns(4, members, 0.9) > 1.4 * known.within_ns(4, members, 0.5)
    assert mean_ms(known, 4, *jobs(4, length=1.0)) > 1.1 * mean_ms(known, 4, *jobs(1, length=1.0))


def test_the_line_is_learnt_where_the_profile_was_wrong():
    known, draw = law(), random.Random(2)
    for _ in range(40):
        lengths = [draw.uniform(0.5, 6) for _ in range(4)]
        for length in lengths:
            known.told(length)
        took(known, lengths, hinted=True)  # 3 ms for a length of 1, though the mean is 3.2
    assert mean_ms(known, 8, *jobs(1, length=6.0)) == pytest.approx(4 + 8 * 18, rel=0.05)


def test_four_batches_that_differ_make_a_spread_and_equal_ones_unmake_it():
    known = law()
    for length in (0.3, 5.0, 0.3, 5.0):
        took(known, [length] * 8)
    assert known.is_wide
    for _ in range(110):
        took(known, [1.0] * 8)
    assert not known.is_wide


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_spread(seed):
    known, draw = law(), random.Random(f"noise {seed}")
    for _ in range(300):
        took(known, [1.0] * draw.choice((1, 2, 4, 8)), noise=max(0.65, draw.gauss(1.0, 0.1)))
        assert not known.is_wide


def test_a_device_that_is_slow_at_random_is_no_longer_believed_to_have_unequal_inputs():
    """Batches of all sizes alike: a third of them takes twice as long, with any content."""
    known, draw = law(), random.Random(3)
    for _ in range(200):
        took(known, [1.0] * draw.choice((1, 2, 4, 8)), noise=draw.choice((1.0, 1.0, 2.0)))
    assert not known.is_wide


def test_distributions_are_learnt_by_app_from_batches_of_both():
    known, draw = law(), random.Random(4)
    for _ in range(200):
        count = draw.choice((1, 2, 4, 8))
        own = [draw.choice("ab") for _ in range(count)]
        longest = max([draw.uniform(0.8, 1.2) if app == "a" else draw.uniform(5, 6) for app in own])
        known.took(count, [jobs(1, app)[0] for app in own], round((4 + 3 * count * longest) * MS))
    short, long = [known.alone_ns(known.length_of(jobs(1, app)[0]), EVEN) / MS for app in "ab"]
    assert 6.4 < short < 8
    assert 19 < long < 22.1
    assert mean_ms(known, 2, *jobs(2, "a")) < 17
    assert mean_ms(known, 2, *jobs(1, "a"), *jobs(1, "b")) > 30


def test_the_longest_of_a_batch_tells_how_long_one_is_alone():
    known, draw = law(), random.Random(5)
    lengths = [0.3, 0.5, 0.8, 1.2, 2.0, 4.0]
    for _ in range(256):  # batches of four alone
        took(known, [draw.choice(lengths) for _ in range(4)])
    (one,) = jobs(1)
    assert mean_ms(known, 1, one) == pytest.approx(4 + 3 * sum(lengths) / 6, rel=0.15)
    assert mean_ms(known, 4, *jobs(4)) == pytest.approx(4 + 12 * 2.85, rel=0.1)
    members = known.members([known.length_of(one)])
    assert known.chance(1, members, round(8.5 * MS)) == pytest.approx(4 / 6, abs=0.12)


def test_profiled_times_alone_are_believed_before_anything_ran():
    known = law(alone={"a": [round((4 + 3 * length) * MS) for length in (0.5,) * 50 + (5.0,) * 50]})
    assert known.is_wide
    (one,) = jobs(1)
    assert known.length_of(one)[0] == "a"
    assert mean_ms(known, 1, one) == pytest.approx(4 + 3 * 2.75, rel=0.02)
    assert known.length_of(jobs(1, length=3.0)[0])[0] == OWN


def test_times_follow_the_speed_of_the_lane():
    latency = times()
    known = Law(latency)
    known.told(1.0)
    known.told(3.0)
    before = mean_ms(known, 2, *jobs(2, length=3.0))
    latency.set_speed(0.5)
    assert mean_ms(known, 2, *jobs(2, length=3.0)) == pytest.approx(2 * before)


def batch_of(known, apps, terms, noise=1.0):
    """A batch of these apps' inputs ran, each of which adds so many times the usual."""
    size = next(size for size in (1, 2, 4, 8) if size >= len(apps))
    longest = max([terms[app] for app in apps])
    known.took(size, [jobs(1, app)[0] for app in apps], round((FIXED + 3 * size * longest) * MS * noise))


FIXED = 12
DRIFT = {"even": 0.0, "a slow minute": 0.5}


def drawn(seed, terms, noise, slow=0.0):
    """A law after 400 batches of two apps on a machine with this noise; a tenth of the time it is slower."""
    known, draw, now = Law(times(fixed=FIXED)), random.Random(f"apps {seed}"), 0.0
    for _ in range(400):
        if draw.random() < 0.03:
            now = slow if draw.random() < 0.3 else 0.0
        apps = [draw.choice("ab") for _ in range(draw.choice((1, 1, 2, 4, 8)))]
        batch_of(known, apps, terms, math.exp(now + draw.gauss(0.0, noise)))
    return known


@pytest.mark.parametrize("seed", range(10))
def test_apps_whose_inputs_differ_by_less_than_noise_of_whole_batches_are_told_apart(seed):
    """Alone they take 13.5 and 16.5 ms, in batches of eight 24 and 48."""
    known = drawn(seed, {"a": 0.5, "b": 1.5}, 0.03)
    assert known.is_wide
    assert mean_ms(known, 8, *[jobs(1, "a")[0]] * 8) < 0.85 * mean_ms(known, 8, *[jobs(1, "b")[0]] * 8)


@pytest.mark.parametrize("slow", DRIFT.values(), ids=DRIFT)
@pytest.mark.parametrize("noise", [0.03, 0.12])
@pytest.mark.parametrize("seed", range(10))
def test_noise_tells_no_apps_apart(seed, noise, slow):
    assert not drawn(seed, {"a": 1.0, "b": 1.0}, noise, slow).is_wide


def test_profiled_times_alone_tell_apps_apart():
    """Inputs of each app are alike, inputs of two are not."""
    spread = [0.99, 1.0, 1.01] * 5
    near = {app: [round((4 + 3 * each * at) * MS) for each in spread] for app, at in (("a", 1.0), ("b", 1.01))}
    apart = {app: [round((4 + 3 * each * at) * MS) for each in spread] for app, at in (("a", 1.0), ("b", 1.5))}
    assert law(alone=apart).is_wide and not law(alone=near).is_wide


def test_apps_are_told_apart_where_the_smallest_batch_has_room_for_more():
    known, draw = Law(times(sizes=(4, 8), fixed=FIXED)), random.Random(6)
    for _ in range(60):
        app, noise = draw.choice("ab"), math.exp(draw.gauss(0.0, 0.02))
        known.took(4, jobs(1, app), round((FIXED + 12 * {"a": 0.8, "b": 1.2}[app]) * MS * noise))
    assert known.is_wide
