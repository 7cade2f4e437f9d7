"""Unequal inputs, told from a slow device by the spread of what batches take."""

from __future__ import annotations

import math
import random
from statistics import NormalDist, fmean, median, pstdev

import numpy as np
import pytest

from edgeserve.sched.latency.distribution import timing_constant
from edgeserve.sched.latency.drift import Drift
from edgeserve.sched.latency.model import ModelLatency
from edgeserve.sched.latency.skew import Skew, longest_ppm, spread_ppm

MS = PPM = 1_000_000
LOOKED_BACK, FROM, EVERY = 48, 12, 4
NOISE_PPM, STEP_PPM, SKEW_MAX_PPM, APART_MAX_PPM = 120_000, 50_000, 1_200_000, 1_400_000
CLEARLY, SHOWN, SIZES_APART = 4, 3, 7
MEAN_APART_PPM = round(2 / math.sqrt(math.pi) * PPM)
SIZES = (1, 2, 4, 8)
FIXED, EACH = 10 * MS, 20 * MS
TOLD = {size: FIXED + size * EACH for size in SIZES}


def batch_ns(rng, size, deviation, noise=0.0, slow=1.0):
    """What a batch takes whose inputs have lognormal lengths around the one that was profiled."""
    longest = max(rng.lognormvariate(0.0, deviation) for _ in range(size))
    return round(slow * (FIXED + size * EACH * longest) * rng.gauss(1.0, noise))


def learnt(sizes, deviation, noise=0.03, slow=1.0, batches=80):
    rng = random.Random(f"skew/{sizes}/{deviation}/{noise}/{slow}")
    known = Drift(TOLD, fixed_ns=FIXED)
    for step in range(batches):
        size = sizes[step % len(sizes)]
        known.observe(step * 50 * MS, size, batch_ns(rng, size, deviation, noise, slow))
    return known


def test_the_tables_of_maxima_are_those_of_a_normal_distribution():
    rng = random.Random("skew/maxima")
    for size in (2, 4, 8, 16):
        drawn = [max(rng.gauss(0, 1) for _ in range(size)) for _ in range(20_000)]
        assert longest_ppm(size) / PPM == pytest.approx(fmean(drawn), abs=0.03)
        assert spread_ppm(size) / PPM == pytest.approx(pstdev(drawn), abs=0.02)
    assert (longest_ppm(1), spread_ppm(1)) == (0, PPM) and spread_ppm(7) == spread_ppm(6)


def test_between_its_rows_the_table_of_deviations_says_that_of_the_smaller_size():
    assert [spread_ppm(size) for size in (1, 2, 3, 4, 5, 6)] == [PPM, 825_600, 748_000, 701_200, 701_200, 644_900]
    assert [spread_ppm(size) for size in (7, 8, 11, 12, 15)] == [644_900, 610_700, 610_700, 568_900, 568_900]
    assert [spread_ppm(size) for size in (16, 31, 32, 99)] == [543_100, 543_100, 491_500, 491_500]


def test_batches_that_alternate_tell_the_skew_of_their_distance_to_the_last_digit():
    apart_ppm = round(PPM * math.log(3))
    spread = apart_ppm * PPM // MEAN_APART_PPM
    noise = NOISE_PPM * 30 // 20
    for told in (TOLD, {**TOLD, 8: 10**9}):  # what another size takes changes nothing
        known = Skew(told, FIXED)
        changed = [known.observe(1, FIXED + EACH * (1, 3)[step % 2]) for step in range(FROM)]
        assert changed == [False] * (FROM - 1) + [True]
        assert known.skew_ppm == math.isqrt(spread * spread - noise * noise)


@pytest.mark.parametrize(("times", "shown"), [(1.24, False), (1.26, True)])
def test_a_spread_counts_that_is_a_quarter_more_than_noises(times, shown):
    apart = times * NOISE_PPM * 30 / 20 * MEAN_APART_PPM / PPM / PPM  # size 1: a third of its time is fixed
    known = Skew(TOLD, FIXED)
    for step in range(FROM):
        known.observe(1, FIXED + round(EACH * math.exp(apart * (step % 2))))
    assert (known.skew_ppm > 0) == shown


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("deviation", [0.5, 0.9])
def test_batches_of_one_size_tell_what_the_other_sizes_take(size, deviation):
    known = learnt((size,), deviation)
    rng = random.Random("skew/truth")
    for other in SIZES:
        true = median([batch_ns(rng, other, deviation) for _ in range(4000)])
        assert known.typical_ns[other] == pytest.approx(true, rel=0.4), other
    flat = known.typical_ns[8] / known.typical_ns[1]
    assert flat > 1.3 * TOLD[8] / TOLD[1]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("sizes", [(1,), (8,), SIZES])
def test_neither_noise_nor_a_slow_device_is_taken_for_unequal_inputs(noise, sizes):
    known = learnt(sizes, 0.0, noise, slow=2.5)
    assert known.skew.skew_ppm == 0
    assert known.typical_ns[1] == pytest.approx(2.5 * TOLD[1], rel=0.25)


@pytest.mark.parametrize("deviation", [0.5, 0.83])
@pytest.mark.parametrize(
    ("sizes", "slow", "most"),
    [((4,), 1.0, 0.01), ((8,), 1.0, 0.01), (SIZES, 1.0, 0.01), ((4, 8), 0.6, 0.01), (SIZES, 2.5, 0.25)],
)
def test_inputs_that_add_up_make_no_batch_longer_than_the_profile_says(sizes, slow, most, deviation):
    rng = random.Random(f"skew/sums/{sizes}/{slow}/{deviation}")
    known, believed = Drift(TOLD, fixed_ns=FIXED), 0
    for step in range(1000):
        size = sizes[step % len(sizes)]
        work = sum([rng.lognormvariate(-deviation * deviation / 2, deviation) for _ in range(size)])  # of mean 1 each
        known.observe(step * 50 * MS, size, round(slow * (FIXED + EACH * work) * rng.gauss(1.0, 0.03)))
        believed += known.skew.skew_ppm > 0
    assert believed <= most * 1000  # on a slow device, only the rise from small batches to large ones tells


