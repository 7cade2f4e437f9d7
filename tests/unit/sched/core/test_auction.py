"""Starts by the auction: background work beside critical requests, cut or made to wait; and what a launch says."""

from __future__ import annotations

from typing import Any, List

import pytest
from hand_world import MS, Driver, ran

from edgeserve.errors import PolicyError
from edgeserve.sched.latency.lane_gaps import DISPATCH_EVERY as LEARNT_MIN
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.published.baselines.fifo import Fifo
from edgeserve.sched.resources.lanes import Lane

BATCHES = {1: 10, 2: 12, 4: 16, 8: 24}
EVERY_POLICY = ["fifo", "edf", "clockwork", "nexus", "clipper", "orloj", "plan", "pard", "pard+"]


def beside_critical(slo: float = 30, policy: Any = "fifo", background: Any = None, **sections: Any) -> Driver:
    """A critical app whose requests take 10 ms and come at any time, and background work in the other batches."""
    apps = {
        "c": {"model": "m", "class": "critical", "slo": f"{slo}ms", **sections.pop("app", {})},
        "bg": {"model": "n", "class": "background", "slo": "9s", **(background or {})},
    }
    return Driver(
        {"m": {1: 10}, "n": sections.pop("times", BATCHES), **sections.pop("models", {})}, apps, policy, **sections
    )


def after_a_critical_one(world: Driver, count: int = 8, **fields: Any) -> List[Any]:
    """Background requests wait while a critical one runs: what the lane does when that is answered, at 10."""
    world.arrive("c", at=0)
    world.arrive("bg", at=1, count=count, **fields)
    return world.finish(at=10)[1:]


# --- background work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slack", "size", "takes"), [(24, 8, 24), (23.999, 4, 16), (16, 4, 16), (15.999, 2, 12), (10, 1, 10)]
)
def test_background_batches_are_cut_to_what_is_over_before_a_critical_request_would_be_late(slack, size, takes):
    world = beside_critical(10 + slack)
    first = list(range(2, 2 + size))
    assert after_a_critical_one(world) == [ran("n", *first, size=size, expected_ns=takes * MS)]
    rest = world.finish(at=10 + takes)[size:]
    assert [action.jobs[0].request_id for action in rest] == ([2 + size] if size < 8 else []), "the rest waits"


def test_where_not_even_the_smallest_batch_fits_nothing_starts():
    assert after_a_critical_one(beside_critical(19.999)) == []


def test_background_work_counts_as_slow_as_the_slowest_lately_of_any_size_and_of_its_own():
    def learnt(*observed: Any) -> List[Any]:
        world = beside_critical(10 + 20)
        for number, (size, took) in enumerate(observed):
            world.scheduler.state.latency["n", "cpu0"].observe(number, size, took * MS)
        return after_a_critical_one(world)

    assert learnt() == [ran("n", 2, 3, 4, 5)]
    assert learnt((8, 36)) == [ran("n", 2, 3)], "half as slow again: 24 for four, 18 for two"
    assert learnt((4, 22), *[(1, 10)] * 10) == [ran("n", 2, 3)], "the slowest of four, although nothing is slow now"


def test_a_lane_that_plans_ahead_counts_what_is_on_it():
    for slack, starts in ((10 + 16, True), (10 + 15.999, False)):
        world = beside_critical(10 + slack, times={1: 16}, lane={"cpu0": {"ahead": "10ms"}})
        world.arrive("c", at=0)
        world.finish(at=10)
        assert world.arrive("bg", at=20) == [ran("n", 2)]
        assert world.arrive("bg", at=26) == ([ran("n", 3)] if starts else [])


def hands_over(world: Driver, gap_ms: float) -> Driver:
    """Its lane was measured to need so long between two batches."""
    for _ in range(LEARNT_MIN):
        world.scheduler.state.lanes["cpu0"].dispatch_gap.took(round(gap_ms * MS))
    return world


@pytest.mark.parametrize(("slack", "size"), [(25, 8), (24.999, 4), (11, 1)])
def test_background_work_leaves_time_for_the_dispatch_gap_to_the_next_critical_request(slack, size):
    first = list(range(2, 2 + size))
    assert after_a_critical_one(hands_over(beside_critical(10 + slack), 1)) == [ran("n", *first, size=size)]


def test_background_work_that_leaves_no_time_for_a_dispatch_gap_keeps_nobody_else_waiting():
    world = hands_over(
        Driver(
            {"m": {1: 10}, "n": {1: 10}, "k": {1: 10}},
            {
                "c": {"model": "m", "class": "critical", "slo": "20.999ms"},
                "o": {"model": "k", "slo": "9s"},
                "bg": {"model": "n", "class": "background", "slo": "9s"},
            },
            "fifo",
        ),
        1,
    )
    world.arrive("c", at=0)
    world.arrive("bg", at=1)
    world.arrive("o", at=2)
    assert world.finish(at=10)[1:] == [ran("k", 3)]


