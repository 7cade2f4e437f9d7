"""What lane time costs while requests wait, and what schemble+ does about it."""

from __future__ import annotations

import pytest
from hand_world import Driver, ran

from edgeserve.sched.policies.ensemble.problem import Lanes
from edgeserve.sched.policies.schemble_plus.backlog import Demand, fastest_ns, prices, surcharges, taken

SHARED = Lanes((0, 0, 0), (3, 9, 15), ((0,),), (1, 1, 1))
OWN = Lanes((0, 1, 2), (40, 75, 85), ((0,), (0,), (0,)), (1, 1, 1))
HARD = [0, 0.6, 0.7, 0.85, 0.65, 0.8, 0.85, 1]
FITTED = {"models": ["a", "b", "c"], "edges": [], "agreement": [HARD]}


def make(**app):
    models = {name: {1: time, "lanes": ["l"]} for name, time in (("a", 3), ("b", 9), ("c", 15))}
    nodes = [{"name": name, "after": []} for name in "abc"]
    nodes.append({"name": "vote", "after": ["a", "b", "c"], "join": "policy"})
    return Driver(
        {**models, "vote": {1: 1, "lanes": ["v"]}},
        {"q": {"node": nodes, "slo": "100ms", "ensemble": FITTED, **app}},
        policy={"schemble+": {}},
        lane={"l": {}, "v": {}},
    )


def run_next(world, took=None):
    """Let the lane of the models and the vote do what they have; the model that ran, and for which request."""
    work = world.work("l")
    world.finish(
        "l", at=max(world.now_ms, world.given_ms[work.work_id]) + (took or {"a": 3, "b": 9, "c": 15}[work.model])
    )
    if [item for item in world.on_lane.values() if item.lane == "v"]:
        world.finish("v", at=world.now_ms + 1)
    return work.model, work.jobs[0].request_id


ALL = (0, 1, 2)
TWO = Lanes((0, 0, 1, 1), (4, 8, 2, 6), ((0,), (0,)), (1, 1, 1, 1))
"""Models 0 and 1 on one lane, 2 and 3 on another."""

BESIDE = TWO._replace(lane_of=(0, 0, 0, 0), free_ns=((0,),))


def test_the_part_taken_is_what_the_fastest_models_need():
    assert taken(SHARED, [Demand(ALL, 1.0, 10)], 60) == [pytest.approx(0.5)]
    assert taken(SHARED, [Demand(ALL, 1.0, 1)], 0) == [1.0]  # no time is left
    assert taken(OWN, [Demand(ALL, 1.0, 2)], 85) == [pytest.approx(2 / (85 / 40 + 85 / 75 + 1))] * 3


def test_the_surcharge_rises_from_nothing_to_a_whole_answer():
    costs = [surcharges(SHARED, ALL, [Demand(ALL, 1.0, 5 * step)], 60, 0.1) for step in range(6)]
    assert [row[0] for row in costs[2:]] == pytest.approx([1.0] * 4, abs=0.02)
    assert costs[0] == [0.0] * 3
    assert 0.0 < costs[1][0] < 0.2
    for first, *others in costs:
        assert others == pytest.approx([3 * first, 5 * first])  # by their times


def test_an_ensemble_alone_on_its_lanes_pays_nothing_for_what_happens_on_others():
    calm = [Demand((0, 1), 1.0, 1), Demand((2, 3), 5.0, 0)]
    busy = [Demand((0, 1), 1.0, 1), Demand((2, 3), 5.0, 50)]
    assert taken(TWO, busy, 80) == [pytest.approx(0.05), 1.25]
    assert surcharges(TWO, (0, 1), busy, 80, 0.1) == surcharges(TWO, (0, 1), calm, 80, 0.1)
    assert prices(TWO, busy, 0.1)[0] == pytest.approx(0.1 / 12)


def test_on_a_shared_lane_each_pays_what_the_others_lose():
    """Lane time brings 1 / 4 with the one ensemble's fastest model and 10 / 2 with the other's."""
    alone = surcharges(BESIDE, (0, 1), [Demand((0, 1), 1.0, 10)], 80, 0.1)
    beside = surcharges(BESIDE, (0, 1), [Demand((0, 1), 1.0, 5), Demand((2, 3), 10.0, 10)], 80, 0.1)
    assert beside[0] / alone[0] == pytest.approx((5 * 1 + 10 * 10) / (5 * 4 + 10 * 2) * 4, rel=0.05)
    found = prices(BESIDE, [Demand((0, 1), 1.0, 3), Demand((2, 3), 10.0, 1)], 0.1)
    assert found == [pytest.approx(0.1 * (3 * 1 + 10) / (3 * 12 + 8))]


MANY = Lanes((0, 0, 1, 1), (10, 9, 8, 6), ((5, 25), (0,)), (4, 2, 1, 3))
"""Batches of 2.5, 4.5, 8 and 2 ns a request, the first two models on two lanes."""


def test_a_request_takes_its_part_of_a_full_batch_of_the_fastest_model_of_each_place():
    assert fastest_ns(MANY, (0, 1, 2, 3)) == {0: 3, 1: 2}
    assert fastest_ns(MANY, (1, 2)) == {0: 5, 1: 8}
    assert fastest_ns(MANY, ()) == {}
    assert fastest_ns(MANY._replace(times_ns=(0, 9, 8, 6)), (0, 3)) == {0: 1, 1: 2}


