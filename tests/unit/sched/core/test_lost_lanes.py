"""A lane that is lost for good takes from an answer in part what it would have brought, and no more."""

from __future__ import annotations

import pytest
from hand_world import Driver, ended, ran

from edgeserve.sched.protocol.events import LaneChanged

LANES = {"l0": {}, "l1": {}}
MODELS = {
    "m": {1: 10, "lanes": ["l0"]},
    "n": {1: 10, "lanes": ["l1"]},
    "end": {1: 10, "lanes": ["l0"]},
}
NODES = [{"name": "m"}, {"name": "n"}, {"name": "end", "after": ["m", "n"]}]


def world_of(on_late: str) -> Driver:
    nodes = [{**node, "after": node.get("after", [])} for node in NODES]
    return Driver(MODELS, {"a": {"node": nodes, "slo": "5s", "on_late": on_late}}, policy="fifo", lane=LANES)


@pytest.mark.parametrize("lost_at", [-1, 5, 15])
def test_an_answer_in_part_goes_on_without_the_lost_lane(lost_at: int) -> None:
    world = world_of("partial")
    lost = LaneChanged("l1", up=False, lost=True)
    world.step(LaneChanged("l1", up=False), at=0)  # so that its branch waits
    if lost_at < 0:
        world.step(lost, at=0)
    world.arrive("a", at=1)
    if lost_at == 5:
        assert world.step(lost, at=5) == []
    made = world.finish("l0", at=11)
    if lost_at == 15:
        made = world.step(lost, at=15)
    assert made == [ran("end", 1, lane="l0")]
    assert world.finish("l0", at=30) == [ended(1, "completed")]


@pytest.mark.parametrize("on_late", ["drop", "answer"])
def test_a_whole_answer_fails_with_the_lost_lane(on_late: str) -> None:
    world = world_of(on_late)
    world.step(LaneChanged("l1", up=False, lost=True), at=0)
    assert ended(1, "failed") in world.arrive("a", at=1)
