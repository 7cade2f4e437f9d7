"""What ``scripts/bench/mix.py`` counts: the load of the mixes, the bound, and the baselines that it brings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench import mix
from lib.mix_baselines import partitioned

from edgeserve.sim.report import AppReport
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import load_scenario, with_policy


def scenario_of(name: str):
    return load_scenario(str(mix.EXAMPLES / name / "scenario.toml"))


@pytest.mark.parametrize("name", mix.MIXES)
def test_at_load_1_the_lane_is_in_use_all_the_time_in_full_batches(name):
    scenario = scenario_of(name)
    needs_ms = mix.needs(scenario)
    load = sum([needs_ms[item.app] * item.rate for item in scenario.workloads]) / 1000.0
    assert 0.95 < load < 1.05


def test_the_bound_leaves_out_what_is_worth_least():
    scenario = scenario_of("workstation")
    needs_ms = mix.needs(scenario)
    few = {name: AppReport(offered=1) for name in scenario.config.apps}
    assert mix.bound(scenario, few, needs_ms) == pytest.approx(100.0)
    many = {**few, "complete_free": AppReport(offered=10**6), "complete_own": AppReport(offered=10**4)}
    assert 0.0 < mix.bound(scenario, many, needs_ms) < 10.0


@pytest.mark.parametrize("kind", [mix.PRIORITY, mix.FAIR, "edf"])
def test_the_baselines_serve(kind):
    scenario = with_policy(scenario_of("workstation"), kind)
    if kind == "edf":
        rates = {item.app: item.rate for item in scenario.workloads}
        scenario = partitioned(scenario, mix.LANE, mix.needs(scenario), rates)
        assert len(scenario.config.lanes) == 8  # the host's, and one for each app but that three share a model
    run = replace(scenario.run, duration_ns=5 * 10**8, warmup_ns=0)
    ended = simulate(replace(scenario, run=run), 0, ()).world.ended
    assert len({item.request.app for item in ended if item.outcome == "completed"}) > 4
