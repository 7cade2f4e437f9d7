"""Closed loops get full batches under every policy, and open loops are decided as if no lane ever waited."""

from __future__ import annotations

from collections import Counter

import pytest

from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

SIZES = range(1, 17)
TIMES = {str(size): f"{7890 + 510 * size}us" for size in SIZES}  # a batch of 16 takes twice as long as one alone
CAPACITY = 16 / 16.05e-3
SECONDS = 2


def scenario(policy, wait, **workload):
    """One model on one lane."""
    return parse_scenario(
        {
            "model": {"net": {"engine": "synthetic", "batch": list(SIZES), "expected": TIMES}},
            "lane": {"cpu0": {"wait": wait}},
            "policy": {"p": {"kind": policy}},
            "app": {"a": {"model": "net", "slo": workload.pop("slo", "1s")}},
            "workload": {"w": {"app": "a", **workload}},
            "run": {"duration": f"{SECONDS}s", "noise": 0.05, "step_cost": "100us", "event_cost": "30us"},
        }
    )


def run(policy, wait, seed=7, **workload):
    """The requests that ended, and how many batches of each size ran."""
    sizes = Counter()

    def on_step(now_ns, events, actions):
        sizes.update(len(action.jobs) for action in actions if isinstance(action, RunBatch))

    return simulate(scenario(policy, wait, **workload), seed, (), on_step=on_step).world.ended, sizes


@pytest.mark.worlds
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_sixteen_in_flight_become_batches_of_sixteen(policy):
    closed = {"kind": "closed", "clients": 16, "think": "700us"}
    without, _ = run(policy, False, **closed)
    ended, sizes = run(policy, True, **closed)
    assert all(item.outcome == "completed" for item in ended)
    # orloj+ takes 15 and 1 while it still learns how long requests are, rtlm starts with whatever waits.
    share = {"orloj+": 0.75, "rtlm": 0.8, "rtlm+": 0.8}.get(policy, 0.85)
    assert len(ended) > share * CAPACITY * SECONDS, sizes
    assert len(ended) > 1.2 * len(without), "this world no longer shows what waiting is for"


@pytest.mark.worlds
@pytest.mark.parametrize("load", [0.5, 0.9, 1.2, 1.5])
@pytest.mark.parametrize(("kind", "keys"), [("poisson", {}), ("gamma", {"cv": 1.0}), ("periodic", {})])
def test_an_open_loop_is_never_waited_for(load, kind, keys):
    asked = {"kind": kind, "rate": load * CAPACITY, "slo": "42ms", **keys}
    assert run("edf", True, **asked) == run("edf", False, **asked)


def test_open_requests_among_closed_ones_are_in_time():
    """A camera beside eight clients that ask again at once: nobody is late for a wait."""
    table = scenario("edf", True, kind="closed", clients=8, think="700us").edge
    ended = simulate(
        parse_scenario(
            {
                **table,
                "workload": {
                    "w": {"app": "a", "kind": "closed", "clients": 8, "think": "700us"},
                    "camera": {"app": "a", "kind": "periodic", "rate": 30.0, "slo": "34ms"},
                },
                "run": {"duration": f"{SECONDS}s", "noise": 0.05},
            }
        ),
        7,
        (),
    ).world.ended
    camera = [item for item in ended if item.request.client == "camera"]
    assert len(camera) > 25 * SECONDS
    assert sum(
        item.outcome == "completed" and item.end_ns <= item.request.deadline_ns for item in camera
    ) >= 0.98 * len(camera)
