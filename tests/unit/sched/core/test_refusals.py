"""The shortfall of a request that a policy gave up for its deadline: worked examples by hand, and who gets no
numbers."""

from __future__ import annotations

from typing import Any, Mapping

import pytest
from hand_world import MS, Driver, ended
from scenarios import product_first

from edgeserve.live.estimates import expected_of_app
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import FinishRequest, Shortfall
from edgeserve.sched.protocol.events import RequestArrived
from edgeserve.sched.published.common.edf import Edf
from edgeserve.taps.trace import step_line

ONE = {"m": {1: 12, 2: 14, 4: 18}}
CHAIN = {"a": {"node": [{"name": "first", "model": "m"}, {"name": "then", "model": "n", "after": ["first"]}]}}


def lacked(world: Driver, request_id: int) -> Any:
    """The shortfall of a request in milliseconds: lane, expected, wait, left, smallest slo."""
    found = world.ends[request_id].shortfall
    if found is None:
        return None
    return (found.lane, *[None if value is None else value / MS for value in found[1:]])


def kind(name: str, **options: Any) -> Mapping[str, Any]:
    return {name: options}


@pytest.mark.parametrize("policy", ["edf", "clockwork", "plan"])
def test_a_refusal_at_arrival_says_the_time_alone_the_wait_and_the_deadline_that_would_do(policy: str) -> None:
    world = Driver(ONE, {"a": "m"}, policy)
    world.arrive("a", slo=11)
    assert world.outcome(1) == "rejected"
    assert lacked(world, 1) == ("cpu0", 12, 0, 11, 12)
    world.arrive("a", slo=100)
    world.arrive("a", at=4, slo=15)  # the lane is free at 12: it would end at 24
    assert lacked(world, 3) == ("cpu0", 12, 8, 15, 20)
    world.arrive("a", slo=20)
    assert world.outcome(4) == ""


@pytest.mark.parametrize("policy", ["edf", "clockwork", "plan"])
def test_what_follows_in_the_pipeline_counts_as_time_alone(policy: str) -> None:
    world = Driver({**ONE, "n": {1: 30}}, CHAIN, policy)
    world.arrive("a", slo=41)
    assert lacked(world, 1) == ("cpu0", 42, 0, 41, 42)
    world.arrive("a", slo=42)
    assert world.outcome(2) == ""


def test_the_faster_lane_is_named_and_a_load_is_waited_for() -> None:
    lanes = {"lane": {"slow": {"device": "cpu"}, "fast": {"device": "cpu"}}, "device": {"cpu": {}}}
    world = Driver(ONE, {"a": "m"}, **lanes)
    world.arrive("a", slo=100)
    world.arrive("a", at=2, slo=5)
    assert lacked(world, 2) == ("fast", 12, 0, 5, 12)  # "slow", the first lane, is busy
    world = Driver(
        {"m": {1: 12, "memory": "1MB", "load": "30ms"}},
        {"a": "m"},
        resident={"cpu": []},
        device={"cpu": {"memory": "10MB"}},
    )
    world.arrive("a", slo=40)
    assert lacked(world, 1) == ("cpu0", 12, 30, 40, 42)


def test_the_deadline_counts_from_the_arrival_which_may_be_earlier_than_now() -> None:
    world = Driver(ONE, {"a": "m"})
    request = world.request("a", slo=14)
    world.arrive("a", at=0, slo=1000)
    world.step(RequestArrived(request), at=5)  # sent at 0, read at 5
    assert lacked(world, request.id) == ("cpu0", 12, 7, 9, 24)


def test_declared_steps_count() -> None:
    world = Driver(ONE, {"a": "m"})
    world.arrive("a", slo=40, hints={"steps": 4})
    assert lacked(world, 1) == ("cpu0", 48, 0, 40, 48)
    world.arrive("a", slo=48, hints={"steps": 4})
    assert world.outcome(2) == ""


def test_clockwork_counts_its_margin_and_its_careful_estimate() -> None:
    world = Driver(ONE, {"a": "m"}, kind("clockwork", margin_ms=5.0))
    world.arrive("a", slo=14)
    assert lacked(world, 1) == ("cpu0", 12, 0, 14, 17)
    world.arrive("a", slo=17)
    world.finish(at=15, took=15)  # the slowest of the last ten
    world.arrive("a", slo=19)
    assert lacked(world, 3) == ("cpu0", 15, 0, 19, 20)


