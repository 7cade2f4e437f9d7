"""Batches of n jobs against brute force over all splits, and what is between whole numbers of jobs."""

from __future__ import annotations

import random
from functools import lru_cache

import pytest

from edgeserve.sched.latency.model import ModelLatency, timing_constant
from edgeserve.sched.policies.pard_local.cost import COUNT_MAX, BatchCost, one_by_one


def batch_cost_of(times_us):
    """Profiled times, in microseconds, by size."""
    latency = ModelLatency("m", "l", {size: timing_constant(us * 1000) for size, us in times_us.items()},
                           sorted(times_us))
    found = BatchCost(latency)
    found.refresh()
    return found


def drawn(draw):
    sizes = sorted(draw.sample(range(1, 9), draw.randrange(1, 5)))
    return {size: draw.randrange(1000, 9000) for size in sizes}


@pytest.mark.parametrize("seed", range(40))
def test_jobs_are_split_into_the_batches_that_take_least(seed):
    times_us = drawn(random.Random(f"split {seed}"))
    cost = batch_cost_of(times_us)

    @lru_cache(None)
    def least(count):  # what is no full batch runs in the smallest size that holds it
        holds = min([size for size in times_us if size >= count], default=max(times_us))
        return min([us + least(max(0, count - size)) for size, us in times_us.items() if size <= holds]) if count else 0

    for count in range(20):
        assert cost.time_ns(count * 1000) == least(count) * 1000
        batches = cost.batches(count * 1000)
        assert sum(batches) == least(count) * 1000
        first = cost.first(count)
        assert sum(batches[1:]) == least(count - first) * 1000
        assert not count or batches[0] == times_us[min(size for size in times_us if size >= first)] * 1000
        cost._surprise_ppm = 10_000  # 0.01: batches miss by a tenth
        squares = sum((ns // 1000) ** 2 for ns in batches)
        assert cost.variance_us2(count * 1000) == squares * 10_000 // 1_000_000
    assert cost.share_ns() == least(max(times_us)) * 1000 // max(times_us)


def test_between_whole_numbers_times_lie_on_a_straight_line_and_batches_are_counted_up():
    cost = batch_cost_of({1: 4000, 2: 6000})
    assert [cost.time_ns(milli) for milli in (0, 1, 250, 999, 1000, 1500, 2001)] == [
        0, 4_000, 1_000_000, 3_996_000, 4_000_000, 5_000_000, 6_004_000]
    assert cost.batches(1) == [4_000_000] and cost.batches(1001) == [6_000_000] and cost.batches(0) == []
    assert cost.batches(2001) in ([6_000_000, 4_000_000], [4_000_000, 6_000_000])


def test_beyond_the_table_times_are_in_proportion():
    cost = batch_cost_of({1: 4000, 2: 6000})
    most = COUNT_MAX * 1000
    assert cost.time_ns(most) == COUNT_MAX // 2 * 6_000_000
    assert cost.time_ns(most - 500) == COUNT_MAX // 2 * 6_000_000 - 1_000_000
    assert cost.time_ns(3 * most) == 3 * cost.time_ns(most)
    assert cost.first(3 * COUNT_MAX) == 2
    assert sum(cost.batches(3 * most)) == cost.time_ns(most)  # a forecast looks no further


def test_work_beyond_the_usual_takes_the_part_of_a_batchs_time_that_grows():
    cost = batch_cost_of({1: 4000, 2: 6000})  # 2 + 2k ms
    assert cost.each_ns == 2_000_000
    assert cost.time_ns(2000, 500) == 7_000_000 and cost.time_ns(2000, -1000) == 4_000_000
    assert cost.time_ns(1000, -9000) == 1  # never less than nothing
    assert cost.batches(3000, 3000) == [ns * 16 // 10 for ns in cost.batches(3000)]
    assert cost.batches(1000, -9000) == [1] and cost.batches(0, 500) == []
    cost._surprise_ppm = 10_000
    assert cost.variance_us2(2000, 3000) == 4 * cost.variance_us2(2000)  # twice the time, twice as far off
    assert cost.variance_us2(0, 500) == 0


def test_a_size_that_takes_longer_than_believed_is_learnt_step_by_step():
    cost = batch_cost_of({1: 4000, 2: 6000, 4: 10000})
    for number in range(1, 4):
        before = cost.time_ns(4000)
        cost.observe(4, 11_000_000)
        now = cost.time_ns(4000)
        assert before < now < 11_000_000
        assert (now - before) / (11_000_000 - before) == pytest.approx(1 / (number + 8), rel=0.02)
    assert cost.time_ns(1000) == 4_000_000 and not cost.is_declared


def test_stages_follow_each_other_when_lane_and_model_are_there():
    free_ns = {"a": 30, "b": 5}
    assert one_by_one([("a", 10, 0), ("b", 7, 0), ("a", 1, 0)], free_ns, 20) == 30 + 10 + 7 + 1
    assert one_by_one([("b", 10, 0), ("b", 7, 90)], free_ns, 20) == 90 + 7
    assert one_by_one([], free_ns, 20) == 20
