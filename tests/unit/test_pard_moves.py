"""Jobs of pard do not stay with a lane that cannot run them while another can."""

from __future__ import annotations

import pytest
from hand_world import Driver, ended, ids, ran


def devices(resident, shared=False, **app):
    """Model m may run on two devices; with ``shared`` both lanes serve a second module of pard, too."""
    models = {"m": {1: 10, "memory": "60MB", "load": "5ms"}, "z": {1: 10, "memory": "60MB", "load": "5ms"}}
    apps = {"app": {"model": "m", "policy": "pard", "slo": "100ms", **app},
            "other": {"model": "z", "policy": "pard" if shared else "fifo", "slo": "400ms"}}
    return Driver(models, apps, policy={"pard": {"lam": 0.0}, "fifo": {}},
                  resident={"d0": resident, "d1": resident},
                  device={"d0": {"memory": "100MB"}, "d1": {"memory": "100MB"}},
                  lane={"l0": {"device": "d0"}, "l1": {"device": "d1"}})


@pytest.mark.parametrize("shared", [False, True])
def test_what_waits_for_a_model_that_is_not_loaded_here_runs_where_it_is_in_memory(shared):
    world = devices([], shared, on_late="answer")
    world.arrive("app", count=2)  # one waits for each lane, and both devices load the model
    world.finish("copy:d1", failed="out of memory", at=4)
    assert ran("m", 1) in world.finish("copy:d0", at=5)  # the other load is not tried again: this copy serves
    assert ran("m", 2) in world.finish("l0", at=15)
    world.finish("l0", at=25)
    assert [world.outcome(number) for number in (1, 2)] == ["completed"] * 2


def test_a_lane_that_is_gone_gives_its_jobs_to_one_whose_model_is_in_memory():
    world = devices(["m"])
    world.arrive("app", count=4)
    assert ids(world.work("l0").jobs) == [1] and ids(world.work("l1").jobs) == [2]
    assert ended(2, "failed") in world.lane("l1", up=False, at=1)
    for number in (3, 4):
        assert ran("m", number) in world.finish("l0", at=10 * number - 20)
