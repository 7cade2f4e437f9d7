"""Trials: what a policy gives up because of an estimate is measured where a lane idles, so that no wrong estimate
refuses for good."""

from __future__ import annotations

from typing import Callable, List, Tuple

import pytest
from hand_world import MS, Driver, ended, ran

from edgeserve.sched.policies import POLICIES as KINDS
from edgeserve.sched.policies.edf import Edf

POLICIES = [
    "edf",
    "clockwork",
    "nexus",
    "orloj",
    "orloj+",
    "pard",
    "pard+",
    "pard_local",
    "rtlm",
    "rtlm+",
    "schemble",
    "schemble+",
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


def test_what_the_last_second_confirms_is_not_tried_again():
    world = camera("edf", expected=40)
    assert world.arrive("a") == [ran("m", 1)]
    world.finish(at=40)
    assert world.arrive("a", at=41) == [ended(2, "rejected", "cannot_make_deadline")]
    assert world.arrive("a", at=1040) == [ended(3, "rejected", "cannot_make_deadline")]
    assert world.arrive("a", at=1041) == [ran("m", 4)]


def test_one_fast_run_of_the_last_ten_is_enough_to_try_again():
    world = camera("edf")
    for number, took in enumerate([12, 40, 40, 40, 40]):
        assert world.arrive("a", at=100 * number) == [ran("m", number + 1)]
        world.finish(at=100 * number + took)
    assert "run as a trial" in "\n".join(world.scheduler.story(5))


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


def test_trials_that_others_would_be_late_behind_are_rare():
    world = Driver(
        {"m": {1: 100}, "n": {1: 4}},
        {"a": {"model": "m", "slo": "50ms"}, "b": {"model": "n", "slo": "20ms"}},
        trials=True,
    )
    world.arrive("b")
    world.finish(at=4)
    assert world.arrive("a", at=5) == [ran("m", 2)]
    world.finish(at=105)
    for at in range(600, 1600, 100):
        world.arrive("b", at=at)
        world.finish(at=at + 4)
        assert world.arrive("a", at=at + 5)[0] == ended(world._last_id, "rejected")
    world.arrive("b", at=1600)
    world.finish(at=1604)
    assert world.arrive("a", at=1605) == [ran("m", world._last_id)]  # 16 times 100 ms after the last


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


def test_the_time_in_which_it_ran_is_no_waiting():
    nodes = [{"name": "x", "model": "m"}, {"name": "y", "model": "n", "after": ["x"]}]
    world = Driver({"m": {1: 5}, "n": {1: 60}}, {"a": {"node": nodes, "slo": "70ms"}}, trials=True)
    assert world.arrive("a") == [ran("m", 1)]
    assert world.finish(at=30) == [ran("n", 1)], "believed to end at 90: nobody knows what y takes"
    assert "run as a trial" in "\n".join(world.scheduler.story(1))


def test_one_request_of_an_app_is_a_trial_on_a_lane_at_a_time_and_figures_count_them():
    world = Driver({"m": {1: 40}}, {name: {"model": "m", "slo": "33ms"} for name in ("a", "b", "c")}, trials=True)
    assert world.arrive("a", count=2) == [ended(2, "rejected"), ran("m", 1)]
    assert world.scheduler.trials() == {"a": {"tried": 1, "in_time": 0}}
    world.finish(at=45)
    assert world.arrive("b", at=2000) == [ran("m", 3)]
    world.finish(at=2012)
    assert world.scheduler.trials() == {"a": {"tried": 1, "in_time": 0}, "b": {"tried": 1, "in_time": 1}}


def test_what_a_request_says_of_itself_is_confirmed_for_as_long_as_measurements_count():
    world = camera("edf", expected=40)
    assert world.arrive("a") == [ran("m", 1)]
    world.finish(at=40)
    for at, tried in ((1041, False), (10_040, False), (10_041, True)):
        world.arrive("a", at=at, hints={"work": 1})
        assert (ran("m") in world.actions) == tried, at


def test_only_apps_that_had_a_request_in_the_last_second_and_would_be_late_count():
    def goes(at: float, slo: float = 50) -> bool:
        world = Driver(
            {"m": {1: 100}, "n": {1: 4}},
            {"a": {"model": "m", "slo": "50ms"}, "b": {"model": "n", "slo": f"{slo}ms"}},
            trials=True,
        )
        world.arrive("a")
        world.finish(at=100)
        world.arrive("b", at=200)
        world.finish(at=204)
        return world.arrive("a", at=at) == [ran("m", 3)]

    assert not goes(at=1200)
    assert goes(at=1201)
    assert goes(at=1200, slo=104), "100 of the trial and 4 alone"
    assert not goes(at=1200, slo=103.999)


def test_what_the_last_trial_took_if_that_was_in_time_says_how_rare_the_next_ones_are():
    def second_at(took: float) -> float:
        world = Driver(
            {"m": {1: 100}, "n": {1: 4}},
            {"a": {"model": "m", "slo": "50ms"}, "b": {"model": "n", "slo": "20ms"}},
            trials=True,
        )
        world.arrive("a")
        world.finish(at=took)
        latency = world.scheduler.state.latency["m", "cpu0"]
        for number in range(10):  # slow since, but for one of the last ten
            latency.observe(round(world.now_ms * MS) + number, 1, (20 if number == 5 else 60) * MS)
        for at in range(100, 3000, 20):
            world.arrive("b", at=at)
            world.finish(at=at + 4)
            if ran("m") in world.arrive("a", at=at + 5):
                return at + 5
        return -1

    assert second_at(took=40) == 16 * 40 + 5, "640 after the first, at 0"
    assert second_at(took=51) == 16 * 60 + 5, "late: what it is believed to take"


def beside_another(expected: float = 40, slo: float = 33, other_slo: float = 100) -> Driver:
    """``a`` is believed to take too long; ``b`` takes 30 ms on the same lane."""
    return Driver(
        {"m": {1: expected}, "n": {1: 30}},
        {"a": {"model": "m", "slo": f"{slo}ms"}, "b": {"model": "n", "slo": f"{other_slo}ms"}},
        trials=True,
    )


def measured(world: Driver, at: float, *took_ms: float) -> None:
    for took in took_ms:
        world.scheduler.state.latency["m", "cpu0"].observe(round(at * MS), 1, round(took * MS))


@pytest.mark.parametrize(("at", "waits"), [(999.999, False), (1000, True)])
def test_what_was_not_measured_for_a_second_may_wait_for_a_busy_lane(at, waits):
    world = beside_another()
    measured(world, 0, 20, 50, 50, 50)
    world.arrive("b", at=980)
    assert world.arrive("a", at=at) == ([] if waits else [ended(2, "rejected", "cannot_make_deadline")])
    assert (ran("m", 2) in world.finish(at=1010)) == waits


def test_what_would_be_in_time_alone_does_not_wait_for_a_busy_lane():
    world = beside_another(expected=33)
    world.arrive("b")
    assert world.arrive("a", at=1) == [ended(2, "rejected", "cannot_make_deadline")]


@pytest.mark.parametrize(("measured_at", "first"), [(None, "m"), (30, "m"), (30.001, "n")])
def test_a_trial_goes_before_a_batch_that_can_wait_unless_its_model_was_measured_in_the_last_second(measured_at, first):
    world = beside_another()
    world.arrive("b", at=1000)
    assert world.arrive("a", at=1001) == []
    world.arrive("b", at=1002)
    if measured_at is not None:
        measured(world, measured_at, 40)
    assert ran(first) == world.finish(at=1030)[-1]


def test_a_run_that_would_just_have_been_in_time_confirms_nothing():
    world = camera("edf")
    measured(world, 0, 33, 50, 50, 50)
    assert world.arrive("a", at=100) == [ran("m", 1)]
    assert "run as a trial" in "\n".join(world.scheduler.story(1))
    slower = camera("edf")
    measured(slower, 0, 33.001, 50, 50, 50)
    assert slower.arrive("a", at=100) == [ended(1, "rejected")]


@pytest.mark.parametrize("policy", ["edf", "clockwork", "pard_local"])
def test_after_one_trial_in_time_the_app_is_believed(policy):
    world = camera(policy, expected=40)
    assert world.arrive("a", at=1000) == [ran("m", 1)]
    world.finish(at=1012)
    assert world.arrive("a", at=1100) == [ran("m", 2)]
    assert "trial" not in "\n".join(world.scheduler.story(2))


def test_a_policy_is_told_what_its_trials_took_unless_they_failed(monkeypatch):
    told = []

    class Told(Edf):
        def on_trial(self, job, work, took_ns, board):
            told.append((job.id.request_id, took_ns / MS))

    monkeypatch.setitem(KINDS, "told", Told)
    world = camera("told", expected=40)
    world.arrive("a", at=1000)
    world.finish(at=1045, took=44)
    world.arrive("a", at=9000)
    world.finish(at=9012, status="failed")
    assert told == [(1, 44.0)]


@pytest.mark.parametrize("gone", ["down", "hung"])
def test_no_trial_waits_for_a_lane_that_is_gone(gone):
    """``two`` works for another, and what it takes there was measured just now; nothing was measured on ``one``."""
    world = Driver(
        {"m": {1: 40}, "n": {1: 30}},
        {"a": {"model": "m", "slo": "33ms"}, "b": "n"},
        trials=True,
        lane={"one": {"hang": "100ms"}, "two": {}},
    )
    assert world.arrive("b") == [ran("n", 1, lane="one")]
    if gone == "down":
        world.lane("one", up=False, at=1)
    world.pass_time(131)
    assert world.arrive("b", at=150) == [ran("n", 2, lane="two")]
    for took in (20, 50, 50, 50):
        world.scheduler.state.latency["m", "two"].observe(150 * MS, 1, took * MS)
    assert world.arrive("a", at=151) == [ended(3, "rejected", "cannot_make_deadline")]


def test_what_is_refused_for_another_reason_is_no_trial(monkeypatch):
    class Moody(Edf):
        def on_request(self, request, board):
            return "no mood"

    monkeypatch.setitem(KINDS, "moody", Moody)
    assert camera("moody").arrive("a") == [ended(1, "rejected", "no mood")]


@pytest.mark.parametrize(("first", "second", "trials"), [(["one"], ["one", "two"], 1), (["one", "two"], ["one"], 2)])
def test_an_app_has_as_many_trials_at_once_as_its_first_node_has_lanes(first, second, trials):
    nodes = [
        {"name": "x", "model": "m", "after": []},
        {"name": "y", "model": "n", "after": []},
        {"name": "z", "model": "n", "after": ["x", "y"]},
    ]
    world = Driver(
        {"m": {1: 40, "lanes": first}, "n": {1: 5, "lanes": second}},
        {"a": {"node": nodes, "slo": "33ms"}},
        trials=True,
        lane={"one": {}, "two": {}},
    )
    world.arrive("a", count=3)
    assert world.scheduler.trials()["a"]["tried"] == trials


def test_a_request_that_has_no_time_left_as_it_arrives_is_no_trial():
    world = camera("edf", expected=40)
    assert world.arrive("a", slo=0) == [ended(1, "rejected", "expired")]
    assert world.scheduler.trials() == {}
