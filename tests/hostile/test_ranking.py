"""One client within its share, beside one that ranks itself above others by what its requests say: the scheduler in
virtual time. ``tests/live/test_ranking.py`` has what each front hands on."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Dict, Mapping

import pytest
from for_each import each_time
from hand_world import Driver

HONEST = "uid:8/pid:2 #02"
HONEST_LOAD = 0.4
"""The share of the lane's time that the honest client needs: less than half, which is its part."""

CLAIMS: Dict[str, Dict[str, Any]] = {
    "nothing": {},
    "critical": {"priority_class": "critical"},
    "background": {"priority_class": "background"},
    "value": {"value": 1e15},
    "no value": {"value": 0.0},
    "critical and value": {"priority_class": "critical", "value": 1e15},
    "slo 1": {"slo": 1},
    "slo 12": {"slo": 12},
    "slo 25": {"slo": 25},
    "slo 100 s": {"slo": 100_000},
    "late": {"on_late": "answer"},
    "late and slo 1": {"on_late": "answer", "slo": 1},
    "late, slo 1, critical": {"on_late": "answer", "slo": 1, "priority_class": "critical", "value": 1e15},
    "in part": {"on_late": "partial"},
    "steps": {"hints": {"steps": 1000.0}},
    "work": {"hints": {"work": 1e6}},
    "quality": {"quality_min": 1.0},
}


def share_of_honest(
    load: float,
    claim: Mapping[str, Any],
    policy: str = "edf",
    processes: int = 1,
    seconds: float = 2.0,
    burst_ms: float = 0.001,
) -> float:
    """The share of the honest client's requests that are in time: a model of 10 ms, deadlines of 100 ms, requests at
    random, ``load`` times what the lane can do together. ``processes``: 2 stands for a new one per request. The other
    client's come together, once in ``burst_ms``."""
    world = Driver({"m": {1: 10}}, {"a": {"model": "m", "slo": "100ms"}}, policy=policy)
    arrivals = []
    for who, rate in (("", 100 * (load - HONEST_LOAD)), (HONEST, 100 * HONEST_LOAD)):
        draw, at_ms = random.Random(f"1{who}"), 0.0
        while at_ms < seconds * 1000:
            at_ms += 1000 * draw.expovariate(rate)
            arrivals.append((at_ms if who else at_ms // burst_ms * burst_ms, who))
    honest, free_ms = [], 0.0
    for number, (at_ms, who) in enumerate(sorted(arrivals), 1):
        while world.on_lane and free_ms <= at_ms:
            world.finish("cpu0", at=free_ms)
            free_ms += 10
        if not world.on_lane:
            free_ms = at_ms + 10
        if who:
            honest.append(number)
        pid = number if processes > 1 else 1
        world.arrive("a", client=who or f"uid:7/pid:{pid} #{pid:x}", at=at_ms, **({} if who else claim))
    outcomes = Counter(world.outcome(number) for number in honest if number in world.ends)
    return outcomes["completed"] / sum(outcomes.values())


@pytest.mark.parametrize("load", each_time([1, 2, 3], 3))
@pytest.mark.parametrize("claim", sorted(CLAIMS))
def test_nothing_that_a_client_says_takes_anothers_share(claim: str, load: int) -> None:
    assert share_of_honest(load, CLAIMS[claim]) >= 0.9


@pytest.mark.parametrize("policy", ["fifo", "plan"])
@pytest.mark.parametrize("claim", ["critical and value", "background", "slo 25", "slo 100 s", "late and slo 1"])
def test_nor_under_another_policy(claim: str, policy: str) -> None:
    assert share_of_honest(3, CLAIMS[claim], policy) >= 0.9


@pytest.mark.parametrize("claim", ["nothing", "critical and value", "late and slo 1", "slo 25"])
def test_nor_by_a_new_process_for_each_request(claim: str) -> None:
    """A little more of it gets through: what a process had is forgotten with it, and its user's is remembered."""
    assert share_of_honest(1.5, CLAIMS[claim], processes=2) >= 0.85


@pytest.mark.parametrize("policy", ["edf", "fifo", "plan"])
@pytest.mark.parametrize("claim", ["critical and value", "slo 100 s", "late and slo 1"])
def test_nor_by_bursts_from_time_to_time(claim: str, policy: str) -> None:
    assert share_of_honest(2, CLAIMS[claim], policy, seconds=3.0, burst_ms=1100.0) >= 0.85
