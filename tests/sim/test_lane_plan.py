"""Several apps of ``edf`` on one lane that cannot serve all: no app starves, and value counts."""

from __future__ import annotations

import pytest
from scenarios import scenario_of

from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate

SECONDS = 4
TIMES = {1: 12, 2: 16, 4: 24, 8: 40}
"""Milliseconds by batch size: 5 ms an item at best."""

READ = {1: 4, 2: 5, 4: 8, 8: 14}


def rates(apps, load, seed, **arrivals):
    """Share in time by app. ``apps``: name -> (model, part of the load, keys)."""
    whole = sum(part for _, part, _ in apps.values())
    scenario = scenario_of(
        {model: TIMES for model, _, _ in apps.values()},
        {name: {"model": model, "slo": "150ms", **keys} for name, (model, _, keys) in apps.items()},
        {
            name: {"kind": "poisson", "rate": load * 200 * part / whole, **arrivals.get(name, {})}
            for name, (_, part, _) in apps.items()
        },
        "edf",
        seconds=SECONDS,
        run={"noise": 0.03},
        lane={"gpu": {}},
    )
    found = report_of([simulate(scenario, seed).world], 0, SECONDS * 10**9).apps
    return {name: app.finish_rate for name, app in found.items()}


@pytest.mark.parametrize(("parts", "load"), [((1, 1), 1.3), ((1, 4, 2), 1.6), ((1, 8), 2.0)])
def test_equal_apps_share_an_overloaded_lane(parts, load):
    found = rates({f"app{index}": (f"m{index}", part, {}) for index, part in enumerate(parts)}, load, seed=1)
    assert min(found.values()) > 0.25, found  # in order of what is lost by waiting, the small one of the last has 4 %
    assert sum([parts[index] * found[f"app{index}"] for index in range(len(parts))]) / sum(parts) > 0.6 / load


def test_the_neighbour_of_cameras_that_fill_every_batch_is_served():
    """By the exchange rule the larger of two equal batches goes first each time, and the neighbour has 10 % in time."""
    apps = {"cameras": ("m0", 3, {"stream": "newest_wins"}), "other": ("m1", 1, {})}
    found = rates(apps, 1.3, 2, cameras={"kind": "periodic", "streams": 8})
    assert found["other"] > 0.5 and found["cameras"] > 0.6, found


def test_where_not_all_can_be_served_those_of_most_value_are():
    apps = {f"app{value}": ("m", 1, {"value": float(value)}) for value in range(1, 9)}
    found = rates(apps, 1.3, seed=3)
    assert found["app8"] > 0.97 > 0.4 > found["app1"], found
    assert rates(apps, 0.6, seed=3)["app1"] > 0.95


@pytest.mark.worlds
def test_fan_outs_of_very_unequal_size_are_answered_as_often_by_the_plan_as_by_edf():
    """Carrying the large ones to the end that edf drops cost 1 to 6.5 points of answers (issue 26, line 9)."""
    models = {"cut": {1: 1, "lanes": ["cpu"]}, "read": {**READ, "lanes": ["gpu"]}, "join": {1: 1, "lanes": ["gpu"]}}
    nodes = [{"name": "cut", "fan_out": True}, {"name": "read"}, {"name": "join", "gather": True}]
    found = {}
    for policy in ("edf", "plan"):
        scenario = scenario_of(
            models,
            {"app": {"slo": "300ms", "node": nodes}},
            {"app": {"kind": "poisson", "rate": 200}},
            policy,
            seconds=2 * SECONDS,
            run={"noise": 0.03},
            lane={"gpu": {}, "cpu": {}},
            truth={"cut": {"parts": {"1": 0.6, "4": 0.3, "30": 0.1}}},
        )
        report = report_of([simulate(scenario, 5).world], 0, 2 * SECONDS * 10**9)
        found[policy] = report.apps["app"].finish_rate
    assert found["edf"] < 0.97, found  # not all can be served
    assert found["plan"] > found["edf"] - 0.01, found