@pytest.mark.parametrize("slow", [1.0, 2.5])
@pytest.mark.parametrize("sizes", [(1, 8), (4, 8), SIZES])
def test_the_longest_of_unequal_inputs_is_found_beside_other_sizes(sizes, slow):
    rng = random.Random(f"skew/longest/{sizes}/{slow}")
    known, believed = Skew(TOLD, FIXED), 0
    for step in range(1000):
        size = sizes[step % len(sizes)]
        known.observe(size, batch_ns(rng, size, 0.8, 0.03, slow))
        believed += 400_000 < known.skew_ppm < PPM + 100_000
    assert believed > 800


def test_a_pace_that_changes_once_is_no_skew():
    known = Drift(TOLD, fixed_ns=FIXED)
    for step in range(100):
        known.observe(step, 4, TOLD[4] * (3 if step > 50 else 1))
    assert known.skew.skew_ppm == 0


def test_inputs_that_become_equal_again_are_believed_to_be():
    rng = random.Random("skew/again")
    known = Skew(TOLD, FIXED)
    for deviation in (0.9, 0.0):
        for _ in range(100):
            known.observe(4, batch_ns(rng, 4, deviation, 0.02))
        assert (known.skew_ppm > 500_000) == (deviation > 0)


def test_few_batches_and_a_single_size_tell_nothing_and_wild_times_stay_bounded():
    known = Skew(TOLD, FIXED)
    for step in range(FROM - 1):
        assert not known.observe(4, (1, 10**12)[step % 2])
    for step in range(200):
        known.observe(SIZES[step % 4], (1, 10**12, 5)[step % 3])
        assert 0 <= known.skew_ppm <= SKEW_MAX_PPM
    assert known.time_ns(8, TOLD[8]) <= TOLD[8] * math.exp(1.2 * NormalDist().inv_cdf(7.625 / 8.25)) + 1
    lone = Drift({4: 1000})
    for step in range(100):
        lone.observe(step, 4, (500, 2000)[step % 2])
    assert lone.skew.skew_ppm == 0


def test_jobs_that_say_their_work_are_not_taken_for_unequal_inputs():
    rng = random.Random("skew/told")
    known = ModelLatency("m", "l", {size: timing_constant(time_ns) for size, time_ns in TOLD.items()}, SIZES)
    for step in range(100):
        known.observe(step, 4, batch_ns(rng, 4, 0.9), over_milli=100)
    assert known.figures(100)["skew"] == 0.0
    for step in range(100):
        known.observe(step, 4, batch_ns(rng, 4, 0.9))
    assert known.figures(100)["skew"] > 0.5


@pytest.mark.parametrize("seed", range(4))
def test_the_sums_kept_are_those_worked_out_anew_from_the_last_batches(seed):
    rng = random.Random(f"skew/naive/{seed}")
    deviation = (0.1, 0.5, 0.9, 0.9)[seed]
    skew, rows, changes = Skew(TOLD, FIXED), [], 0
    for step in range(1, 301):
        size = rng.choice(SIZES if seed < 3 else (1,))
        took_ns = batch_ns(rng, size, deviation if step < 200 else 0.0, 0.03)
        growing_ns = max(1, (TOLD[size] - FIXED) // 20, took_ns - FIXED)
        rows = [*rows, (size, round(PPM * math.log(growing_ns / (TOLD[size] - FIXED))))][-LOOKED_BACK:]
        before_ppm = skew.skew_ppm
        changed = skew.observe(size, took_ns)
        wanted_ppm = before_ppm
        if len(rows) >= FROM and step % EVERY == 0:
            wanted_ppm = naive_skew_ppm(rows, before_ppm)
            if abs(wanted_ppm - before_ppm) < STEP_PPM:
                wanted_ppm = before_ppm
        assert (skew.skew_ppm, changed) == (wanted_ppm, wanted_ppm != before_ppm), step
        changes += changed
    assert changes >= (2 if seed else 0)


def naive_skew_ppm(rows, skew_ppm):
    """The skew that so many batches tell, (size, logarithm) each, where ``skew_ppm`` was believed."""
    apart = 0
    for (size, log), (before, log_before) in zip(rows[1:], rows):
        usual = skew_ppm * (longest_ppm(size) - longest_ppm(before)) // PPM
        apart += min(APART_MAX_PPM, abs(log - log_before - usual)) * 2 * PPM // (spread_ppm(size) + spread_ppm(before))
    spread = min(SKEW_MAX_PPM, apart // (len(rows) - 1) * PPM // MEAN_APART_PPM)
    noises = sorted(NOISE_PPM * TOLD[size] // (TOLD[size] - FIXED) * PPM // spread_ppm(size) for size, _ in rows)
    noise = noises[len(noises) // 2]
    if spread * CLEARLY <= noise * (CLEARLY + 1):
        return 0
    found = math.sqrt(spread * spread - noise * noise) / PPM
    longest = [longest_ppm(size) / PPM for size, _ in rows]
    logs = [log / PPM + found * found / (2 * size) for size, log in rows]
    shown = [fmean(logs) / fmean(longest)] if any(longest) else []
    if len(rows) * pstdev(longest) ** 2 >= SIZES_APART:
        shown.append(float(np.polyfit(longest, logs, 1)[0]))
    return math.isqrt(spread * spread - noise * noise) if min([found, *shown]) * SHOWN >= found else 0
