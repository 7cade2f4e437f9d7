"""PARD's experiments: plans, traces and scaling as stated, the lean world against the simulator, closed forms."""

from __future__ import annotations

import statistics

import pytest
from common.lean_world import LeanWorld, served
from replicate.pard import cases
from replicate.pard import world as worlds

from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

pytestmark = pytest.mark.nightly

S = 10**9


@pytest.mark.parametrize(
    ("name", "share", "sizes"),
    [
        ("tm", 0.53, [5, 5, 5]),
        ("lv", 0.53, [5, 5, 5, 5, 4]),
        ("da", 0.53, [4, 5, 10, 5, 5]),
        ("lv", 0.5, [4, 5, 5, 5, 4]),
    ],
)
def test_batch_sizes_are_those_of_the_reference(name, share, sizes):
    assert list(cases.plan_of(name, share).sizes.values()) == sizes


def test_the_rate_that_lanes_are_shared_out_for_is_the_largest():
    plan = cases.plan_of("lv", 0.5)
    rate = plan.rate_max(64)
    assert sum(plan.lanes(rate).values()) <= 64 < sum(plan.lanes(rate * 1.001).values())
    lanes = {"person": 22, "face": 9, "expression": 7, "eye": 8, "pose": 18}
    assert plan.capacity(lanes) == pytest.approx(1071.4, 1e-3)


@pytest.mark.parametrize("name", sorted(cases.TRACES))
def test_traces_have_the_variation_they_are_named_for(name):
    shape = cases.trace_shape(name, 330, seed=5)
    assert statistics.mean(shape) == pytest.approx(1.0)
    assert statistics.pstdev(shape) == pytest.approx(cases.TRACES[name], rel=0.02)
    assert shape == cases.trace_shape(name, 330, seed=5) != cases.trace_shape(name, 330, seed=6)


def test_the_busiest_windows_just_exceed_what_all_lanes_can_do():
    rates = cases.scaled_to_peak([1.0] * 95 + [2.0] * 5, 300.0)
    assert rates[0] == pytest.approx(150.0) and rates[-1] == pytest.approx(300.0)


def test_lanes_come_three_seconds_after_they_are_wanted_and_stay_for_thirty():
    plan = cases.plan_of("tm", 0.53)
    arrivals = [round((10 + index / 200) * S) for index in range(1000)]  # 200 a second from 10 to 15
    lanes = [sum(item.values()) for item in cases.scaling(plan, arrivals, 60, 10.0, 16)]
    least, most = lanes[0], max(lanes)
    assert lanes[:14] == [least] * 14 and lanes[14] > least  # wanted at 11, when the first second had been counted
    assert most <= 16 and lanes[44] == most and lanes[-1] == least
    changes = worlds.lane_changes([{"a": 1}, {"a": 3}, {"a": 2}], {"a": 3})
    assert changes == [(0, "a1", False), (0, "a2", False), (S, "a1", True), (S, "a2", True), (2 * S, "a2", False)]


def test_no_policy_could_do_better_than_the_fluid():
    plan = cases.plan_of("tm", 0.53)
    lanes = plan.lanes(100.0)
    capacity = plan.capacity(lanes)
    assert cases.fluid_drop([50] * 10, [lanes] * 10, plan) == 0.0
    drop = cases.fluid_drop([round(2 * capacity)] * 10, [lanes] * 10, plan)
    assert drop == pytest.approx(0.5, abs=0.03)


def small(kind="pard", **options):
    plan = cases.plan_of("lv", 0.5)
    lanes = {"person": 3, "face": 2, "expression": 1, "eye": 1, "pose": 3}
    return cases.table_of(plan, lanes, kind, options), plan.capacity(lanes)


@pytest.mark.parametrize(("kind", "options"), [("pard", {}), ("pard+", {}), ("pard", {"rule": "nexus"})])
def test_the_lean_world_is_the_simulator_without_its_reference_model(kind, options):
    table, capacity = small(kind, **options)
    scenario = parse_scenario(
        {
            **table,
            "workload": {"w": {"app": "lv", "kind": "poisson", "rate": 1.2 * capacity}},
            "run": {"duration": "1s", "step_cost": "0us", "event_cost": "0us"},
        }
    )
    ended = sorted(simulate(scenario, 3).world.ended, key=lambda item: item.request.arrival_ns)
    good = sum(item.outcome == "completed" and item.end_ns <= item.request.deadline_ns for item in ended)
    lean = worlds.run_case(table, [item.request.arrival_ns for item in ended])
    assert (lean.offered, lean.good) == (len(ended), good)
    assert 0 < good < len(ended)
    assert sum(lean.by_module.values()) == lean.offered - lean.good - lean.late


@pytest.mark.parametrize(
    ("kind", "rule"),
    [("pard", "pard"), ("pard+", "pard"), ("pard", "back"), ("pard", "nexus"), ("pard", "clipper++"), ("pard", "oc")],
)
def test_no_request_is_lost_at_a_load_of_six_tenths(kind, rule):
    table, capacity = small(kind, rule=rule)
    outcome = worlds.run_case(table, cases.poisson_ns([0.6 * capacity] * 4, seed=2))
    assert outcome.drop == 0.0 and outcome.offered > 200


def test_one_module_without_batches_waits_as_queueing_theory_says():
    mean_ms = 10.0
    table = {
        "lane": {"l": {}},
        "model": {"m": {"engine": "synthetic", "expected": {"1": f"{mean_ms}ms"}}},
        "policy": {"pard": {"rule": "naive"}},
        "app": {"a": {"model": "m", "slo": "10s", "pending_max": 10_000, "on_late": "answer"}},
    }
    arrivals = cases.poisson_ns([50.0] * 60, seed=4)
    world, _ = served(table, arrivals, LeanWorld)
    waits_ms = [(world.ends[index][1] - at_ns) / 1e6 - mean_ms for index, at_ns in enumerate(arrivals, 1)]
    rho = len(arrivals) * mean_ms / 60_000
    assert statistics.mean(waits_ms) == pytest.approx(rho * mean_ms / (2 * (1 - rho)), rel=0.12)  # M/D/1


def test_a_lane_that_is_told_to_go_ends_its_batch_first():
    table, _ = small()
    arrivals = [index * 10_000_000 for index in range(60)]
    gone = worlds.run_case(table, arrivals, [(150_000_000, "person1", False), (300_000_000, "person2", False)])
    assert gone.offered == 60 and gone.good + gone.late + sum(gone.by_module.values()) == 60
    assert gone.good < worlds.run_case(table, arrivals).good