def test_the_part_taken_of_all_lanes_of_an_ensemble():
    """By 45 two lanes have 40 and 20 ns and the other 45: 20 and 22.5 requests."""
    both = 60 / 3 + 45 / 2
    assert taken(MANY, [Demand((0, 1, 2, 3), 1.0, 3)], 45) == pytest.approx([3 / both] * 2)
    assert taken(MANY, [Demand((0, 1), 1.0, 3), Demand((3,), 1.0, 4), Demand((2,), 9.0, 0)], 45) == pytest.approx(
        [3 / 20, 4 / 22.5]
    )
    assert taken(MANY, [Demand((0, 3), 1.0, 2), Demand((1,), 1.0, 1)], 20) == pytest.approx(
        [2 / (15 / 3 + 20 / 2) + 1 / (15 / 5), 2 / (15 / 3 + 20 / 2)]
    )
    assert taken(MANY, [Demand((0, 3), 1.0, 2), Demand((0,), 1.0, 0)], -1) == [1.0, 1.0]
    assert taken(MANY, [Demand((0,), 1.0, 2)], 6) == pytest.approx([2 / (1 / 3), 0.0])


def test_a_nanosecond_of_a_place_costs_a_part_of_what_it_brings_to_its_users():
    demands = [Demand((0, 2), 2.0, 3), Demand((3,), 5.0, 2), Demand((1,), 9.0, 0)]
    assert prices(MANY, demands, 0.5) == pytest.approx([0.5 * 6 / 54, 0.5 * (6 + 10) / (54 + 12)])
    assert prices(MANY, demands[1:2], 0.5) == pytest.approx([0.0, 0.5 * 5 / 6])
    assert prices(MANY, demands[2:], 0.5) == [0.0, 0.0]


@pytest.mark.parametrize("price", [0.01, 0.05, 0.2])
def test_what_each_model_costs_while_some_wait(price):
    """A tenth of one place is taken and a fifth of the other: of the half at which nothing but the fastest is run."""
    demands = [Demand((0, 1, 2), 2.0, 2), Demand((3,), 5.0, 4.5)]
    parts = taken(MANY, demands, 45)
    assert parts == pytest.approx([2 / (20 + 45 / 8), 2 / (20 + 45 / 8) + 4.5 / 22.5])
    lowest = max(0.05, price) * ((3 + 8) / 2) / (10 + 9 + 8)
    shares = [lowest ** (1 - part / 0.5) - lowest for part in parts]
    brings = [2 / 3, (2 * 2 + 4.5 * 5) / (2 * 8 + 4.5 * 2)]
    assert surcharges(MANY, (0, 1, 2), demands, 45, price) == pytest.approx(
        [3 * shares[0] * brings[0], 5 * shares[0] * brings[0], 8 * shares[1] * brings[1]]
    )
    assert surcharges(MANY, (0, 1), [Demand((3,), 5.0, 4.5)], 45, price) == [0.0, 0.0]  # nobody waits for their place


def test_hard_requests_get_one_model_each_while_many_wait_and_more_when_few_do():
    world = make()
    world.arrive("q", count=16)
    assert {run_next(world)[0] for _ in range(8)} == {"a"}
    world = make()
    world.arrive("q", count=1)
    assert [run_next(world)[0] for _ in range(2)] == ["a", "b"]


def test_a_head_that_a_slow_run_would_make_late_lets_another_go_first():
    """The fastest model took 20 ms once: with 6 ms left a request lets one with more time go first."""
    world = make()
    for index in range(5):
        world.arrive("q", at=100 * index)
        while [item for item in world.on_lane.values() if item.lane == "l"]:
            run_next(world, 20 if index == 4 else None)
    world.arrive("q", at=600)
    first = world.work("l").jobs[0].request_id
    world.arrive("q", at=601, slo=18)
    late = first + 1
    world.arrive("q", at=602, slo=90)
    order = []
    while [item for item in world.on_lane.values() if item.lane == "l"]:
        order.append(run_next(world, 12 if not order else None)[1])
    assert order[0] == first
    assert late + 1 in order
    assert late not in order or order.index(late + 1) < order.index(late)


def test_an_answered_request_that_pays_for_no_more_is_answered_at_once():
    """0.04 more is above ``stop`` but less than 0.1 * (9 + 15) / 27, so that no plan would ever run them."""
    poor = {"models": ["a", "b", "c"], "edges": [], "agreement": [[0, 0.96, 0.96, 0.975, 0.96, 0.975, 0.975, 1]]}
    world = make(ensemble=poor, on_late="answer")
    assert world.arrive("q") == [ran("a", 1)]
    world.finish("l", at=3)
    assert [item.model for item in world.on_lane.values()] == ["vote"]


def test_a_lone_new_request_does_not_end_one_that_has_time_for_more_models_on_the_lane():
    """The fastest model of the new one goes first; it used to be all that was planned, and the other was answered."""
    world = make(slo="200ms")
    world.arrive("q")
    world.arrive("q", at=2)
    ran_models = []
    while [item for item in world.on_lane.values() if item.lane == "l"]:
        ran_models.append(run_next(world))
    assert {(model, number) for model in "abc" for number in (1, 2)} == set(ran_models)
