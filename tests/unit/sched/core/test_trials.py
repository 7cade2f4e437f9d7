"""Trials: what a policy gives up because of an estimate is measured where a lane idles, so that no wrong estimate
refuses for good."""

from __future__ import annotations

from typing import Callable, List, Tuple

import pytest
from hand_world import Driver, ended, ran

POLICIES = [
    "edf",
    "clockwork",
    "nexus",
    "orloj",
    "plan",
    "pard",
    "pard+",
    "rtlm",
    "schemble",
    "ensemble_static",
]
EVERY = [*POLICIES, "fifo", "clipper"]  # these two never refuse what an estimate says is too slow


def camera(policy: str, expected: float = 12, slo: float = 33, **sections: object) -> Driver:
    return Driver({"m": {1: expected}}, {"a": {"model": "m", "slo": f"{slo}ms"}}, policy, trials=True, **sections)


def serve(
    world: Driver, requests: int, took_ms: Callable[[int], float], every_ms: float = 1000 / 30, app: str = "a"
) -> Tuple[int, int]:
    """One request each ``every_ms``; the nth batch takes ``took_ms(n)``. How many were refused or dropped, how many
    answered in time."""
    arrivals = [round(number * every_ms, 3) for number in range(requests)]
    ran_count = 0
    ends_ms: List[float] = []
    while arrivals or ends_ms or world.wake_ms is not None:
        times = ([arrivals[0]] if arrivals else []) + ends_ms + ([world.wake_ms] if world.wake_ms is not None else [])
        now = min(times)
        if ends_ms and ends_ms[0] <= now:
            ends_ms.pop()
            done = world.finish(at=now)
        elif arrivals and arrivals[0] <= now:
            arrivals.pop(0)
            done = world.arrive(app, at=now)
        else:
            done = world.step(at=now)
        for action in done:
            if ran("m") == action:
                ends_ms.append(round(now + took_ms(ran_count), 3))
                ran_count += 1
    outcomes = [end.outcome for end in world.ends.values()]
    return len([what for what in outcomes if what in ("rejected", "dropped")]), outcomes.count("completed")


@pytest.mark.worlds
@pytest.mark.parametrize("policy", EVERY)
def test_four_slow_runs_in_a_row_refuse_no_more_than_six_of_the_610_that_follow(policy):
    world = camera(policy)
    slow_until_ms: List[float] = []

    def took_ms(number: int) -> float:
        if 20 <= number < 24:
            slow_until_ms.append(world.now_ms + 40)
            return 40
        return 12

    serve(world, 640, took_ms)
    refused = [
        id
        for id, end in world.ends.items()
        if end.outcome in ("rejected", "dropped") and (id - 1) * 1000 / 30 > slow_until_ms[-1]
    ]
    assert len(refused) <= 6


@pytest.mark.worlds
@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("expected", [40, 400])
def test_a_wrong_expected_time_refuses_two_requests_at_most(policy, expected):
    refused, completed = serve(camera(policy, expected=expected), 1200, lambda number: 12)
    assert refused <= 2
    assert completed >= 1198


@pytest.mark.parametrize("policy", EVERY)
def test_one_outlier_at_a_low_rate_refuses_nothing(policy):
    refused, _ = serve(camera(policy), 20, lambda number: 60 if number == 3 else 12, every_ms=10_000)
    assert refused == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_what_really_is_too_slow_is_refused_but_for_a_trial_a_second(policy):
    refused, completed = serve(camera(policy, expected=40), 1200, lambda number: 40)
    assert refused >= 1155
    assert 38 <= completed <= 42  # in 40 s


