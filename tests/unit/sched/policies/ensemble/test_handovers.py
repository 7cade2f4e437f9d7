"""What lies between two batches of a lane (``sched/latency/handover.py``) in plans: counted where it matters."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver

from edgeserve.sched.policies.ensemble.lanes import with_handovers
from edgeserve.sched.policies.ensemble.planner import Planner
from edgeserve.sched.policies.ensemble.problem import REWARD_UNIT, Asked, Lanes, Option
from edgeserve.sched.policies.schemble_plus.policy import HANDOVER_PART
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

ONE_LANE = Lanes((0, 0), (10, 20), ((100,),), (1, 1))


def test_the_first_batch_of_a_plan_has_no_handover_before_it():
    """By 138: 10 + 8 + 20 ns of the lane behind 100, but not 10 + 8 + 20 + 8 + 10."""
    lanes = with_handovers(ONE_LANE, [8])
    both = [Option(1, REWARD_UNIT), Option(3, 2 * REWARD_UNIT)]
    assert Planner().plan(lanes, [Asked(138, both)]).subsets == (3,)
    assert Planner().plan(lanes, [Asked(137, both)]).subsets == (1,)
    assert Planner().plan(lanes, [Asked(110, both)]).subsets == (1,)
    assert with_handovers(ONE_LANE, [0]) is ONE_LANE


def test_a_handover_that_is_small_beside_the_batches_does_not_count():
    world = Driver(
        {**{name: {1: 40, "lanes": ["l"]} for name in "ab"}, "vote": {1: 1, "lanes": ["lv"]}},
        {
            "q": {
                "node": [
                    {"name": "a", "after": []},
                    {"name": "b", "after": []},
                    {"name": "vote", "after": ["a", "b"], "join": "policy"},
                ],
                "slo": "500ms",
                "ensemble": {"models": ["a", "b"], "edges": [], "agreement": [[0, 0.9, 0.9, 1]]},
            }
        },
        policy={"schemble+": {}},
        lane={"l": {}, "lv": {}},
    )
    world.arrive("q")
    policy, state = world.scheduler.policies[0], world.scheduler.state
    lane = next(lane for lane in state.lanes.values() if lane.name == "l")
    for handover_ns, counts in ((40 * MS // HANDOVER_PART, True), (40 * MS // HANDOVER_PART - 1, False)):
        lane.handover.careful_ns = handover_ns
        assert policy._handovers_ns(policy._places[0], state.board) == [handover_ns if counts else 0]


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