@pytest.mark.parametrize("policy", ["edf", "clockwork", "plan", "nexus", "orloj"])
def test_a_drop_later_says_which_deadline_would_have_been_long_enough(policy: str) -> None:
    """The batch before takes longer than expected: the request is given up, and with the deadline that its end names it
    is not."""

    def after_a_slow_batch(slo: float) -> Driver:
        world = Driver(ONE, {"a": "m"}, policy)
        world.arrive("a", slo=100)
        world.arrive("a", at=1, slo=slo)
        assert world.outcome(2) == ""
        world.finish(at=25, took=25)
        return world

    world = after_a_slow_batch(30)
    assert world.ends[2] == ended(2, "dropped", "cannot_make_deadline")
    lane, expected, wait, left, least = lacked(world, 2)
    assert (lane, wait, left) == ("cpu0", 0, 6)
    assert least == pytest.approx(24 + expected)
    assert least > 30
    assert after_a_slow_batch(least).outcome(2) == ""
    assert after_a_slow_batch(least - 0.000001).outcome(2) == "dropped"


@pytest.mark.parametrize(("rule", "least"), [("sf", 50), ("split", 90), ("clipper++", 60)])
def test_pard_says_what_its_rule_would_need(rule: str, least: float) -> None:
    """Two modules of 10 and 20 ms on lanes of their own, shares of a third and two thirds; the first is held up until
    20. Rule ``sf`` needs the end, ``split`` 30 ms for the stay at the first, ``clipper++`` 20 ms for the wait there."""

    def held_up(slo: float) -> Driver:
        world = Driver(
            {"m": {1: 10, "lanes": ["one"]}, "n": {1: 20, "lanes": ["two"]}},
            CHAIN,
            kind("pard", rule=rule, collect="just_in_time", lead_ms=0.0),
            lane={"one": {}, "two": {}},
        )
        world.arrive("a", slo=1000)
        world.arrive("a", slo=slo)
        if not world.outcome(2):
            world.finish("one", at=20, took=20)
        return world

    short = held_up(25)
    assert short.ends[2] == ended(2, "dropped", "proactive")
    found = short.ends[2].shortfall
    assert found is not None
    assert (found.lane, found.slo_ns_min) == ("one", least * MS)
    assert held_up(least).outcome(2) == ""
    assert held_up(least - 0.000001).outcome(2) == "dropped"


def test_where_the_deadline_is_not_the_reason_there_are_no_numbers() -> None:
    class Moody(Edf):
        def on_request(self, request: Any, board: Any) -> Any:
            return "no mood"

    POLICIES["moody"] = Moody
    try:
        apps = {"a": {"model": "m", "pending_max": 1, "policy": "edf"}, "moody": {"model": "m", "policy": "moody"}}
        world = Driver(ONE, apps, {"edf": {}, "moody": {}})
    finally:
        del POLICIES["moody"]
    world.arrive("a", count=2)
    world.arrive("moody")
    world.arrive("moody", slo=5)  # and here the deadline is too short besides
    world.arrive("moody", slo=5, on_late="answer")  # though it is no reason
    assert [world.reason(number) for number in (2, 3, 4, 5)] == ["queue_full", "no mood", "no mood", "no mood"]
    assert [lacked(world, number) for number in (2, 3, 5)] == [None, None, None]
    assert lacked(world, 4) == ("cpu0", 12, 12, 5, 24)
    world.pass_time(200)
    world.drain()
    world.arrive("a")
    assert (world.reason(6), lacked(world, 6)) == ("draining", None)


def test_without_a_lane_and_for_late_answers_there_are_no_numbers() -> None:
    world = Driver(ONE, {"a": "m"})
    world.arrive("a", slo=5, on_late="answer")
    world.lane("cpu0", up=False)
    world.arrive("a", slo=50)
    assert (world.reason(2), lacked(world, 2)) == ("no_lane", None)
    assert all(end.shortfall is None for end in world.ends.values())


