"""Requests whose models all run for a history, and that no other request is delayed by that."""

from __future__ import annotations

import pytest
from hand_world import Driver

from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.actions import ReleaseInputs, RetainInputs, RunBatch

EASY = {"models": ["a", "b"], "agreement": [[0, 0.999, 0.999, 1]]}
NODES = [
    {"name": "a", "after": []},
    {"name": "b", "after": []},
    {"name": "vote", "after": ["a", "b"], "join": "policy"},
]


def make(kind="ensemble_static", fitted=EASY, share=1.0, slo="200ms"):
    app = {"node": NODES, "slo": slo, "history": "h.npz", "history_share": share}
    if fitted:
        app["ensemble"] = fitted
    return Driver(
        {"a": {1: 10, "lanes": ["l"]}, "b": {1: 30, "lanes": ["l"]}, "vote": {1: 1, "lanes": ["v"]}},
        {"q": app},
        policy={kind: {"pick": "static", "models": ["a"]} if kind == "ensemble_static" else {}},
        lane={"l": {}, "v": {}},
    )


def retained(world):
    return [action.job.node for action in world.seen if isinstance(action, RetainInputs)]


def probes(world):
    return [action.model for action in world.seen if isinstance(action, RunBatch) and action.probe]


def test_the_models_that_a_request_did_not_need_run_when_it_has_its_answer():
    world = make()
    world.arrive("q")
    assert retained(world) == ["a", "b"]
    world.finish("l", at=10)
    assert [action.job.node for action in world.of(ReleaseInputs)] == ["a"]  # it has spoken
    world.finish("v", at=11)
    assert world.outcome(1) == "completed" and probes(world) == ["b"]
    world.finish("l", at=41)
    assert world.scheduler.state.retained == {}


def test_a_probe_waits_for_those_who_need_the_lane():
    world = make(slo="60ms")
    world.arrive("q")
    world.arrive("q", at=5)
    world.finish("l", at=10)
    world.finish("v", at=11)
    assert (world.work("l").probe, world.work("l").jobs[0].request_id) == (False, 2)


def test_the_share_is_kept_and_the_same_requests_are_drawn_again():
    def drawn():
        world = make(share=0.25)
        for number in range(200):
            world.arrive("q", at=300 * number)
            world.finish("l", at=300 * number + 10)
            world.finish("v", at=300 * number + 11)
            if world.on_lane:
                world.finish("l", at=300 * number + 100)
        return [action.job.request_id for action in world.seen if isinstance(action, RetainInputs)]

    first = drawn()
    assert 30 <= len(set(first)) <= 70
    assert drawn() == first


def test_a_lane_that_never_idles_has_few_inputs_kept():
    world = make(slo="10s")
    for number in range(40):
        world.arrive("q", at=number)
    assert len({job.request.id for job in world.scheduler.state.retained.values()}) == 8


def test_a_model_that_fails_ends_the_record():
    world = make(fitted=None)
    world.arrive("q")
    world.finish("l", at=10, status="failed")
    assert world.scheduler.state.retained == {}


@pytest.mark.parametrize("kind", ["schemble", "plan"])
def test_the_other_policies_of_ensembles_record_too(kind):
    world = make(kind)
    world.arrive("q")
    assert retained(world) == ["a", "b"]


def test_other_policies_and_other_apps_say_that_they_cannot():
    with pytest.raises(ConfigError, match=r"\[app.q\] history: policy 'edf' is of kind 'edf'.*schemble"):
        make("edf")
    with pytest.raises(ConfigError, match="no ensemble"):
        Driver({"a": {1: 10}}, {"q": {"model": "a", "history": "h.npz"}}, policy={"schemble": {}})
