"""The gap between two batches of a lane: a robust recent value, learnt where it is no queueing."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver

from edgeserve.sched.latency.lane_gaps import DispatchGap

US = 1000
WINDOW_LEN, LEARNT_MIN, DISPATCH_NS_MAX = 32, 8, 10 * MS


def measured(*took_us):
    gap = DispatchGap()
    for item in took_us:
        gap.took(round(item * US))
    return gap


def numbers(gap):
    return gap.likely_ns / US, gap.careful_ns / US


def test_the_median_and_what_seven_of_eight_took_at_most():
    assert numbers(measured(*range(1, 33))) == (16, 28)


def test_a_few_stalls_do_not_count_and_many_count_as_no_more_than_the_bound():
    usual = list(range(100, 100 + WINDOW_LEN - 4))
    assert numbers(measured(*usual, *[300_000] * 4)) == (115, 127)
    assert measured(*[300_000] * LEARNT_MIN).careful_ns == DISPATCH_NS_MAX
    assert numbers(measured(*[-5] * LEARNT_MIN)) == (0, 0)


# --- what a lane learns -----------------------------------------------------------------------------------------------


def learnt(lane=None, took=10.0, every=10.75, **fields):
    """The learnt gap of a lane with batches of so many ms and answers so many ms after the order."""
    world = Driver({"m": {1: 10}}, {"a": {"model": "m", "slo": "10s"}}, lane={"l0": lane or {}}, **fields)
    world.arrive("a", count=LEARNT_MIN)
    for number in range(LEARNT_MIN):
        world.finish(at=(number + 1) * every, took=took)
    return world.scheduler.state.lanes["l0"].dispatch_gap


def test_it_is_the_time_from_the_decision_to_the_news_less_that_of_the_batch():
    assert numbers(learnt()) == (750, 750)


@pytest.mark.parametrize("lane", [{"depth": 2}, {"ahead": "5ms"}])
def test_a_lane_that_is_given_works_before_it_is_free_learns_none(lane):
    assert numbers(learnt(lane)) == (0, 0)


def test_a_request_is_refused_that_the_dispatch_gaps_before_it_make_late():
    def outcome(gap_ms, slo):
        world = Driver({"m": {1: 10}}, {"a": {"model": "m", "slo": "10s"}})
        world.arrive("a", at=0)
        for _ in range(LEARNT_MIN):
            world.scheduler.state.run_lanes[0].dispatch_gap.took(round(gap_ms * MS))
        world.arrive("a", at=1, slo=slo)
        return world.scheduler.state.requests.get(2) is not None

    assert outcome(0, 19)
    assert not outcome(1, 19)
    assert outcome(1, 20)
