"""Others go first where a normal batch can wait for them: it could make a critical request late, or will be fuller."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver

from edgeserve.sched.latency.lane_gaps import DISPATCH_EVERY

TIMES = {"control": 2, "long": 60, "short": 5}


def make(klass="critical", slo="1s", short="normal", other="fifo", **sections):
    apps = {
        "control": {"model": "control", "slo": "30ms", "class": klass, "policy": "one"},
        "long": {"model": "long", "slo": slo, "value": 2.0, "policy": "one"},
        "short": {"model": "short", "slo": "1s", "class": short, "policy": "other"},
    }
    models = {name: {1: time, "lanes": ["l"]} for name, time in TIMES.items()}
    policies = {"one": {"kind": "edf"}, "other": {"kind": other}}
    return hands_over(Driver(models, apps, policy=policies, lane={"l": {}}, **sections))


def hands_over(world, gap_ms=0):
    """Its lane was measured to need so long between two batches."""
    for _ in range(DISPATCH_EVERY):
        world.scheduler.state.lanes["l"].dispatch_gap.took(gap_ms * MS)
    return world


def started(world, **short):
    """What a lane starts for which both wait, five milliseconds after a request of a control loop."""
    for at in range(0, 200, 20):
        world.arrive("control", at=at)
        world.finish("l", at=at + 2)
    world.arrive("control", at=200)
    world.arrive("long", at=201)
    world.arrive("short", at=201, **short)
    world.finish("l", at=202)
    return world.work("l")


def test_a_batch_that_is_over_before_the_next_critical_request_goes_first():
    assert started(make()).model == "short"


def test_nothing_is_kept_for_requests_that_are_not_critical():
    assert started(make(klass="normal")).model == "long"


def test_a_batch_that_cannot_wait_goes_first_all_the_same():
    assert started(make(slo="64ms")).model == "long"


def test_no_background_work_goes_before_it():
    assert started(make(short="background")).model == "long"


@pytest.mark.parametrize(("slo", "model"), [(1 + 5 + 60, "short"), (1 + 4 + 60, "long")])
def test_it_waits_for_work_of_others_only_if_it_has_the_time(slo, model):
    assert started(make(slo=f"{slo}ms")).model == model


@pytest.mark.parametrize(("slo", "model"), [(1 + 5 + 1 + 60, "short"), (1 + 5 + 60, "long")])
def test_nor_is_it_late_by_the_gap_between_two_batches(slo, model):
    assert started(hands_over(make(slo=f"{slo}ms"), 1)).model == model


@pytest.mark.parametrize("other", ["edf", "fifo"])  # fifo bids by the careful estimate itself
@pytest.mark.parametrize(("slo", "model"), [(1 + 8 + 60, "short"), (1 + 7 + 60, "long")])
def test_work_of_others_counts_with_the_time_that_it_may_take_beyond_what_is_likely(slo, model, other):
    world = make(slo=f"{slo}ms", other=other)
    for number, took_ms in enumerate([8, *[5] * 9]):
        world.scheduler.state.latency["short", "l"].observe(number, 1, took_ms * MS)
    assert started(world).model == model


@pytest.mark.parametrize(("slo", "model"), [(1 + 3 * 5 + 60, "short"), (1 + 2 * 5 + 60, "long")])
def test_it_waits_for_all_steps_of_sequences_or_for_none(slo, model):
    work = started(make(slo=f"{slo}ms", sequences={"short": (100, 10, 4)}), hints={"steps": 3, "tokens": 10})
    assert (work.model, work.steps_max) == (model, 3 if model == "short" else None)