def test_a_request_answered_in_part_has_numbers_only_when_it_ends() -> None:
    nodes = [
        {"name": "quick", "model": "m", "after": []},
        {"name": "slow", "model": "n", "after": []},
        {"name": "end", "model": "m", "after": ["quick", "slow"], "join": 1},
    ]
    world = Driver({"m": {1: 5}, "n": {1: 40}}, {"a": {"node": nodes, "on_late": "partial"}}, {"edf": {"admit": False}})
    world.arrive("a", slo=30)
    world.finish(at=5)
    world.finish(at=10)
    assert world.ends[1].outcome == "completed"
    assert world.ends[1].shortfall is None
    world.arrive("a", at=20, slo=9)  # "quick" needs 10 with the end, "slow" 45: neither branch is left
    assert world.ends[2] == ended(2, "dropped", "cannot_make_deadline")
    assert world.ends[2].shortfall is not None


def test_the_text_rounds_the_deadline_that_would_do_up() -> None:
    assert str(Shortfall("cpu0", 53 * MS, 14 * MS, 33 * MS, 70 * MS)) == (
        "expected 53ms on cpu0 and 14ms of waiting, 33ms left: 70ms would do"
    )
    assert str(Shortfall("cpu0", 53 * MS, 0, -MS, 70_010_000)) == "expected 53ms on cpu0, nothing left: 70.1ms would do"


def test_the_numbers_stand_in_the_story_and_are_no_part_of_the_decision() -> None:
    world = Driver(ONE, {"a": "m"})
    world.arrive("a", slo=11)
    assert any("12ms would do" in line for line in world.scheduler.story(1))
    end = world.ends[1]
    assert end.shortfall is not None
    assert end == FinishRequest(1, "rejected", "cannot_make_deadline")
    assert step_line(0, (), (end,)) == step_line(0, (), (FinishRequest(1, "rejected", "cannot_make_deadline"),))


@pytest.mark.parametrize("policy", product_first(sorted(POLICIES)))
def test_every_policy_says_what_a_request_takes_before_the_first_came_and_is_not_changed_by_that(policy: str) -> None:
    def run(asked: bool) -> list[Any]:
        world = Driver({**ONE, "n": {1: 30}}, CHAIN, policy)
        state = world.scheduler.state
        if asked:
            found = expected_of_app(state, state.apps["a"], by_policy=True)
            assert found is not None
            assert (found.lane, found.wait_ns, found.alone_ns, found.deadline_ns_min) == ("cpu0", 0, 42 * MS, 42 * MS)
        world.arrive("a", count=3, slo=150)
        while world.on_lane:
            world.finish(at=world.now_ms + 31)
        return world.seen

    assert run(asked=True) == run(asked=False)


# --- a deadline that would do is a promise ----------------------------------------------------------------------------


def test_the_deadline_that_would_do_counts_what_waits_and_is_due_earlier() -> None:
    world = Driver({"m": {1: 3, 2: 4}, "n": {1: 20}}, {"a": "m", "b": "n"})
    world.arrive("b", slo=500)
    world.arrive("a", count=4, slo=35)
    world.arrive("a", count=4, slo=600)
    world.arrive("b", slo=30)
    # the lane is free at 20; two batches of 4 ms are due before 40, with a quarter more: 10 ms; then 20 alone
    assert lacked(world, 10) == ("cpu0", 20, 20, 30, 50)


def test_what_waits_counts_with_the_stages_behind_it() -> None:
    def least(app: Any) -> float:
        world = Driver({**ONE, "n": {1: 30}, "k": {1: 200}}, {"ask": app, "other": "k"})
        world.arrive("ask", slo=2000)
        world.arrive("ask", count=2, at=1, slo=150)
        world.arrive("other", slo=5)
        return float(lacked(world, 4)[-1])

    assert least(CHAIN["a"]) >= least("m") + 2 * 30


