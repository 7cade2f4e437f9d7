"""clipper and nexus, and clockwork with a fixed estimate: worked examples by hand."""

from __future__ import annotations

import pytest
from hand_world import Driver, ended, like, ran

from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.actions import RunBatch

LINE = {1: 12, 2: 14, 3: 16, 4: 18, 5: 20, 6: 22}  # 10 + 2k ms


def world(kind, models=None, slo="100ms", apps=None, **options):
    return Driver(models or {"m": LINE}, apps or {"a": {"model": "m", "slo": slo}}, policy={kind: options})


def batches(driver, count, took):
    """Keep the queue full; every batch takes ``took`` ms. How many jobs each of ``count`` batches had."""
    sizes = []
    driver.arrive("a", count=100, on_late="answer")
    for _ in range(count):
        sizes.append(len(driver.work().jobs))
        driver.finish(at=driver.now_ms + took)
    return sizes


def test_clipper_adds_one_after_a_batch_in_time_and_takes_a_tenth_away_after_one_that_was_not():
    driver = world("clipper")
    assert batches(driver, 5, took=100) == [1, 2, 3, 4, 5]  # 100 ms is not longer than the SLO
    assert batches(driver, 4, took=101) == [6, 5, 4, 3]  # nine tenths, rounded down
    assert batches(world("clipper"), 3, took=101) == [1, 1, 1]  # never below one
    assert batches(world("clipper"), 8, took=1) == [1, 2, 3, 4, 5, 6, 6, 6]  # never above the largest size
    assert batches(world("clipper", batch_max=2), 4, took=1) == [1, 2, 2, 2]


def test_clipper_keeps_a_bound_per_model():
    driver = world("clipper", {"m": LINE, "n": LINE}, apps={"a": "m", "b": "n"})
    batches(driver, 3, took=1)
    driver.arrive("b", at=1000, count=3)
    while driver.work().model == "m":
        driver.finish(at=driver.now_ms + 1)
    assert driver.actions[-1:] == [ran("n", size=1)]


def test_clipper_serves_in_order_of_arrival_and_looks_at_no_deadline():
    driver = world("clipper")
    driver.arrive("a")
    driver.arrive("a", at=1, slo=90)
    driver.arrive("a", at=2, slo=13)
    assert driver.finish(at=12)[1:] == [ran("m", 2, 3, size=2)]
    driver = world("clipper")
    driver.arrive("a")
    assert driver.arrive("a", at=1, slo=11) == []  # not refused, although the lane is busy for as long
    assert driver.finish(at=12) == [ended(1, "completed"), ended(2, "dropped", "expired")]


def test_nexus_plans_the_largest_batch_whose_mean_time_fits_twice_into_the_slo():
    for slo, planned in (("100ms", 6), ("43ms", 5), ("40ms", 5), ("39ms", 4), ("5ms", 1)):
        assert len(world("nexus", slo=slo).arrive("a", count=9, slo=200)[0].jobs) == planned
    assert len(world("nexus", slo="40ms", batch_max=3).arrive("a", count=9)[0].jobs) == 3
    driver = world("nexus", apps={"a": {"model": "m", "slo": "100ms"}, "b": {"model": "m", "slo": "40ms"}})
    assert len(driver.arrive("a", count=9)[0].jobs) == 5  # the tightest of the apps that use the model


def test_nexus_drops_the_head_that_a_batch_of_the_planned_size_would_not_finish_in_time():
    driver = world("nexus", slo="40ms")  # plans 5, in 20 ms
    driver.arrive("a")
    driver.arrive("a", at=1, slo=30)  # due at 31
    driver.arrive("a", at=2, slo=30)  # due at 32
    assert driver.step(at=10) == []  # the lane is busy: nothing is decided yet
    assert driver.finish(at=12) == [
        ended(1, "completed"),
        ended(2, "dropped", "cannot_make_deadline"),
        ran("m", 3, size=1),
    ]
    keeping = world("nexus", slo="40ms", early_drop=False)
    keeping.arrive("a")
    keeping.arrive("a", at=1, slo=30)
    assert keeping.finish(at=12)[1:] == [ran("m", 2, size=1)]


def test_nexus_does_not_drop_what_is_answered_late_anyway():
    driver = world("nexus", slo="40ms")
    assert driver.arrive("a", slo=1, on_late="answer") == [ran("m", 1)]


def test_clockwork_can_plan_with_the_profiles_mean_instead_of_what_it_measures():
    for estimate, expected_ms in (("max", 60), ("mean", 12)):
        driver = world("clockwork", {"m": {1: 12}}, estimate=estimate)
        driver.arrive("a")
        driver.finish(at=60)
        assert driver.arrive("a", at=70) == [like(RunBatch, expected_ns=expected_ms * 10**6)]
        driver.finish(at=82)
        refused = [ended(3, "rejected", "cannot_make_deadline")]
        assert driver.arrive("a", at=90, slo=50) == (refused if estimate == "max" else [ran("m", 3)])
    with pytest.raises(ConfigError, match=r"\[policy.clockwork\] estimate = 'median': expected one of .max., .mean."):
        world("clockwork", estimate="median")


def test_clockwork_can_leave_the_refusal_to_when_a_lane_asks():
    for early, at_once in ((True, [ended(2, "rejected", "cannot_make_deadline")]), (False, [])):
        driver = world("clockwork", {"m": {1: 12}}, refuse_early=early)
        driver.arrive("a")
        assert driver.arrive("a", at=1, slo=20) == at_once  # the lane is expected to be busy until 12
        assert driver.finish(at=5)[1:] == ([] if early else [ran("m", 2)])  # it was free sooner
    assert driver.arrive("a", at=6, slo=17) == []
    assert driver.finish(at=17) == [ended(2, "completed"), ended(3, "dropped", "cannot_make_deadline")]
