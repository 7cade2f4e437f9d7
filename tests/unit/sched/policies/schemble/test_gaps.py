"""What lies between two batches: measured where it must have been needed, counted where it matters, planned with."""

from __future__ import annotations

import pytest

from edgeserve.sched.policies.schemble.gaps import LEARNT_MIN, PART, WINDOW_LEN, Gaps
from edgeserve.sched.policies.schemble.lanes import with_gaps
from edgeserve.sched.policies.schemble.planner import Planner
from edgeserve.sched.policies.schemble.problem import REWARD_UNIT, Asked, Lanes, Option
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

ONE_LANE = Lanes((0, 0), (10, 20), ((100,),), (1, 1))


def back_to_back(gaps, gap_ns, count, at_ns=0):
    """Batches of 100 ns, each given to the lane when the end of the one before is told, 5 ns after it."""
    for _ in range(count):
        gaps.ended(at_ns + 5, at_ns + gap_ns, at_ns + gap_ns + 100, at_ns + gap_ns + 105)
        at_ns += gap_ns + 100
    return at_ns


def test_gaps_are_learnt_from_batches_that_follow_one_another():
    gaps = Gaps()
    back_to_back(gaps, 30, LEARNT_MIN)  # the first has none before it
    assert gaps.beside_ns(1) == 0
    at_ns = back_to_back(gaps, 30, 1, LEARNT_MIN * 130)
    assert gaps.beside_ns(100) == 30
    back_to_back(gaps, 60, WINDOW_LEN, at_ns)
    assert gaps.beside_ns(100) == 60


def test_a_lane_that_nobody_needed_teaches_nothing():
    gaps, at_ns = Gaps(), 0
    for _ in range(3 * LEARNT_MIN):
        gaps.ended(at_ns + 900, at_ns + 930, at_ns + 1030, at_ns + 1035)
        at_ns += 1030
    assert gaps.beside_ns(100) == 0


def test_a_gap_that_is_small_beside_the_batches_does_not_count():
    gaps = Gaps()
    back_to_back(gaps, 30, 2 * LEARNT_MIN)
    assert gaps.beside_ns(30 * PART) == 30
    assert gaps.beside_ns(30 * PART + 1) == 0


def test_the_first_batch_of_a_plan_has_no_gap_before_it():
    """By 138: 10 + 8 + 20 ns of the lane behind 100, but not 10 + 8 + 20 + 8 + 10."""
    lanes = with_gaps(ONE_LANE, [8])
    both = [Option(1, REWARD_UNIT), Option(3, 2 * REWARD_UNIT)]
    assert Planner().plan(lanes, [Asked(138, both)]).subsets == (3,)
    assert Planner().plan(lanes, [Asked(137, both)]).subsets == (1,)
    assert Planner().plan(lanes, [Asked(110, both)]).subsets == (1,)
    assert with_gaps(ONE_LANE, [0]) is ONE_LANE


def scenario(start):
    """600 requests a second; a batch of one takes 1 ms, one of eight 2.4; a lane takes ``start`` to begin a batch."""
    times = {"1": "1ms", "2": "1.2ms", "4": "1.6ms", "8": "2.4ms"}
    nodes = [{"name": name, "after": []} for name in "ab"] + [{"name": "vote", "after": ["a", "b"], "join": "policy"}]
    models = {name: {"engine": "synthetic", "lanes": ["l"], "batch": [1, 2, 4, 8],
                     "expected": times if name == "a" else dict.fromkeys(times, "9ms")} for name in "ab"}
    models["vote"] = {"engine": "synthetic", "lanes": ["side"], "batch": [1, 8], "expected": {"1": "10us", "8": "10us"}}
    return parse_scenario({
        "lane": {"l": {}, "side": {}}, "model": models, "policy": {"p": {"kind": "schemble+"}},
        "app": {"q": {"slo": "40ms", "node": nodes, "on_late": "partial", "ensemble": {
            "models": ["a", "b"], "edges": [], "agreement": [[0, 0.9, 0.9, 1]]}}},
        "workload": {"q": {"app": "q", "kind": "poisson", "rate": 600}}, "run": {"duration": "3s"},
        "machine": {"step": "50us", "event": "0us", "receive": "0us", "answer": "0us", "send": "0us", "wake": "0us",
                    "start": start, "stall_every": "0us", "lock_factor": 1.0, "lock_wait": "0us"}})


@pytest.mark.parametrize("start", ["1us", "1ms", "3ms"])
def test_models_run_in_batches_where_the_gaps_between_them_take_the_lane(start):
    ended = simulate(scenario(start), 1, ()).world.ended
    missed = [item for item in ended if item.outcome != "completed" or item.end_ns > item.request.deadline_ns]
    assert len(ended) > 1500
    assert len(missed) < 0.01 * len(ended)