@pytest.mark.parametrize(("on_x", "on_y", "least"), [(1, 1, 34), (1, 3, 44), (3, 1, 44), (3, 3, 44), (3, 5, 54)])
def test_what_waits_for_a_later_stage_on_another_lane_counts_where_it_is_longer(on_x, on_y, least) -> None:
    """10 ms on x, then 20 on y; of others of 4 ms one runs on each, the waiting ones are due before it."""
    models = {"m": {1: 10, "lanes": ["x"]}, "n": {1: 20, "lanes": ["y"]}}
    models.update({"o": {1: 4, "lanes": ["x"]}, "p": {1: 4, "lanes": ["y"]}})
    world = Driver(models, {"a": CHAIN["a"], "b": "o", "c": "p"}, lane={"x": {}, "y": {}})
    for app, count in (("b", on_x), ("c", on_y)):
        world.arrive(app, count=count, slo=33)
    world.arrive("a", slo=29)
    assert lacked(world, 1 + on_x + on_y)[-1] == least


def test_of_two_jobs_at_once_the_one_that_ends_last_counts_with_its_wait() -> None:
    fork = {"node": [{"name": name, "model": name, "after": []} for name in ("m", "n")]}
    models = {"m": {1: 5, "lanes": ["x"]}, "n": {1: 12, "lanes": ["y"]}, "o": {1: 10, "lanes": ["x"]}}
    world = Driver(models, {"a": fork, "b": "o"}, lane={"x": {}, "y": {}})
    world.arrive("b", slo=500)
    world.arrive("a", slo=4)
    assert lacked(world, 2) == ("x", 5, 10, 4, 15)


def test_classes_below_do_not_stand_before_it() -> None:
    world = Driver({"m": {1: 12, 2: 14}}, {"a": "m"})
    world.arrive("a", slo=500)
    world.arrive("a", count=2, slo=30)
    world.arrive("a", count=4, slo=24, priority_class="background")
    world.arrive("a", slo=20, priority_class="critical")
    assert lacked(world, 8) == ("cpu0", 12, 12, 20, 24)


def test_answers_that_wait_count_with_all_of_their_steps() -> None:
    """A step of up to four answers takes 10 ms, and all slots are taken."""

    def least(waiting: int) -> float:
        world = Driver(
            {"lm": {1: 10, 2: 10, 4: 10}, "m": {1: 12}},
            {"chat": {"model": "lm", "slo": "10ms", "on_late": "answer"}, "voice": {"model": "m", "slo": "1s"}},
            sequences={"lm": (100, 10, 2)},
        )
        world.arrive("chat", count=2, hints={"steps": 20, "tokens": 10})
        world.arrive("chat", count=waiting, hints={"steps": 8, "tokens": 10})
        world.arrive("voice", slo=5)
        return float(lacked(world, 3 + waiting)[-1])

    assert least(4) >= least(0) + 80


def rank_of(world: Driver, request_id: int) -> float:
    return world.scheduler.state.requests[request_id].rank


def test_who_comes_back_with_it_is_ranked_above_its_equals_once() -> None:
    world = Driver({"m": {1: 12, 2: 14}}, {"a": "m"})
    world.arrive("a", slo=500)
    world.arrive("a", slo=20, client="x")
    _, _, _, _, least = lacked(world, 2)
    world.arrive("a", slo=least, client="y")  # it was not refused
    world.arrive("a", slo=least, client="x")
    world.arrive("a", slo=least, client="x")
    assert [rank_of(world, number) for number in (3, 4, 5)] == [1.0, 8.0, 1.0]
    assert "it was promised" in "".join(world.scheduler.story(4))


@pytest.mark.parametrize(
    ("slo", "later", "ranked"), [(1.0, 0, True), (1.1, 0, True), (1.2, 0, False), (0.9, 0, False), (1.0, 6000, False)]
)
def test_a_promise_is_for_its_deadline_and_for_five_seconds(slo: float, later: float, ranked: bool) -> None:
    world = Driver({"m": {1: 12, 2: 14}}, {"a": "m"})
    world.arrive("a", slo=11)
    assert lacked(world, 1)[4] == 12
    world.arrive("a", slo=100, at=later)  # so that a deadline that is too short is not refused, the first does not wait
    world.finish(at=later + 12)
    world.arrive("a", slo=12 * slo)
    if 12 * slo >= 12:
        assert (rank_of(world, 3) == 8.0) is ranked
    else:
        assert world.outcome(3) == "rejected"
