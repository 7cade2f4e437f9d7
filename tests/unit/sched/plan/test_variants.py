"""Variants under the plan: which one answers, by load, by deadline, by quality, and which one other policies run."""

from __future__ import annotations

import pytest
from hand_world import Driver, ended

from edgeserve.sched.protocol.actions import FinishRequest, LoadModel, RunBatch

TIMES = {"full": 40, "medium": 18, "small": 8}
VARIANTS = {"medium": 0.93, "small": 0.8}


def make(policy="plan", variants=None, models=None, resident=None, lanes=None, more=None, **app):
    sizes = {1: 1.0, 2: 1.6, 4: 2.8}
    table = {name: {size: time * part for size, part in sizes.items()} for name, time in TIMES.items()}
    for name, keys in (models or {}).items():
        table[name].update(keys)
    table["full"]["variants"] = VARIANTS if variants is None else variants
    apps = {"camera": {"model": "full", "slo": "150ms", **app}, **(more or {})}
    device = {"device": {"cpu": {"memory": "100MB"}}} if resident else {}
    lane = {"lane": lanes} if lanes else {}
    return Driver(table, apps, policy=policy, resident=resident, **device, **lane)


def ran(world):
    return [action.model for action in world.seen if isinstance(action, RunBatch)]


def serve(world, until=1000):
    """Let every work take its time, until nothing runs."""
    while world.on_lane:
        work = min(world.on_lane.values(), key=lambda item: world.given_ms[item.work_id])
        world.finish(work.lane, at=world.given_ms[work.work_id] + work.expected_ns / 1e6)
    world.pass_time(until)


def burst(world, count=40, every=4.0):
    """Requests at twice the rate that the best variant keeps up with, and then some."""
    for _ in range(count):
        at = world.now_ms + every
        while world.on_lane:
            work = next(iter(world.on_lane.values()))
            ends = world.given_ms[work.work_id] + work.expected_ns / 1e6
            if ends > at:
                break
            world.finish(work.lane, at=ends)
        world.arrive("camera", at=at)
    serve(world, world.now_ms + 1000)


def answers(world):
    return [action for action in world.seen if isinstance(action, FinishRequest) and action.outcome == "completed"]


def test_a_lone_request_is_answered_by_the_best():
    world = make()
    world.arrive("camera")
    world.finish(at=40)
    assert [(end.variant, end.quality) for end in answers(world)] == [("full", 1.0)]


def test_under_overload_the_small_one_answers():
    world = make()
    burst(world)
    by = [end.variant for end in answers(world)]
    assert by[0] == "full"
    assert by.count("small") > len(by) / 2
    assert {end.quality for end in answers(world) if end.variant == "small"} == {0.8}


def test_less_than_the_least_quality_never_runs():
    world = make(least_quality=0.9)
    burst(world)
    assert set(ran(world)) == {"full", "medium"}


def test_less_than_a_request_wants_does_not_run_for_it():
    world = make()
    world.arrive("camera", count=20, quality_min=0.9)
    serve(world)
    assert set(ran(world)) <= {"full", "medium"}


def test_a_request_that_the_best_would_answer_late_gets_a_faster_one():
    world = make()
    world.arrive("camera", slo=30)
    assert ran(world) == ["medium"]


def test_a_request_that_none_would_answer_in_time_is_refused():
    world = make()
    world.arrive("camera", slo=5)
    assert world.of(FinishRequest) == [ended(1, "rejected", "cannot_make_deadline")]


def test_a_variant_that_is_slower_and_worse_never_runs():
    world = make(variants={"medium": 0.7, "small": 0.8})
    burst(world)
    assert "medium" not in ran(world)


def test_the_lane_of_another_app_has_its_price():
    other = {"other": {"model": "other", "slo": "60ms"}}
    sizes = {"full": {}, "medium": {}, "small": {}}
    world = Driver(
        {**{name: {1: TIMES[name]} for name in sizes}, "other": {1: 10}, "full": {1: 40, "variants": VARIANTS}},
        {"camera": {"model": "full", "slo": "150ms"}, **other},
        policy="plan",
    )
    for _ in range(30):
        at = world.now_ms + 12
        while world.on_lane:
            work = next(iter(world.on_lane.values()))
            ends = world.given_ms[work.work_id] + work.expected_ns / 1e6
            if ends > at:
                break
            world.finish(work.lane, at=ends)
        world.arrive("other", at=at)
        if world.now_ms % 48 < 12:
            world.arrive("camera", at=at)
    serve(world, world.now_ms + 1000)
    assert "small" in ran(world) or "medium" in ran(world)


def test_an_idle_lane_runs_nothing_worse_than_what_is_planned():
    world = make(lanes={"a": {}, "b": {}}, models={"full": {"lanes": ["a"]}, "small": {"lanes": ["b"]}})
    world.arrive("camera")
    assert ran(world) == ["full"]


def test_a_refused_batch_is_planned_anew():
    world = make()
    world.arrive("camera")
    world.refuse(at=100)
    serve(world)
    assert ran(world) == ["full", "full"]
    assert world.outcome(1) == "completed"


@pytest.mark.parametrize("policy", ["edf", "fifo"])
def test_policies_that_know_no_variants_run_the_model_itself(policy):
    world = make(policy)
    burst(world, count=6, every=60.0)
    assert set(ran(world)) == {"full"}
    assert {(end.variant, end.quality) for end in answers(world)} == {("full", 1.0)}


def test_what_is_in_memory_answers_while_another_is_not():
    models = {name: {"memory": "60MB", "load": "500ms"} for name in TIMES}
    world = make(models=models, resident={"cpu": ["small"]})
    world.arrive("camera")
    assert [action.model for action in world.seen if isinstance(action, RunBatch)] == ["small"]


def test_where_none_is_in_memory_one_is_loaded():
    models = {name: {"memory": "60MB", "load": "20ms"} for name in TIMES}
    world = make(models=models, resident={"cpu": []})
    world.arrive("camera")
    assert [action.model for action in world.seen if isinstance(action, LoadModel)] == ["full"]
