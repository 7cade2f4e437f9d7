"""What schemble+ leaves to the other apps on its lanes, and how early its models end for a join that waits."""

from __future__ import annotations

import pytest
from hand_world import Driver

from edgeserve.config.ensemble_profile import monotone
from edgeserve.sched.policies.schemble_plus.others import Taken

HARD = [0, 0.8, 0.8, 0.9, 0.8, 0.9, 0.9, 1]
TIMES = {"a": 10, "b": 40, "c": 40, "frames": 4, "vote": 1, "side": 20}


def make(row=HARD, slo="400ms", camera="12ms", value=1.0, klass="normal"):
    """Three models and a camera on one lane; another app on the lane of the vote."""
    models = {name: {1: time, "lanes": ["v" if name in ("vote", "side") else "l"]} for name, time in TIMES.items()}
    nodes = [{"name": name, "after": []} for name in "abc"]
    nodes.append({"name": "vote", "after": ["a", "b", "c"], "join": "policy"})
    return Driver(
        models,
        {
            "q": {
                "node": nodes,
                "slo": slo,
                "value": value,
                "ensemble": {"models": ["a", "b", "c"], "agreement": [monotone(row)]},
            },
            "camera": {"model": "frames", "slo": camera, "class": klass},
            "other": {"model": "side", "slo": "100ms"},
        },
        policy={"schemble+": {}},
        lane={"l": {}, "v": {}},
    )


def on(world, lane):
    return [item.model for item in world.on_lane.values() if item.lane == lane]


def run(world, lane="l"):
    """Let the work of a lane take its time; its model."""
    work = world.work(lane)
    world.finish(lane, at=max(world.now_ms, world.given_ms[work.work_id] + TIMES[work.model]))
    return work.model


def film(world, period, until, start=0):
    """Frames at a period, each answered before the next."""
    for at in range(start, until, period):
        world.arrive("camera", at=at)
        run(world)


def test_a_request_with_an_answer_takes_no_lane_time_that_brings_more_to_others():
    """Another model adds 0.1 of 90 ms and takes 40: most frames that come meanwhile, each of 4 ms, could not wait."""
    calm, busy = make(), make()
    film(busy, 5, 200)
    for world in (calm, busy):
        world.arrive("q", at=200)
        assert run(world) == "a"
    assert on(calm, "l") == ["b"]
    assert on(busy, "l") == []
    assert on(busy, "v") == ["vote"]


def test_a_model_that_could_make_a_critical_request_late_is_left_out_where_there_is_an_answer():
    critical, normal = make(klass="critical"), make()
    for world in (critical, normal):
        film(world, 20, 201)
        world.arrive("q", at=205)
        assert run(world) == "a"
    assert on(normal, "l") == ["b"]
    assert on(critical, "l") == []


def test_frames_that_can_wait_leave_their_lane_to_the_models():
    world = make(camera="200ms")
    film(world, 40, 400)
    world.arrive("q", at=400)
    assert [run(world), run(world), run(world)] == ["a", "b", "c"]


def test_the_price_for_requests_to_come_falls_where_hardly_any_come():
    """0.018 more is less than the price of a model, 0.05 * 40 / 90, and more than ``stop``."""
    world = make([0, 0.964, 0.9, 0.982, 0.9, 0.982, 0.9, 1])
    world.arrive("q")
    run(world)
    assert on(world, "v") == ["vote"]  # nothing is known of the rate
    run(world, "v")
    for at in (1000, 2000):
        world.arrive("q", at=at)
        while world.on_lane:
            run(world, next(iter(world.on_lane.values())).lane)
    world.arrive("q", at=3000)
    assert [run(world), run(world), run(world)] == ["a", "b", "c"]


def test_the_part_of_its_time_that_others_take_of_a_lane_is_known_after_a_quarter_of_a_second():
    world, taken = make(), Taken()
    lanes, board = [world.scheduler.state.lanes["l"]], world.scheduler.state.board
    known = {}
    for at in range(0, 4000, 10):  # frames of 4 ms
        film(world, 10, at + 10, start=at)
        world.step(at=at + 10)
        known[at + 10] = taken.part(lanes, frozenset("q"), board)
    assert known[250] is None
    assert known[260] == pytest.approx(0.4, rel=0.05) and known[4000] == pytest.approx(0.4, rel=0.05)