@pytest.mark.worlds
@pytest.mark.parametrize("policy", EVERY)
def test_it_is_served_again_within_two_seconds_after_it_was_slow_for_long(policy):
    world = camera(policy)
    serve_slow_ms = 20_000
    slow_until = [serve_slow_ms]
    refused, _ = serve(world, 900, lambda number: 50 if world.now_ms < slow_until[0] else 12)
    late_refusals = [
        id
        for id, end in world.ends.items()
        if end.outcome in ("rejected", "dropped") and (id - 1) * 1000 / 30 > serve_slow_ms + 2000
    ]
    assert refused > 150  # it was slow
    assert late_refusals == []


def test_the_story_says_why():
    world = camera("edf", expected=40)
    assert world.arrive("a") == [ran("m", 1)]
    story = "\n".join(world.scheduler.story(1))
    assert "given up by its policy: cannot_make_deadline - run as a trial" in story


def test_a_deadline_that_no_run_could_make_is_refused():
    world = camera("edf")
    world.arrive("a")
    world.finish(at=12)
    assert world.arrive("a", at=20, slo=5) == [ended(2, "rejected", "cannot_make_deadline")]


def test_without_trials_it_refuses_until_its_measurements_are_old():
    world = camera({"edf": {"trials": False}})
    assert world.arrive("a") == [ran("m", 1)]
    world.finish(at=40)
    assert world.arrive("a", at=9999) == [ended(2, "rejected", "cannot_make_deadline")]
    assert world.arrive("a", at=11_050) == [ran("m", 3)]


def test_a_trial_waits_while_the_lane_works_for_others_and_ends_at_its_deadline():
    world = Driver({"m": {1: 40}, "n": {1: 30}}, {"a": {"model": "m", "slo": "33ms"}, "b": {"model": "n"}}, trials=True)
    assert world.arrive("b") == [ran("n", 1)]
    assert world.arrive("a", at=1) == []  # never measured: it may wait for the lane
    assert world.finish(at=30) == [ended(1, "completed"), ran("m", 2)]
    world.finish(at=33)
    assert world.outcome(2) == "completed"
    assert world.arrive("a", at=50) == [ran("m", 3)]  # believed now


@pytest.mark.parametrize(
    ("believed", "tried"), [([33.1], True), ([33], False), ([20], False), ([20, 13.1], True), ([20, 13], False)]
)
def test_a_request_for_a_busy_lane_is_a_trial_only_where_it_was_believed_too_slow_alone(believed, tried):
    nodes = [f"m{place}" for place in range(len(believed))]
    world = Driver(
        {"n": {1: 30}, **{model: {1: took} for model, took in zip(nodes, believed)}},
        {"a": {"slo": "33ms", "node": [{"name": model} for model in nodes]}, "b": "n"},
        trials=True,
    )
    world.arrive("b", at=1000)
    world.arrive("a")
    assert world.outcome(2) == ("" if tried else "rejected")


@pytest.mark.parametrize(("ago", "tried"), [(999, False), (1000, True)])
def test_a_request_for_a_busy_lane_is_a_trial_only_where_its_model_was_not_measured_lately(ago, tried):
    world = Driver({"m": {1: 12}, "n": {1: 30}}, {"a": {"model": "m", "slo": "33ms"}, "b": "n"}, trials=True)
    for took in (12, 60, 60):
        world.arrive("a")
        world.finish(at=world.now_ms + took)
    world.arrive("b", at=world.now_ms + ago)
    world.arrive("a")
    assert world.outcome(5) == ("" if tried else "rejected")


def test_trials_that_would_make_others_late_are_one_in_sixteen_times_what_the_last_one_took():
    world = Driver(
        {"m": {1: 40}, "n": {1: 4}},
        {"a": {"model": "m", "slo": "33ms"}, "b": {"model": "n", "slo": "15ms"}},
        trials=True,
    )
    assert world.arrive("a") == [ran("m", 1)]
    world.finish(at=12)
    assert "trial" in "\n".join(world.scheduler.story(1))
    for slow in (2, 3):
        assert world.arrive("a") == [ran("m", slow)]
        world.finish(at=world.now_ms + 60)
    world.arrive("b")
    world.finish(at=world.now_ms + 4)
    assert world.arrive("a", at=16 * 12 - 1) == [ended(5, "rejected")]
    assert world.arrive("a", at=16 * 12) == [ran("m", 6)]


