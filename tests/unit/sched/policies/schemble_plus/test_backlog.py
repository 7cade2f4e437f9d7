"""What lane time costs while requests wait, and what schemble+ does about it."""

from __future__ import annotations

from hand_world import Driver, ran

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
