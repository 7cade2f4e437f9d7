"""Models share a memory that is too small for all: the models of the most requested apps stay."""

from __future__ import annotations

from collections import Counter

import pytest
from scenarios import scenario_of

from edgeserve.sim.run import simulate

POLICIES = ("edf", "fifo", "clockwork", "plan")
POOL = "220MB"  # two of the models


def model(ms, load="100ms"):
    return {1: ms, "memory": "100MB", "load": load}


def app(name, slo, **keys):
    return {"model": name, "slo": slo, **keys}


def served(apps, rates, models, policy="edf", memory=POOL, seconds=20, seed=1, lanes=None):
    """Percent in time by app, and how often each model was loaded."""
    loads, devices = Counter(), memory if isinstance(memory, dict) else {"cpu": memory}
    scenario = scenario_of(
        models,
        apps,
        {name: {"rate": rate} for name, rate in rates.items()},
        policy,
        seconds=seconds,
        run={"noise": 0.02},
        device={name: {"memory": size} for name, size in devices.items()},
        lane=lanes or {"main": {}},
    )

    def step(_, __, actions):
        loads.update(action.model for action in actions if type(action).__name__ == "LoadModel")

    ended = simulate(scenario, seed, (), on_step=step).world.ended
    percent = {}
    for name in apps:
        mine = [item for item in ended if item.request.app == name]
        in_time = [item.outcome == "completed" and item.end_ns <= item.request.deadline_ns for item in mine]
        percent[name] = 100 * sum(in_time) / len(in_time)
    return percent, loads


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_asked_for_all_the_time_does_not_make_room_for_what_is_rare(policy):
    apps = {
        "hot": {"slo": "60ms", "node": [{"name": "a", "model": "a"}, {"name": "b", "model": "b"}]},
        "rare": app("rare", "400ms"),
    }
    models = {"a": model(4), "b": model(4), "rare": model(10)}
    percent, loads = served(apps, {"hot": 40, "rare": 0.5}, models, policy)
    assert percent["hot"] > 90
    assert loads["a"] + loads["b"] <= 4


def test_under_overload_what_could_wait_for_a_load_on_a_free_lane_makes_no_room():
    apps = {
        "hot": {"slo": "200ms", "node": [{"name": "a", "model": "a"}, {"name": "b", "model": "b"}]},
        "left": app("left", "300ms"),
        "right": app("right", "400ms"),
    }
    models = {"a": model(4, "40ms"), "b": model(4, "40ms"), "left": model(7, "60ms"), "right": model(7, "60ms")}
    percent, _ = served(apps, {"hot": 160, "left": 8, "right": 8}, models, seconds=3)
    assert percent["hot"] > 50  # a third where each load seems to cost nothing


@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_whose_requests_are_refused_since_it_is_not_there_is_loaded_all_the_same(policy):
    apps = {"old": app("old", "5s"), "older": app("older", "5s"), "hot": app("hot", "50ms")}
    models = {"old": model(5), "older": model(5), "hot": model(5)}  # the first two are resident at the start
    percent, loads = served(apps, {"old": 0.5, "older": 0.5, "hot": 40}, models, policy)
    assert loads["hot"] >= 1
    assert percent["hot"] > 85


def test_a_critical_model_that_cannot_be_loaded_in_time_stays():
    apps = {
        "stop": app("stop", "50ms", **{"class": "critical"}),
        "left": app("left", "60ms"),
        "right": app("right", "60ms"),
    }
    models = {"stop": model(5), "left": model(5), "right": model(5)}
    percent, loads = served(apps, {"stop": 2, "left": 30, "right": 30}, models)
    assert percent["stop"] > 90
    assert loads["stop"] <= 1  # it may go before its first request, and then never


def test_what_can_wait_for_its_model_shares_the_memory():
    apps = {name: app(name, "3s") for name in ("a", "b", "c")}
    percent, _ = served(apps, {"a": 8, "b": 8, "c": 8}, {name: model(5) for name in apps})
    assert min(percent.values()) > 90


def test_of_equal_models_that_cannot_wait_some_are_served_and_no_load_follows_another_for_ever():
    apps = {name: app(name, "50ms") for name in ("a", "b", "c", "d")}
    percent, loads = served(apps, dict.fromkeys(apps, 15), {name: model(5) for name in apps})
    assert sum(percent.values()) > 150  # two of four
    assert sum(loads.values()) < 40


@pytest.mark.parametrize("seed", range(4))
def test_value_decides_between_apps_that_cannot_wait(seed):
    apps = {"dear": app("dear", "50ms", value=5.0), "left": app("left", "50ms"), "right": app("right", "50ms")}
    models = {"left": model(5), "right": model(5), "dear": model(5)}
    percent, _ = served(apps, {"dear": 10, "left": 20, "right": 20}, models, seed=seed)
    assert percent["dear"] > 85


def test_what_can_wait_for_its_model_makes_room_for_what_is_rare():
    apps = {"left": app("left", "1s"), "right": app("right", "1s"), "rare": app("rare", "400ms")}
    models = {"left": model(4), "right": model(4), "rare": model(10)}
    percent, _ = served(apps, {"left": 40, "right": 40, "rare": 1}, models)
    assert min(percent.values()) > 95


@pytest.mark.parametrize("policy", POLICIES)
def test_what_must_be_answered_is_answered_however_much_is_asked_of_others(policy):
    apps = {"hot": app("hot", "40ms"), "rare": app("rare", "300ms", on_late="answer", value=0.001)}
    models = {"hot": model(4), "rare": model(10)}
    _, loads = served(apps, {"hot": 40, "rare": 0.5}, models, policy, memory="120MB")  # (the simulator ends: all ended)
    assert loads["rare"] >= 1


def test_a_pipeline_over_two_devices_is_whole_with_the_part_that_lives_here():
    models = {"a": model(4), "b": model(4), "rare": model(10), "host": {**model(1), "lanes": ["host"]}}
    nodes = [{"name": name, "model": name} for name in ("host", "a", "b")]
    apps = {"hot": {"slo": "60ms", "node": nodes}, "rare": app("rare", "400ms", value=8.0)}
    lanes = {"main": {"device": "gpu"}, "host": {"device": "cpu"}}
    for name in ("a", "b", "rare"):
        models[name]["lanes"] = ["main"]
    percent, _ = served(apps, {"hot": 40, "rare": 0.5}, models, memory={"gpu": POOL, "cpu": "1GB"}, lanes=lanes)
    assert percent["hot"] > 90


def test_an_ensemble_gets_its_fast_member_back_where_memory_has_room_for_two_of_three():
    """Its slow members were worth its whole rate while the fast one was away, so that nothing ever made room for it."""
    names, times = ["fast", "slow", "slower"], (40, 75, 85)
    models = {name: model(ms, "60ms") for name, ms in zip(names, times)}
    agreement = [[0.0, 0.87, 0.91, 0.93, 0.92, 0.96, 0.95, 1.0]]
    nodes = [*[{"name": name, "after": []} for name in names], {"name": "vote", "after": names, "join": "policy"}]
    ask = {"slo": "300ms", "on_late": "partial", "node": nodes}
    ask["ensemble"] = {"models": names, "edges": [], "agreement": agreement}
    models["vote"] = {1: 0.1, "memory": "1MB", "lanes": ["side"]}
    lanes = {"main": {}, "side": {}}
    percent, _ = served({"ask": ask}, {"ask": 9}, models, "plan", "210MB", seed=2, lanes=lanes)
    assert percent["ask"] > 95
