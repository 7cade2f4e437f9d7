"""What schemble+ leaves to the other apps on its lanes, and how early its models end for a join that waits."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver

from edgeserve.config.ensemble_profile import monotone
from edgeserve.sched.policies.schemble_plus.others import OtherApp, charges, dearness, others_on

HARD = [0, 0.8, 0.8, 0.9, 0.8, 0.9, 0.9, 1]
TIMES = {"a": 10, "b": 40, "c": 40, "frames": 4, "vote": 1, "side": 20}


def make(row=HARD, slo="400ms", camera="12ms", value=1.0):
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
            "camera": {"model": "frames", "slo": camera},
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


def test_lane_time_costs_the_more_the_more_of_it_is_asked_for():
    assert dearness(0.0) == 0.0
    assert dearness(1.0) == dearness(3.0) == 1.0
    assert 0.1 < dearness(0.5) < 0.3


def test_a_batch_costs_the_time_of_others_or_the_requests_that_cannot_wait_for_its_end():
    camera = OtherApp(0.1, 5.0, 10.0, 20.0)  # a request in 10, of 5, worth 10, that can wait for 20: half of the lane
    (short, long) = charges([10, 100], [(10, 1), (100, 1)], 1, 0.5, [camera])
    assert short == pytest.approx(10 * 2.0)  # all of the lane is asked for: what its time brings
    assert long == pytest.approx(100 * 2.0)
    (short, long) = charges([10, 100], [(10, 1), (100, 1)], 1, 0.0, [camera])
    assert short == pytest.approx(10 * 2.0 * dearness(0.5))
    assert long == pytest.approx(0.1 * 10.0 * (100 - 20))  # those that come in the first 80
    assert charges([100], [(100, 2)], 1, 0.0, [camera]) == [pytest.approx(0.1 * 10.0 * 80 / 2)]
    assert charges([100], [(100, 1)], 1, 1.0, []) == [0.0]
    assert charges([100], [(100, 1)], 1, 1.0, [OtherApp(0.1, 0.0, 10.0, 20.0)]) == [0.0]  # it needs nothing here


def test_lane_time_is_a_twentieth_at_least_and_rises_exponentially():
    assert [dearness(asked) for asked in (0.25, 0.5, 0.75)] == pytest.approx(
        [(0.05**0.75 - 0.05) / 0.95, (0.05**0.5 - 0.05) / 0.95, (0.05**0.25 - 0.05) / 0.95]
    )


def test_who_can_wait_for_a_batch_does_not_make_up_for_who_cannot():
    """On two lanes with a third of one's own: one app loses a request in 80 ns, the other could wait for ever."""
    camera, calm = OtherApp(0.1, 2.0, 10.0, 20.0), OtherApp(0.2, 0.5, 30.0, 900.0)
    found = charges([4, 100, 20], [(8, 2), (100, 1), (21, 3)], 2, 0.3, [camera, calm])
    per_ns = (0.1 * 10 + 0.2 * 30) / (0.2 + 0.1) * dearness(0.3 / 2 + 0.3)
    assert found == pytest.approx([4 * per_ns, 100 * per_ns, 20 * per_ns])
    found = charges([4, 1, 1], [(8, 2), (100, 2), (20, 1)], 2, 0.0, [camera, calm])
    low = (0.1 * 10 + 0.2 * 30) / (0.2 + 0.1) * dearness(0.3 / 2)
    assert found == pytest.approx([4 * low, max(low, 0.1 * 10 * 80 / 2 / 2), low])
    calm, dear = OtherApp(0.2, 0.5, 90.0, 21.0), OtherApp(0.001, 2.0, 90.0, 0.0)
    assert charges([0], [(20, 1)], 1, 0.0, [calm, dear]) == [pytest.approx(0.001 * 90 * 20)]
    assert charges([7], [(8, 2)], 1, 0.5, [OtherApp(0.1, 20.0, 10.0, 20.0)]) == [pytest.approx(7 * 0.1 * 10 / 2)]


def test_the_other_apps_of_some_lanes_and_what_they_need_there():
    """A chain needs a third of its 30 ms on the lane; background work and apps that hardly came do not count."""
    models = {
        name: {**times, "lanes": lanes}
        for name, times, lanes in (
            ("here", {1: 15, 2: 20}, ["l"]),
            ("there", {1: 20}, ["m"]),
            ("both", {1: 6}, ["l", "m"]),
        )
    }
    chain = [{"name": "here"}, {"name": "there"}]
    world = Driver(
        models,
        {
            "chain": {"node": chain, "slo": "90ms"},
            "own": "both",
            "calm": "here",
            "elsewhere": "there",
            "late": {"model": "both", "class": "background"},
            "short": "both",
        },
        lane={"l": {}, "m": {}},
    )
    world.step(at=0)
    board = world.scheduler.state.board
    for number, app in enumerate(("chain", "own", "elsewhere", "late", "short"), 1):
        board.recent_arrivals(app).unread += [
            (at * 10 * number * MS, 30.0 * MS, 2.0, 90.0 * MS if app != "short" else 5.0 * MS) for at in range(11)
        ]
    board.now_ns = 1000 * MS
    lanes = {lane.name: lane for lane in board.lanes_of("both")}
    chain = OtherApp(pytest.approx(0.01 / MS), pytest.approx(10 * MS), 60 * MS, 90 * MS - 35 * MS)
    short = OtherApp(pytest.approx(0.01 / MS), 30 * MS, 60 * MS, 0.0)
    elsewhere = OtherApp(pytest.approx(0.01 / MS), 30 * MS, 60 * MS, 70 * MS)
    assert others_on([lanes["l"]], frozenset(["own"]), board) == [chain, short]
    chain = chain._replace(lane_ns=30 * MS)
    assert sorted(others_on(list(lanes.values()), frozenset(["own"]), board)) == sorted([chain, short, elsewhere])


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


def test_models_end_early_enough_for_a_join_that_waits_as_it_did():
    """A join found its lane taken for 19 ms: a model that would end 12 ms before the deadline is too late."""

    def second(waits):
        world = make(slo="62ms", camera="500ms")
        world.arrive("q")
        run(world)
        if waits:
            world.arrive("other", at=49)
        while world.on_lane:
            run(world, "l" if on(world, "l") else "v")
        world.arrive("q", at=500)
        assert run(world) == "a"
        return on(world, "l")

    assert second(False) == ["b"]
    assert second(True) == []


def test_the_models_that_wait_behind_a_bid_count_with_it():
    """The first of the requests that wait could wait for the frame, not all of them behind it."""

    def first(count):
        world = make([0, 0.996, 0.5, 0.997, 0.5, 0.997, 0.997, 1], slo="61ms", camera="6ms")
        world.arrive("q")
        world.arrive("q", at=1, count=count)
        world.arrive("camera", at=9)
        run(world)
        return on(world, "l")

    assert first(1) == ["frames"]
    assert first(5) == ["a"]