def test_a_trial_runs_alone_also_where_a_lane_takes_works_ahead():
    world = Driver(
        {"m": {1: 40}, "n": {1: 30}},
        {"a": {"model": "m", "slo": "33ms"}, "b": {"model": "n"}},
        trials=True,
        lane={"cpu0": {"depth": 2}},
    )
    assert world.arrive("b") == [ran("n", 1)]
    assert world.arrive("a", at=1) == [], "a second work would be taken"
    assert world.finish(at=30) == [ended(1, "completed"), ran("m", 2)]


def test_no_trial_goes_before_a_request_that_would_be_late_behind_it():
    world = Driver(
        {"m": {1: 40}, "n": {1: 30}},
        {"a": {"model": "m", "slo": "33ms"}, "b": {"model": "n", "slo": "65ms"}},
        trials=True,
    )
    world.arrive("b")
    world.arrive("a", at=1)
    world.arrive("b", at=2)
    assert world.finish(at=30) == [ended(1, "completed"), ran("n", 3)]


def test_no_trial_starts_where_a_critical_request_could_need_the_lane():
    world = Driver(
        {"m": {1: 40}, "n": {1: 4}},
        {"a": {"model": "m", "slo": "33ms"}, "loop": {"model": "n", "slo": "20ms", "class": "critical"}},
        trials=True,
    )
    world.arrive("loop")
    world.finish(at=4)
    assert world.arrive("a", at=5) == []
    assert world.outcome(2) == ""


def test_a_pipeline_heals_whichever_node_is_believed_too_slow():
    world = Driver(
        {"m": {1: 5}, "n": {1: 500}},
        {"a": {"node": [{"name": "x", "model": "m"}, {"name": "y", "model": "n", "after": ["x"]}]}},
        trials=True,
    )
    assert world.arrive("a") == [ran("m", 1)]
    assert world.finish(at=5) == [ran("n", 1)]
    assert world.finish(at=12) == [ended(1, "completed")]
    world.arrive("a", at=150)
    assert "trial" not in "\n".join(world.scheduler.story(2))


def test_a_trial_makes_a_model_wanted_that_is_not_in_memory():
    world = Driver(
        {"m": {1: 5, "memory": "60MB", "load": "200ms"}, "n": {1: 5, "memory": "60MB"}},
        {"a": {"model": "m"}, "b": {"model": "n"}},
        device={"cpu": {"memory": "100MB"}},
        lane={"cpu0": {"device": "cpu"}},
        resident={"cpu": ["n"]},
        trials=True,
    )
    actions = world.arrive("a")
    assert [type(action).__name__ for action in actions] == ["EvictModel", "LoadModel"]


def after_waiting(waited: float, **events: bool) -> Driver:
    """Request 2 has 48 ms of which it needs 42.5 alone; the lane works for another until it has waited so long."""
    world = Driver(
        {"m": {1: 42.5}, "n": {1: 6}},
        {"a": {"model": "m", "slo": "48ms"}, "b": {"model": "n", "slo": "99ms"}},
        trials=True,
    )
    world.arrive("b")
    assert world.arrive("a", at=2, slo=48) == []
    if events.get("drains"):
        world.drain()
    world.finish(at=2 + waited)
    return world


def test_who_has_waited_for_more_than_an_eighth_of_its_time_is_given_up_because_of_the_load():
    assert ran("m", 2) == after_waiting(6).actions[-1]
    assert after_waiting(6.000001).ends[2] == ended(2, "dropped", "cannot_make_deadline")


def test_there_are_no_trials_while_the_server_drains():
    assert after_waiting(6, drains=True).ends[2] == ended(2, "dropped", "cannot_make_deadline")
