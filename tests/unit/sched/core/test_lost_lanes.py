"""A lane that is lost for good takes from a request what only that lane would have brought, and no more: each request
has one end, at once where nothing else can serve it."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Dict, List

import pytest
from hand_world import Driver, ended, like, ran

from edgeserve.sched.protocol.actions import LoadModel
from edgeserve.sched.protocol.events import LaneChanged
from edgeserve.testing.soak.run import ENSEMBLES, draw_scenario, hold

LANES = {"l0": {}, "l1": {}}
MODELS = {
    "m": {1: 10, "lanes": ["l0"]},
    "n": {1: 10, "lanes": ["l1"]},
    "end": {1: 10, "lanes": ["l0"]},
}
NODES = [{"name": "m"}, {"name": "n"}, {"name": "end", "after": ["m", "n"]}]
LOST = LaneChanged("l1", up=False, lost=True)


def world_of(on_late: str) -> Driver:
    nodes = [{**node, "after": node.get("after", [])} for node in NODES]
    return Driver(MODELS, {"a": {"node": nodes, "slo": "5s", "on_late": on_late}}, policy="fifo", lane=LANES)


@pytest.mark.parametrize("lost_at", [-1, 5, 15])
def test_an_answer_in_part_goes_on_without_the_lost_lane(lost_at: int) -> None:
    world = world_of("partial")
    world.step(LaneChanged("l1", up=False), at=0)  # so that its branch waits
    if lost_at < 0:
        world.step(LOST, at=0)
    world.arrive("a", at=1)
    if lost_at == 5:
        assert world.step(LOST, at=5) == []
    made = world.finish("l0", at=11)
    if lost_at == 15:
        made = world.step(LOST, at=15)
    assert made == [ran("end", 1, lane="l0")]
    assert world.finish("l0", at=30) == [ended(1, "completed")]


def test_an_answer_in_part_goes_on_without_what_ran_on_the_lost_lane() -> None:
    world = world_of("partial")
    world.arrive("a", at=1)
    del world.on_lane[world.work("l1").work_id]
    assert world.step(LOST, at=5) == []
    assert world.finish("l0", at=11) == [ran("end", 1, lane="l0")]
    assert world.finish("l0", at=30) == [ended(1, "completed")]


@pytest.mark.parametrize("on_late", ["drop", "answer"])
def test_a_whole_answer_fails_with_the_lost_lane(on_late: str) -> None:
    world = world_of(on_late)
    world.step(LOST, at=0)
    assert ended(1, "failed") in world.arrive("a", at=1)


def test_a_trial_fails_with_its_lane() -> None:
    world = Driver(
        {"m": {1: 40}, "n": {1: 10}},
        {"a": {"model": "m", "slo": "33ms"}, "other": {"model": "n", "slo": "1s"}},
        trials=True,
        lane={"l1": {}},
    )
    world.arrive("other")
    assert world.arrive("a") == [], "it waits for the lane, to measure what the estimate says"
    assert world.step(LOST, at=1) == [ended(1, "failed"), ended(2, "failed")]


def of_two_devices(resident: Dict[str, List[str]], on_late: str = "answer") -> Driver:
    return Driver(
        {"m": {1: 10, "memory": "60MB", "load": "2ms"}},
        {"a": {"model": "m", "slo": "5s", "on_late": on_late}},
        policy="fifo",
        device={"d0": {"memory": "100MB"}, "d1": {"memory": "100MB"}},
        lane={"l0": {"device": "d0"}, "l1": {"device": "d1"}},
        resident=resident,
    )


def test_a_model_is_loaded_elsewhere_when_its_lane_is_lost() -> None:
    world = of_two_devices({"d1": ["m"]})
    world.step(LOST, at=0)
    assert world.arrive("a", at=1) == [like(LoadModel, lane="copy:d0", model="m")]


@pytest.mark.parametrize("on_late", ["drop", "answer", "partial"])
def test_what_only_a_lost_copy_lane_could_load_fails(on_late: str) -> None:
    world = of_two_devices({"d0": [], "d1": []}, on_late)
    world.step(LOST, LaneChanged("copy:d0", up=False, lost=True), at=0)
    assert world.arrive("a", at=1) == [ended(1, "failed")]


@pytest.mark.parametrize("policy", ["fifo", "edf", "plan"])
@pytest.mark.parametrize("on_late", ["drop", "answer", "partial"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_branch_that_a_lost_copy_lane_would_load_is_left_out(policy: str, on_late: str, shared: bool) -> None:
    """Also where the branches share a lane besides, so that they are planned together."""
    nodes = [{"after": [], **node} for node in NODES]
    nodes[-1]["join"] = 1
    models = {
        "m": {1: 10, "lanes": ["l0"], "memory": "10MB"},
        "n": {1: 10, "lanes": ["l1"], "memory": "10MB", "load": "2ms"},
        "end": {1: 10, "lanes": ["l0"] if shared else ["l2"], "memory": "10MB"},
    }
    world = Driver(
        models,
        {"a": {"node": nodes, "slo": "5s", "on_late": on_late}},
        policy=policy,
        device={name: {"memory": "100MB"} for name in ("d0", "d1")},
        lane={"l0": {"device": "d0"}, "l1": {"device": "d1"}, "l2": {"device": "d0"}},
        resident={"d0": ["m", "end"], "d1": []},
    )
    world.step(LaneChanged("copy:d1", up=False, lost=True), at=0)
    world.arrive("a", at=1)
    world.finish("l0", at=11)
    world.finish("l0" if shared else "l2", at=30)
    assert world.outcome(1) == "completed", world.scheduler.story(1)
    world.over()


def drawn(draw: random.Random) -> Dict[str, Any]:
    """Branches of one or two nodes, each branch on a lane of its own, and a join that needs some of them."""
    count = draw.randrange(2, 5)
    branches: List[List[str]] = [[f"b{index}", f"c{index}"][: draw.randrange(1, 3)] for index in range(count)]
    nodes: List[Dict[str, Any]] = []
    for names in branches:
        nodes += [{"name": name, "after": list(names[:at])} for at, name in enumerate(names)]
    nodes.append({"name": "end", "after": [names[-1] for names in branches], "join": draw.randrange(1, count + 1)})
    models: Dict[str, Dict[Any, Any]] = {
        name: {1: draw.randrange(1, 20), "lanes": [f"l{index}"]}
        for index, names in enumerate(branches)
        for name in names
    }
    return {"node": nodes, "models": {**models, "end": {1: 5, "lanes": ["home"]}}, "count": count}


@pytest.mark.parametrize("policy", ["fifo", "edf", "plan"])
@pytest.mark.parametrize("on_late", ["drop", "answer", "partial"])
@pytest.mark.parametrize("seed", range(20))
def test_a_join_of_some_branches_goes_on_without_those_whose_lanes_are_lost(policy, on_late, seed) -> None:
    """Before the request comes, while the branch waits for its lane or runs there, or when the join is satisfied."""
    draw = random.Random(f"{seed}/lost")
    graph = drawn(draw)
    world = Driver(
        graph["models"],
        {"a": {"node": graph["node"], "slo": "5s", "on_late": on_late}},
        policy=policy,
        lane={name: {} for name in ("home", *[f"l{index}" for index in range(graph["count"])])},
    )
    gone = draw.sample(range(graph["count"]), draw.randrange(1, graph["count"]))
    down, at = {lane for lane in gone if draw.random() < 0.5}, draw.choice((0, 1, 5, 15, 30))
    if at:
        world.arrive("a", at=0)
    for lane in down:
        world.lane(f"l{lane}", up=False, at=0)
    lost = False
    for now in range(1, 200):
        if now >= at and not lost:
            lost = True
            for lane in gone:
                world.on_lane = {id: work for id, work in world.on_lane.items() if work.lane != f"l{lane}"}
                world.step(LaneChanged(f"l{lane}", up=False, lost=True), at=now)
            if not at:
                world.arrive("a", at=now)
        for work in list(world.on_lane.values()):
            if world.given_ms[work.work_id] + work.expected_ns / 1e6 <= now and work.work_id in world.on_lane:
                world.finish(work.lane, at=now)
    assert world.outcome(1) == "completed", world.scheduler.story(1)
    world.over()


@pytest.mark.parametrize("policy", ["fifo", "edf", "plan"])
def test_a_request_fails_with_the_last_lane_of_its_branches(policy: str) -> None:
    nodes = [{"after": [], **node} for node in NODES]
    nodes[-1]["join"] = 1
    models = {**MODELS, "m": {1: 10, "lanes": ["l1"]}}
    world = Driver(models, {"a": {"node": nodes, "slo": "5s"}}, policy=policy, lane=LANES)
    world.arrive("a", at=1)
    world.lane("l1", up=False, at=1)
    assert [*world.actions, *world.step(LOST, at=2)] == [ended(1, "failed")]


@pytest.mark.parametrize(
    ("kinds", "first", "loss_ms"), [("", 100, 60), ("ensembles", 100, 60), ("language", 100, 60), ("", 136, 10)]
)
def test_every_request_has_its_end_while_lanes_are_lost(kinds: str, first: int, loss_ms: int) -> None:
    """Drawn worlds, held to the reference model: also trials, probes, streams, and what waits for a load. A lane that
    is back soon forgets what was on its way to it."""
    for seed in range(first, first + 6):
        policies = {"policies": ENSEMBLES} if kinds == "ensembles" else {}
        scenario, drain = draw_scenario(seed, language=kinds == "language", **policies)
        faults = dataclasses.replace(
            scenario.faults, lane_loss_every_ns=90_000_000, lane_loss_ns=loss_ms * 1_000_000, gone=0.2
        )
        hold(dataclasses.replace(scenario, faults=faults), seed, drain)
