"""An app that names no policy gets the right one by what it is."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError
from edgeserve.sched.core.build import build_scheduler

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
