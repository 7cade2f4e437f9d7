"""The counts of ``research/bench/mix.py``: the load of the mixes, the bound, and the baselines that it brings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench import mix
from common.mix_baselines import partitioned
from figures import mixes

from edgeserve.sched.protocol.events import Request
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import load_scenario, with_policy

MS = 10**6


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

    def asked(app, count):
        return [Request(0, app, 0, 100 * MS)] * count

    few = [request for app in scenario.config.apps for request in asked(app, 1)]
    assert mix.bound(
        scenario, [Request(0, item.app, 0, scenario.config.apps[item.app].slo_ns) for item in few], needs_ms
    ) == pytest.approx(100.0)
    dear = asked("complete_own", 40)  # 2.5 ms each, value 4: the whole time
    assert needs_ms["complete_own"] == 2.5
    assert mix.bound(scenario, dear + asked("complete_free", 100), needs_ms) == pytest.approx(100 * 160 / 260)
    assert mix.bound(scenario, dear[:20] + asked("complete_free", 100), needs_ms) == pytest.approx(100 * 100 / 180)


@pytest.mark.parametrize(
    ("rows", "most"),
    [
        ([(0, 10, 6.0), (0, 10, 6.0)], 10),
        ([(0, 5, 5.0), (10, 12, 5.0)], 7),
        ([(0, 20, 10.0), (2, 5, 3.0), (2, 6, 3.0)], 14),
        ([(0, 4, 3.0), (1, 3, 2.0)], 4),
    ],
)
def test_the_most_work_by_the_deadlines(rows, most):
    """In the third case: 10 until 20, interrupted from 2 to 6, where one of 6 has no time left."""
    assert mix.most_work(rows) == most


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


def test_the_page_is_drawn_of_a_run_of_today():
    """The page has the way that comes first, under any name, beside ``edf``."""
    found = [
        mix.Found(
            "home", 1.0, way, 1, percent, {"critical": 99.0}, {"door": percent}, 2.0, "door", 100.0, {"door": way}, 1.0
        )
        for way, percent in (("plan", 90.0), ("edf", 80.0))
    ]
    drawn = mixes.parts({"rows": mix.rows_of(found), "circumstances": {"seeds": 1}})
    assert drawn["apps"].endswith("| home | door | plan | 90.0 | 80.0 |")
    assert "| home | 1 | 50% | 2.0 s (door) |" in drawn["regained"]
