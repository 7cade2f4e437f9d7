"""A normal batch that could make the next critical request late lets others go first, where it can wait for them."""

from __future__ import annotations

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
