"""The mixes of ``examples/mixes``: apps of all kinds on one lane, each under its own policy."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import load_scenario

MIXES = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "mixes")
MIX_NAMES = ("home", "inspection", "robot", "workstation")


@pytest.mark.parametrize("mix", MIX_NAMES)
def test_every_app_has_the_plan_and_is_answered(mix: str) -> None:
    scenario = load_scenario(os.path.join(MIXES, mix, "scenario.toml"))
    scenario = replace(scenario, run=replace(scenario.run, duration_ns=3 * 10**8, warmup_ns=0))
    run = simulate(scenario, 0, ())
    state = run.scheduler.state
    assert {type(policy).__name__ for policy in state.policy_of.values()} == {"LanePlan"}
    assert {item.app for item in scenario.workloads} == set(scenario.config.apps)
    done = {item.request.app for item in run.world.ended if item.outcome == "completed"}
    critical = {app.name for app in scenario.config.apps.values() if app.priority_class == "critical"}
    assert critical & done and len(done) > 3
