"""Functions that policies share: worth, taking from queues, earliest ends, refusals, classes."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, app_of, job

from edgeserve.sched.policies.common.bidding import (
    Utility,
    best_class,
    bid_for,
    take,
)
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.protocol.actions import LatencyBreakdown
from edgeserve.sched.published.orloj.distribution import Distribution
from edgeserve.sched.published.orloj.likely import LikelyUtility
from edgeserve.sched.resources.lanes import Lane

APP = app_of("m")
PIPE = {"a": [{"name": "x"}, {"name": "y"}, {"name": "z"}]}
PIPE_MODELS = {"x": {1: 10}, "y": {1: 20}, "z": {1: 5}}


def test_worth_counts_each_request_at_its_own_deadline_times_its_value():
    worth = Utility([job(1, APP, deadline=50, worth=10), job(2, APP, deadline=30, worth=10, value=3)], 20 * MS)
    assert worth.value(10 * MS) == 40 * MS
    assert worth.value(10 * MS + 1) == 10 * MS
    assert worth.value(30 * MS) == 10 * MS
    assert worth.value(30 * MS + 1) == 0


def test_what_is_answered_late_keeps_less_the_later_it_comes():
    worth = Utility([job(1, APP, deadline=100, worth=10, on_late="answer")], 10 * MS)
    assert worth.value(90 * MS) == 10 * MS
    assert worth.value(190 * MS) == pytest.approx(5 * MS)  # one SLO late: half
    assert worth.value(390 * MS) == pytest.approx(2.5 * MS)


def test_several_parts_of_a_request_count_it_once():
    parts = [job(seq, APP, id=1, part=[seq], worth=10) for seq in (1, 2, 3)]
    assert Utility([*parts, job(4, APP, id=2, part=[0], worth=7)], 0).value(0) == 17 * MS


def frame(**fields):
    """A camera's frame whose successor is expected 60 to 66 ms after the start of the test."""
    made = job(1, APP, deadline=fields.pop("deadline", 200), worth=10)
    made.request.successor_ns = (60 * MS, 66 * MS)
    for name, value in fields.items():
        setattr(made.request, name, value)
    return made


def known_time(jobs, *now):
    """The delivered worth of a batch of 20 ms."""
    return Utility(jobs, 20 * MS, *now)


def uncertain_time(jobs, *now):
    """The expected worth of a batch of 20 to 40 ms."""
    return LikelyUtility(jobs, Distribution([20.0 * MS, 40.0 * MS], [0.5, 1.0]), 0, *now)


@pytest.fixture(params=[known_time, uncertain_time])
def utility(request):
    return request.param


def test_a_frame_counts_if_it_begins_before_the_next_one_comes(utility):
    worth = utility([frame()], 0)
    assert worth.value(60 * MS) == 10 * MS  # in any time
    assert worth.value(60 * MS + 1) == 0


def test_when_the_next_frame_is_late_the_latest_counts_and_then_the_deadline(utility):
    assert utility([frame()], 60 * MS + 1).value(66 * MS) == 10 * MS
    assert utility([frame()], 60 * MS + 1).value(66 * MS + 1) == 0
    assert utility([frame()], 66 * MS + 1).value(160 * MS) == 10 * MS
    assert utility([frame()], 66 * MS + 1).value(200 * MS) == 0


@pytest.mark.parametrize("begun", [{"running": 1}, {"breakdown": LatencyBreakdown(execute_ns=1)}])
def test_the_next_frame_does_not_end_one_that_has_begun(utility, begun):
    assert utility([frame(**begun)], 0).value(160 * MS) == 10 * MS


def test_a_deadline_before_the_next_frame_stays_and_others_in_the_batch_keep_theirs(utility):
    assert utility([frame(deadline=30)], 0).value(30 * MS) == 0
    both = utility([job(2, APP, deadline=200, worth=7), frame()], 0)
    assert both.value(60 * MS) == 17 * MS
    assert both.value(60 * MS + 1) == 7 * MS


def test_jobs_whose_state_another_lane_holds_stay_in_the_queue():
    queue = JobQueue()
    jobs = [job(seq, APP) for seq in range(1, 7)]
    for made in jobs:
        queue.add(0, made)
    jobs[1].lane, jobs[2].lane = "other", "here"
    here = Lane("here", "d")
    assert take(queue, here, 0, 3) == [jobs[0], jobs[2], jobs[3]]
    assert take(queue, here, 3, 9) == jobs[3:]
    assert take(queue, here, 1, 0) == []


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (["background"], "background"),
        (["background", "normal"], "normal"),
        (["normal", "critical"], "critical"),
        (["critical", "background"], "critical"),
    ],
)
def test_a_batch_counts_as_its_most_urgent_member(classes, expected):
    assert (
        best_class([job(number, APP, priority_class=priority_class) for number, priority_class in enumerate(classes)])
        == expected
    )


def test_a_bid_counts_the_rest_of_the_pipeline():
    world = Driver(PIPE_MODELS, PIPE)
    app = world.scheduler.state.apps["a"]
    bid = bid_for([job(1, app, node="x", deadline=36, worth=35)], 1, 10 * MS, world.scheduler.state.board)
    assert bid.remaining_ns == 35 * MS
    assert bid.utility.value(1 * MS) == 35 * MS
    assert bid.utility.value(1 * MS + 1) == 0
    last = bid_for([job(1, app, node="z", deadline=36)], 1, 5 * MS, world.scheduler.state.board)
    assert last.remaining_ns == 5 * MS


def test_the_earliest_end_looks_at_every_lane_that_is_up_and_at_loads():
    models = {"m": {1: 10, "memory": "60MB", "load": "7ms"}, "n": {1: 10, "memory": "60MB", "load": "7ms"}}
    world = Driver(
        models,
        {"am": "m", "an": "n"},
        resident={"cpu": ["m"]},
        device={"cpu": {"memory": "100MB"}},
        lane={"l0": {}, "l1": {}},
    )
    board = world.scheduler.state.board
    world.arrive("am", at=5)
    assert board.earliest_end_ns("m") == 15 * MS  # l1 is idle
    world.lane("l1", up=False)
    assert board.earliest_end_ns("m") == 25 * MS
    assert board.earliest_end_ns("n") == 25 * MS  # loaded before the lane is free
    world.lane("l0", up=False, at=6)
    assert board.earliest_end_ns("m") is None