class Steps(Fifo):
    """Bids for three steps at once: three times the time of one."""

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        bid = super().bid(lane, board)
        if bid is not None and bid.priority_class == "background":
            bid.expected_ns *= 3
            bid.steps_max = 3
        return bid


def test_several_steps_count_as_long_as_they_take(monkeypatch):
    monkeypatch.setitem(POLICIES, "steps", Steps)
    assert after_a_critical_one(beside_critical(10 + 36, "steps")) == [
        ran("n", 2, 3, size=2, expected_ns=36 * MS, steps_max=3)
    ]
    assert after_a_critical_one(beside_critical(10 + 35.999, "steps")) == [
        ran("n", 2, size=1, expected_ns=30 * MS, steps_max=3)
    ]
    assert after_a_critical_one(beside_critical(10 + 29.999, "steps")) == []


# --- background work that waits too long ------------------------------------------------------------------------------


def beside_a_restless_app(policy: Any = "fifo", wait: str = "1s", count: int = 1) -> Driver:
    """Critical requests of 10 ms every 60 to 120 ms, beside background work of 30 ms that came at 20."""
    world = beside_critical(policy=policy, times={1: 30}, background={"background_wait": wait})
    world.arrive("c", at=0)
    world.finish(at=10)
    world.arrive("bg", at=20, count=count)
    for start in range(140, 4000, 100):
        at = start + (start - 40) % 300 / 5
        world.pass_time(at)
        world.arrive("c", at=at)
        while world.on_lane:
            world.finish(at=world.now_ms + (10 if world.work().model == "m" else 30))
    return world


def starts_ms(world: Driver) -> List[float]:
    return [world.given_ms[action.work_id] for action in world.seen if ran("n") == action]


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_background_work_may_delay_critical_requests_once_it_has_waited_for_as_long_as_its_app_says(policy):
    assert starts_ms(beside_a_restless_app(policy)) == [1020]
    assert starts_ms(beside_a_restless_app(policy, wait="0ms")) == []


def test_it_may_do_so_once_in_that_time():
    assert starts_ms(beside_a_restless_app(count=3)) == [1020, 2020, 3020]


def test_background_work_that_has_to_yield_keeps_no_shorter_work_of_another_policy_from_the_lane():
    """Critical requests of 10 ms have 20: 30 ms of background work have to wait, 5 ms need not, in any order."""
    times = {"m": {1: 10}, "long": {1: 30}, "short": {1: 5}}
    for first, second in (("long", "short"), ("short", "long")):
        world = Driver(
            times,
            {
                "c": {"model": "m", "slo": "20ms", "class": "critical", "policy": "p0"},
                "b0": {"model": first, "slo": "9s", "class": "background", "policy": "p0"},
                "b1": {"model": second, "slo": "9s", "class": "background", "policy": "p1"},
            },
            {"p0": {"kind": "edf"}, "p1": {"kind": "edf"}},
        )
        world.arrive("c")
        world.arrive("b0")
        world.arrive("b1")
        world.finish(at=10)
        assert [work.model for work in world.on_lane.values()] == ["short"]


class WrongSize(Fifo):
    """Bids for a batch size that the model does not have."""

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        bid = super().bid(lane, board)
        if bid is not None:
            bid.size = 3
        return bid


def test_a_wrong_size_is_an_error_of_its_policy_also_while_a_critical_request_waits(monkeypatch):
    monkeypatch.setitem(POLICIES, "wrong", WrongSize)
    world = Driver(
        {"m": {1: 10}, "lm": {1: 10, 2: 10}},
        {
            "c": {"model": "m", "slo": "9s", "class": "critical", "policy": "p0"},
            "chat": {"model": "lm", "slo": "80ms", "value": 1000.0, "policy": "p1"},
        },
        {"p0": {"kind": "edf"}, "p1": {"kind": "wrong"}},
        sequences={"lm": (100, 10, 4)},
    )
    world.arrive("c")
    world.arrive("c")
    world.arrive("chat", hints={"steps": 5, "tokens": 10})
    with pytest.raises(PolicyError, match="size"):
        world.finish(at=10)


# --- launching --------------------------------------------------------------------------------------------------------


def test_a_work_must_start_before_the_one_in_front_of_it_counts_as_hung():
    def second(at: float) -> Any:
        world = Driver({"m": {1: 10}}, {"a": {"model": "m", "slo": "5s"}}, lane={"cpu0": {"depth": 2, "hang": "1s"}})
        assert world.arrive("a", at=3)[0].start_before_ns == 1003 * MS
        (action,) = world.arrive("a", at=at)
        return action.start_before_ns

    assert second(at=8) == 1008 * MS
    assert second(at=13.5) == 1013 * MS, "the first was due at 13"
