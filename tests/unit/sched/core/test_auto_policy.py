"""An app that names no policy gets the right one by what it is."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.config.profiles import LaneProfile, Profile
from edgeserve.errors import ConfigError
from edgeserve.sched.core.build import build_scheduler, policies_of
from edgeserve.sched.latency.distribution import timing_of
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

MODEL = {"engine": "synthetic", "expected": {"1": "4ms"}}
TWO = {"node": [{"name": "m", "after": []}, {"name": "n", "after": ["m"]}]}


def chosen(app: Dict[str, Any], sequences: Any = None, **sections: Any) -> tuple[str, str]:
    """The kind of policy that an app gets, and why."""
    table = {"model": {"m": MODEL, "n": MODEL}, "app": {"a": app}, **sections}
    state = build_scheduler(parse_config(table), sequences=sequences).state
    return type(state.policy_of["a"]).__name__, state.apps["a"].policy_reason


@pytest.mark.parametrize("named", [{}, {"policy": "auto"}])
def test_by_what_the_app_is(named: Dict[str, str]) -> None:
    assert chosen({"model": "m", **named}) == ("Edf", "it is one model")
    assert chosen({**TWO, **named}) == ("PardLocal", "its models m and n share lane cpu0")
    assert chosen({"model": "m", **named}, {"m": (100, 0, 4)}) == ("RtlmPlus", "m is a language model")
    lanes = {"x": {"device": "cpu"}, "y": {"device": "cpu"}}
    apart = {"m": {**MODEL, "lanes": ["x"]}, "n": {**MODEL, "lanes": ["y"]}}
    assert chosen({**TWO, **named}, device={"cpu": {}}, lane=lanes, model=apart) == (
        "Edf",
        "its models share no lane with each other",
    )


def test_an_ensemble_needs_its_profile() -> None:
    nodes = [
        {"name": "x", "model": "m", "after": []},
        {"name": "y", "model": "n", "after": []},
        {"name": "vote", "model": "v", "after": ["x", "y"], "join": "policy"},
    ]
    models = {"m": MODEL, "n": MODEL, "v": MODEL}
    profile = {"models": ["x", "y"], "edges": [], "agreement": [[0, 0.9, 0.9, 1]]}
    assert chosen({"node": nodes}, model=models)[0] == "PardLocal"
    assert chosen({"node": nodes, "ensemble": profile}, model=models)[0] == "SchemblePlus"


def test_named_policies_stay_and_apps_of_one_kind_share_one() -> None:
    table = {
        "model": {"m": MODEL, "n": MODEL},
        "policy": {"edf": {"admit": False}, "fifo": {}},
        "app": {
            "a": {"model": "m", "policy": "auto"},
            "b": {"model": "n", "policy": "auto"},
            "c": {"model": "m", "policy": "edf"},
            "d": {"model": "m", "policy": "fifo"},
        },
    }
    state = build_scheduler(parse_config(table)).state
    assert {name: app.policy for name, app in state.apps.items()} == {
        "a": "auto-edf",
        "b": "auto-edf",
        "c": "edf",
        "d": "fifo",
    }
    assert [state.apps[name].policy_reason for name in "cd"] == ["", ""]


def test_the_only_policy_of_a_file_is_that_of_its_apps() -> None:
    assert chosen(TWO, policy={"fifo": {}}) == ("Fifo", "")


def test_a_name_that_the_file_has_is_not_taken() -> None:
    table = {
        "model": {"m": MODEL},
        "policy": {"edf": {}, "auto-edf": {"kind": "fifo"}},
        "app": {"a": {"model": "m", "policy": "auto"}, "b": {"model": "m", "policy": "auto-edf"}},
    }
    state = build_scheduler(parse_config(table)).state
    assert [type(state.policy_of[name]).__name__ for name in "ab"] == ["Edf", "Fifo"]


def test_it_takes_no_options() -> None:
    with pytest.raises(ConfigError, match=r"\[policy.auto\] has no option 'admit': 'auto' chooses"):
        chosen({"model": "m"}, policy={"auto": {"admit": False}})


# --- times that depend on the input -----------------------------------------------------------------------------------

UNEQUAL = {
    "lane": {"gpu": {}},
    "model": {
        "m": {
            "engine": "synthetic",
            "batch": [1, 2, 4, 8],
            "expected": {"1": "7ms", "2": "9ms", "4": "13ms", "8": "21ms"},
        }
    },
    "app": {"a": {"model": "m", "slo": "120ms"}},
    "truth": {"m": {"hint": "size", "fixed": "5ms", "per_unit": "1ms", "says": ["size"]}},
    "workload": {"w": {"app": "a", "rate": 200.0, "hints": {"size": {"1": 0.7, "6": 0.3}}}},
    "run": {"duration": "2.2s", "noise": 0.03},
}


def served(table: Dict[str, Any]) -> Any:
    """The scheduler and all requests of a run of a scenario."""
    scenario = parse_scenario(table)
    scheduler = build_scheduler(scenario.config)
    world = simulate(scenario, 1, scheduler=scheduler).world
    return scheduler, world.ended


def test_an_app_moves_when_batches_show_that_times_depend_on_the_input() -> None:
    scheduler, ended = served(UNEQUAL)
    app = scheduler.state.apps["a"]
    assert (app.policy, app.policy_reason) == ("orloj+", "batches of m showed that its times depend on the input")
    assert type(scheduler.state.policy_of["a"]).__name__ == "OrlojPlus"
    stories = [(item, "\n".join(scheduler.story(item.request.id))) for item in ended]
    moved = [item for item, story in stories if "goes from policy edf to orloj+" in story]
    assert any(item.outcome == "completed" for item in moved)
    assert len(ended) == len({item.request.id for item in ended}) > 300
    assert not scheduler.open_count
    assert [(item.request.id, item.end_ns) for item in served(UNEQUAL)[1]] == [
        (item.request.id, item.end_ns) for item in ended
    ]


def test_a_named_policy_stays_whatever_the_times() -> None:
    scheduler, _ = served({**UNEQUAL, "policy": {"edf": {}}})
    assert scheduler.state.apps["a"].policy == "edf"


def test_equal_inputs_and_steps_move_nothing() -> None:
    equal = {"w": {**UNEQUAL["workload"]["w"], "hints": {"size": 2.0}}}
    assert served({**UNEQUAL, "workload": equal})[0].state.apps["a"].policy == "edf"
    steps = {"m": {"steps": [1, 12], "steps_per_run": 1}}
    slow = {"w": {"app": "a", "rate": 20.0}}
    assert served({**UNEQUAL, "truth": steps, "workload": slow})[0].state.apps["a"].policy == "edf"


def test_a_profile_or_what_was_learnt_says_so_from_the_start() -> None:
    config = parse_config({key: UNEQUAL[key] for key in ("lane", "model", "app")})
    timings = {size: timing_of([time_ns] * 5) for size, time_ns in config.models["m"].expected.items()}
    alone = tuple(range(6_000_000, 12_000_000, 200_000))
    for times, kind in ((alone, "orloj+"), (alone[:6], "edf")):
        profile = Profile("m", "cpu", {"gpu": LaneProfile(timings, alone={"a": times})})
        app = build_scheduler(config, [profile]).state.apps["a"]
        assert app.policy == kind
        assert policies_of(config, [profile], ())["a"] == (kind, app.policy_reason)
    learnt = served(UNEQUAL)[0].state.latency
    assert build_scheduler(config, learnt=learnt).state.apps["a"].policy == "orloj+"
