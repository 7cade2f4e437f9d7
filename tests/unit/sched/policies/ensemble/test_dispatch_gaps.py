"""What lies between two batches of a lane (``sched/latency/lane_gaps.py``) in plans: counted where it matters."""

from __future__ import annotations

import pytest

from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario


def scenario(start):
    """600 requests a second; a batch of one takes 1 ms, one of eight 2.4; a lane takes ``start`` to begin a batch."""
    times = {"1": "1ms", "2": "1.2ms", "4": "1.6ms", "8": "2.4ms"}
    nodes = [{"name": name, "after": []} for name in "ab"] + [{"name": "vote", "after": ["a", "b"], "join": "policy"}]
    models = {
        name: {
            "engine": "synthetic",
            "lanes": ["l"],
            "batch": [1, 2, 4, 8],
            "expected": times if name == "a" else dict.fromkeys(times, "9ms"),
        }
        for name in "ab"
    }
    models["vote"] = {"engine": "synthetic", "lanes": ["side"], "batch": [1, 8], "expected": {"1": "10us", "8": "10us"}}
    return parse_scenario(
        {
            "lane": {"l": {}, "side": {}},
            "model": models,
            "policy": {"p": {"kind": "schemble+"}},
            "app": {
                "q": {
                    "slo": "40ms",
                    "node": nodes,
                    "on_late": "partial",
                    "ensemble": {"models": ["a", "b"], "edges": [], "agreement": [[0, 0.9, 0.9, 1]]},
                }
            },
            "workload": {"q": {"app": "q", "kind": "poisson", "rate": 600}},
            "run": {"duration": "3s"},
            "machine": {
                "step": "50us",
                "event": "0us",
                "receive": "0us",
                "answer": "0us",
                "send": "0us",
                "wake": "0us",
                "start": start,
                "stall_every": "0us",
                "lock_factor": 1.0,
                "lock_wait": "0us",
            },
        }
    )


@pytest.mark.worlds
@pytest.mark.parametrize("start", ["1us", "1ms", "3ms"])
def test_models_run_in_batches_where_what_lies_between_them_takes_the_lane(start):
    ended = simulate(scenario(start), 1, ()).world.ended
    missed = [item for item in ended if item.outcome != "completed" or item.end_ns > item.request.deadline_ns]
    assert len(ended) > 1500
    assert len(missed) < 0.01 * len(ended)
