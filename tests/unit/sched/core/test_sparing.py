"""Others go first where a normal batch can wait for them: it could make a critical request late, or will be fuller."""

from __future__ import annotations

import pytest
from hand_world import Driver

TIMES = {"control": 2, "long": 60, "short": 5}


def make(klass="critical", slo="1s"):
    apps = {
        "control": {"model": "control", "slo": "30ms", "class": klass, "policy": "one"},
        "long": {"model": "long", "slo": slo, "value": 2.0, "policy": "one"},
        "short": {"model": "short", "slo": "1s", "policy": "other"},
    }
    models = {name: {1: time, "lanes": ["l"]} for name, time in TIMES.items()}
    return Driver(models, apps, policy={"one": {"kind": "edf"}, "other": {"kind": "fifo"}}, lane={"l": {}})


def started(world):
    """The model that a lane starts for which both wait, five milliseconds after a request of a control loop."""
    for at in range(0, 200, 20):
        world.arrive("control", at=at)
        world.finish("l", at=at + 2)
    world.arrive("control", at=200)
    world.arrive("long", at=201)
    world.arrive("short", at=201)
    world.finish("l", at=202)
    return world.work("l").model


def test_a_batch_that_is_over_before_the_next_critical_request_goes_first():
    assert started(make()) == "short"


def test_nothing_is_kept_for_requests_that_are_not_critical():
    assert started(make(klass="normal")) == "long"


def test_a_batch_that_cannot_wait_goes_first_all_the_same():
    assert started(make(slo="64ms")) == "long"


def filling(every=40, slo=1000, value=0.5, is_given_up=True):
    """The model that a lane starts for which a frame and a short work wait. Two frames came each so many milliseconds:
    alone, the batch of one takes 20 ms, of two together 22."""
    models = {"frame": {1: 20, 2: 22, "lanes": ["l"]}, "short": {1: 15, "lanes": ["l"]}}
    apps = {
        "frame": {"model": "frame", "slo": "1s", "policy": "one"},
        "short": {"model": "short", "slo": "1s", "policy": "other", "value": value},
    }
    world = Driver(
        models, apps, policy={"one": {"kind": "edf"}, "other": {"kind": "fifo"}}, lane={"l": {"wait": False}}
    )
    for at in range(0, 20 * every, every):
        world.arrive("short", at=at)
        world.arrive("frame", at=at + 1)
        world.arrive("frame", at=at + 2)
        world.finish("l", at=at + 15)
        world.finish("l", at=at + 37)
    at = 20 * every
    world.arrive("frame", at=at)
    if is_given_up:
        world.arrive("short", at=at + 1, slo=1)
    world.arrive("frame", at=at + 14, slo=slo)
    world.arrive("short", at=at + 14)
    world.finish("l", at=at + 20)
    return world.work("l").model


def test_others_that_are_given_up_lately_go_first_while_a_batch_fills():
    assert filling() == "short"


@pytest.mark.parametrize(
    "circumstances",
    [{"is_given_up": False}, {"slo": 40}, {"every": 200}],
    ids=["nobody is given up", "it cannot wait", "nobody is expected meanwhile"],
)
def test_a_batch_that_need_not_or_cannot_wait_does_not(circumstances):
    assert filling(**circumstances) == "frame"
