"""How often an app was asked lately."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver

from edgeserve.sched.requests.recent_arrivals import RecentArrivals

UNREAD_MAX = 64
MODELS = {"a": {1: 4, 2: 6}}
"""A request in a full batch takes 3 ms."""


def recent_of(world):
    return world.scheduler.state.recent["q"]


def test_the_rate_counts_from_the_first_remembered_until_now_also_of_those_its_policy_refuses():
    world = Driver(MODELS, {"q": {"model": "a", "slo": "5ms", "value": 2.0}})
    recent = recent_of(world)
    for at in (0, 1, 2, 3, 4):  # its policy refuses most
        world.arrive("q", at=at)
    assert recent.per_ns(4 * MS) == pytest.approx(1 / MS)
    assert recent.per_ns(400 * MS) == pytest.approx(4 / 400 / MS)  # silence counts
    assert (recent.lane_ns, recent.worth, recent.allowed_ns) == (
        pytest.approx(3 * MS),
        pytest.approx(6 * MS),
        pytest.approx(5 * MS),
    )


def test_two_requests_tell_no_rate():
    world = Driver(MODELS, {"q": {"model": "a", "slo": "50ms"}})
    for at in (0, 10):
        assert not recent_of(world).is_known
        world.arrive("q", at=at)
    assert recent_of(world).per_ns(20 * MS) == 0.0
    world.arrive("q", at=20)
    assert recent_of(world).per_ns(20 * MS) == pytest.approx(2 / 20 / MS)


def test_arrivals_that_nobody_asks_about_are_counted_many_at_a_time():
    world = Driver(MODELS, {"q": {"model": "a", "slo": "5ms"}})
    for at in range(UNREAD_MAX + 3):
        world.arrive("q", at=at)
    assert len(recent_of(world).unread) == 3


def test_when_arrivals_are_counted_changes_nothing():
    at_once, one_by_one = RecentArrivals(), RecentArrivals()
    for index in range(50):
        arrival = (index * MS, 1.0 + index % 7, 1.0 + index % 3, 5.0 * index)
        at_once.unread.append(arrival)
        one_by_one.unread.append(arrival)
        one_by_one.count()
    assert at_once.worth == one_by_one.worth > 0.0
    assert (at_once.lane_ns, at_once.allowed_ns) == (one_by_one.lane_ns, one_by_one.allowed_ns)
    assert at_once.per_ns(60 * MS) == one_by_one.per_ns(60 * MS) > 0.0
    assert not at_once.unread


def test_what_finds_no_place_does_not_count():
    world = Driver(MODELS, {"q": {"model": "a", "slo": "50ms", "pending_max": 2}})
    recent = recent_of(world)
    for _ in range(4):
        world.arrive("q", at=0, count=100)
    assert not recent.is_known
    world.arrive("q", at=1, count=3, slo=-1)  # too late when it came
    world.finish(at=2)
    world.drain()
    world.arrive("q", at=3, count=3)
    assert not recent.is_known
