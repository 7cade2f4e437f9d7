"""Closed loops get full batches under every policy, and open loops are decided as if no lane ever waited."""

from __future__ import annotations

from collections import Counter

import pytest
from scenarios import product_first, scenario_of

from edgeserve.sched.core import holds
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sim.run import simulate

TIMES = {size: 7.89 + 0.51 * size for size in range(1, 17)}  # a batch of 16 takes twice as long as one alone
CAPACITY = 16 / 16.05e-3
SECONDS = 2


def scenario(policy, slo="1s", **workloads):
    """One model on one lane."""
    return scenario_of(
        {"net": TIMES},
        {"a": {"model": "net", "slo": slo}},
        {name: {"app": "a", **keys} for name, keys in workloads.items()},
        {"p": {"kind": policy}},
        seconds=SECONDS,
        run={"noise": 0.05, "step_cost": "100us", "event_cost": "30us"},
    )


def run(policy, seed=7, slo="1s", **workload):
    """The requests that ended, and how many batches of each size ran."""
    sizes = Counter()

    def on_step(now_ns, events, actions):
        sizes.update(len(action.jobs) for action in actions if isinstance(action, RunBatch))

    return simulate(scenario(policy, slo, w=workload), seed, (), on_step=on_step).world.ended, sizes


def without_waits(monkeypatch, policy, **workload):
    """The same where no client is ever waited for."""
    monkeypatch.setattr(holds, "TRUSTED", (2, 1))  # of the answers, twice as many would have to be followed
    return run(policy, **workload)


@pytest.mark.worlds
@pytest.mark.parametrize("policy", product_first(sorted(POLICIES)))
def test_sixteen_in_flight_become_batches_of_sixteen(policy, monkeypatch):
    closed = {"kind": "closed", "clients": 16, "think": "700us"}
    ended, sizes = run(policy, **closed)
    without, _ = without_waits(monkeypatch, policy, **closed)
    assert all(item.outcome == "completed" for item in ended)
    share = {"rtlm": 0.8}.get(policy, 0.85)  # which starts with what waits
    assert len(ended) > share * CAPACITY * SECONDS, sizes
    assert len(ended) > 1.2 * len(without), "this world no longer shows what waiting is for"


@pytest.mark.worlds
@pytest.mark.parametrize("load", [0.5, 1.2])
@pytest.mark.parametrize(("kind", "keys"), [("poisson", {}), ("gamma", {"cv": 1.0}), ("periodic", {})])
def test_an_open_loop_is_never_waited_for(load, kind, keys, monkeypatch):
    asked = {"kind": kind, "rate": load * CAPACITY, "slo": "42ms", **keys}
    assert run("edf", **asked) == without_waits(monkeypatch, "edf", **asked)


def test_open_requests_among_closed_ones_are_in_time():
    """A camera beside eight clients that ask again at once: no request is late for a wait."""
    closed = {"kind": "closed", "clients": 8, "think": "700us"}
    made = scenario("edf", w=closed, camera={"kind": "periodic", "rate": 30.0, "slo": "34ms"})
    ended = simulate(made, 7, ()).world.ended
    camera = [item for item in ended if item.request.client == "camera"]
    assert len(camera) > 25 * SECONDS
    assert sum(
        item.outcome == "completed" and item.end_ns <= item.request.deadline_ns for item in camera
    ) >= 0.98 * len(camera)
