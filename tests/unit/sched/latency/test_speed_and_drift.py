"""A speed that is told and what was measured before it was: neither counts twice."""

from __future__ import annotations

import pytest

from edgeserve.sched.latency.distribution import timing_constant
from edgeserve.sched.latency.idle_gap import IdleGap
from edgeserve.sched.latency.model import ModelLatency

MS = 10**6
LEARNT_MIN, FACTOR_MAX = 3, 8.0


def known():
    return ModelLatency("m", "gpu0", {1: timing_constant(10 * MS), 4: timing_constant(20 * MS)}, sizes=(1, 4))


def ran(latency, took_ms, *at_ms, size=1):
    for at in at_ms:
        latency.observe(at * MS, size, round(took_ms * MS))


def test_what_was_slow_since_the_clock_fell_is_explained_by_the_clock():
    latency = known()
    ran(latency, 10, 100, 200, 300, 400)
    ran(latency, 10 / 0.6, 500, 600, 700, 800)  # it fell at 450 ms; nobody told yet
    assert latency.likely_ns[1] > 16 * MS
    latency.set_speed(0.6, since_ns=400 * MS)
    assert latency.pace_ppm() == pytest.approx(10**6, rel=1e-3)
    assert latency.likely_ns[1] == pytest.approx(10 / 0.6 * MS, rel=1e-3)
    assert latency.likely_ns[4] == pytest.approx(20 / 0.6 * MS, rel=1e-3)
    assert latency.estimate_ns[1] == pytest.approx(10 / 0.6 * MS, rel=1e-3)


def test_what_was_measured_before_the_clock_changed_stays():
    latency = known()
    ran(latency, 10, 100, 200, 300, 400, 500)  # the clock fell right after these
    latency.set_speed(0.6, since_ns=250 * MS)
    assert latency.pace_ppm() == 10**6
    assert latency.likely_ns[1] == pytest.approx(10 / 0.6 * MS, rel=1e-6)


def test_a_model_that_is_slower_than_its_profile_anyway_stays_so():
    latency = known()
    for second in range(1, 4):
        ran(latency, 13, *range(second * 1000 - 900, second * 1000, 100))
        latency.forget(second * 1000 * MS)
    ran(latency, 13 / 0.6, 3100, 3150, 3200, 3250, 3300, 3350, 3400, 3420, 3440, 3460, 3480)  # no older one is left
    latency.set_speed(0.6, since_ns=3000 * MS)
    assert latency.pace_ppm() == pytest.approx(1.3 * 10**6, rel=1e-3)
    assert latency.likely_ns[1] == pytest.approx(13 / 0.6 * MS, rel=1e-3)


def test_the_clock_that_rises_again_is_explained_alike():
    latency = known()
    latency.set_speed(0.6)
    ran(latency, 10 / 0.6, 100, 200, 300, 400, 500)
    ran(latency, 10, 600, 700, 800)
    latency.set_speed(1.0, since_ns=500 * MS)
    assert latency.pace_ppm() == pytest.approx(10**6, rel=1e-3)
    assert latency.likely_ns[4] == pytest.approx(20 * MS, rel=1e-3)


def test_a_speed_that_is_told_with_no_time_changes_no_measurement():
    latency = known()
    ran(latency, 15, 100, 200, 300)
    latency.set_speed(0.6)
    assert latency.pace_ppm() == 1.5 * 10**6


def test_phases_are_explained_too():
    latency = known()
    latency.observe(100 * MS, 1, 10 * MS, phase="decode")
    latency.observe(900 * MS, 1, 20 * MS, phase="decode")
    latency.set_speed(0.5, since_ns=500 * MS)
    assert latency.phase("decode").typical_ns[1] == 20 * MS


def test_the_first_batch_after_a_gap_is_learnt_in_eighths():
    gap = IdleGap(100 * MS, 0)
    assert not gap.turns_cold(99 * MS, busy=False)
    assert not gap.turns_cold(100 * MS, busy=True)
    assert gap.turns_cold(100 * MS, busy=False)
    assert not gap.turns_cold(200 * MS, busy=False), "it is cold already"
    for _ in range(LEARNT_MIN - 1):
        gap.learn(19 * MS, 10 * MS)
    assert gap.factor == 1.0
    gap.learn(19 * MS, 10 * MS)
    assert gap.factor == 1.875
    for _ in range(8):
        gap.learn(10 * MS, 10 * MS)
    assert gap.factor == 1.0
    for _ in range(8):
        gap.learn(1000 * MS, 10 * MS)
    assert gap.factor == FACTOR_MAX
