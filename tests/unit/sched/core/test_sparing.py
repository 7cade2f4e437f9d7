"""Others go first where a normal batch can wait for them: it could make a critical request late, or will be fuller."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver

from edgeserve.sched.latency.lane_gaps import DISPATCH_EVERY
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.fifo import Fifo

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


def beside_sequences(spare, steps=32, gap_ms=0, other="fifo"):
    """What a lane starts for which a frame waits that has ``spare`` milliseconds, and a sequence of 10 ms per step.
    More frames are expected meanwhile, and sequences were given up lately."""
    models = {"frame": {1: 20, 2: 22, 4: 26, "lanes": ["l"]}, "words": {1: 10, "lanes": ["l"]}}
    apps = {
        "frame": {"model": "frame", "slo": "1s", "policy": "one"},
        "words": {"model": "words", "slo": "100s", "policy": "other", "value": 0.2},
    }
    policies = {"one": {"kind": "edf"}, "other": {"kind": other}}
    world = Driver(models, apps, policy=policies, lane={"l": {"wait": False}}, sequences={"words": (100, 10, 4)})
    hands_over(world, gap_ms)
    for at in range(0, 600, 30):
        world.arrive("frame", at=at, count=4)
        world.finish("l", at=at + 26)
    hints = {"steps": steps, "tokens": 10}
    world.arrive("frame", at=600)
    world.arrive("words", at=601, slo=1, hints=hints)
    world.arrive("frame", at=614, slo=6 + 20 + spare)
    world.arrive("words", at=614, hints=hints)
    world.finish("l", at=620)
    return world.work("l")


@pytest.mark.parametrize(
    ("spare", "steps"), [(9, 0), (10, 1), (19, 1), (20, 2), (39, 2), (40, 4), (319, 16), (320, 32), (900, 32)]
)
def test_while_a_batch_fills_sequences_make_as_many_steps_as_it_can_wait_for_a_power_of_two(spare, steps):
    work = beside_sequences(spare)
    if not steps:
        assert work.model == "frame"
    else:
        assert (work.model, work.steps_max, work.expected_ns) == ("words", steps, steps * 10 * MS)


@pytest.mark.parametrize(("spare", "steps"), [(40, 2), (41, 4)])
def test_while_a_batch_fills_the_gap_before_it_counts(spare, steps):
    assert beside_sequences(spare, gap_ms=1).steps_max == steps


class Hopeful(Fifo):
    """Expects batches to take half of what they take."""

    def bid(self, lane, board):
        bid = super().bid(lane, board)
        if bid is not None:
            bid.expected_ns //= 2
        return bid


def test_fewer_steps_are_expected_to_take_no_less_than_one(monkeypatch):
    monkeypatch.setitem(POLICIES, "hopeful", Hopeful)
    work = beside_sequences(10, other="hopeful")
    assert (work.steps_max, work.expected_ns) == (1, 10 * MS)
