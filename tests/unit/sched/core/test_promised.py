"""A deadline that was promised: the request that comes back with it goes before its equals, and after a broken promise
the next number is longer, also by a part of the time that a request has waited."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, ran

ONE = {"m": {1: 10}}


def promised_ms(world: Driver, request_id: int) -> float:
    """The deadline that a refusal said would do."""
    shortfall = world.ends[request_id].shortfall
    assert shortfall is not None
    assert shortfall.slo_ns_min is not None
    return shortfall.slo_ns_min / MS


@pytest.mark.parametrize("policy", ["edf", "plan"])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_it_runs_next_however_many_wait_that_are_due_earlier(policy: str, others: int) -> None:
    world = Driver(ONE, {"a": "m"}, policy)
    world.arrive("a", slo=500)
    world.arrive("a", slo=15, client="x")
    world.arrive("a", slo=promised_ms(world, 2) + 1, at=1, client="x")
    world.arrive("a", count=others, slo=promised_ms(world, 2), at=1, client="y")
    assert ran("m", 3) in world.finish(at=10)


@pytest.mark.parametrize("policy", ["edf", "plan"])
def test_it_goes_before_no_class_above(policy: str) -> None:
    world = Driver(ONE, {"a": "m"}, policy)
    world.arrive("a", slo=500)
    world.arrive("a", slo=15, client="x")
    world.arrive("a", slo=promised_ms(world, 2) + 1, at=1, client="x")
    world.arrive("a", slo=20, at=1, priority_class="critical", client="y")
    assert ran("m", 4) in world.finish(at=10)


@pytest.mark.parametrize("policy", ["edf", "plan"])
def test_after_a_broken_promise_the_next_one_is_longer_by_a_part_of_the_whole(policy: str) -> None:
    """Batches take 15 ms in place of 10: a request that waits for one is given up, and had needed 25 ms."""
    world = Driver(ONE, {"a": "m"}, policy)
    world.arrive("a", slo=500)
    world.arrive("a", slo=15, client="x")
    world.arrive("a", slo=promised_ms(world, 2), client="x")
    world.finish(at=15, took=15)
    worked_out = promised_ms(world, 3)
    assert worked_out >= 25
    world.arrive("a", slo=500, at=15)
    world.arrive("a", slo=32, at=15, client="y")
    world.finish(at=33, took=18)
    assert promised_ms(world, 5) >= 1.4 * worked_out
