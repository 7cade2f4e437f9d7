"""What policies share: worth, taking from queues, earliest ends, refusals, classes."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, app_of, job

from edgeserve.sched.policies.common.bidding import Utility, best_class, bid_for, earliest_end_ns, take
from edgeserve.sched.policies.common.job_queue import JobQueue
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


@pytest.mark.parametrize(("classes", "expected"), [
    (["background"], "background"), (["background", "normal"], "normal"), (["normal", "critical"], "critical"),
    (["critical", "background"], "critical")])
def test_a_batch_counts_as_its_most_urgent_member(classes, expected):
    assert best_class([job(number, APP, klass=klass) for number, klass in enumerate(classes)]) == expected


def test_a_bid_counts_the_rest_of_the_pipeline():
    world = Driver(PIPE_MODELS, PIPE)
    app = world.scheduler.state.apps["a"]
    bid = bid_for([job(1, app, node="x", deadline=36, worth=35)], 1, 10 * MS, world.scheduler.state.board)
    assert bid.remaining_ns == 35 * MS
    assert bid.utility.value(1 * MS) == 35 * MS
    assert bid.utility.value(1 * MS + 1) == 0
    last = bid_for([job(1, app, node="z", deadline=36)], 1, 5 * MS, world.scheduler.state.board)
    assert last.remaining_ns == 5 * MS


def test_a_bid_counts_the_steps_that_an_iterative_job_still_needs():
    world = Driver({"m": {1: 10}}, {"a": "m"})
    iterative = job(1, world.scheduler.state.apps["a"], deadline=100, hints={"steps": 4})
    assert bid_for([iterative], 1, 10 * MS, world.scheduler.state.board).remaining_ns == 40 * MS
    iterative.steps = 3
    assert bid_for([iterative], 1, 10 * MS, world.scheduler.state.board).remaining_ns == 10 * MS


def test_the_earliest_end_looks_at_every_lane_that_is_up_and_at_loads():
    models = {"m": {1: 10, "memory": "60MB", "load": "7ms"}, "n": {1: 10, "memory": "60MB", "load": "7ms"}}
    world = Driver(models, {"am": "m", "an": "n"}, resident={"cpu": ["m"]}, device={"cpu": {"memory": "100MB"}},
                   lane={"l0": {}, "l1": {}})
    board = world.scheduler.state.board
    world.arrive("am", at=5)
    assert earliest_end_ns("m", board) == 15 * MS  # l1 is idle
    world.lane("l1", up=False)
    assert earliest_end_ns("m", board) == 25 * MS
    assert earliest_end_ns("n", board) == 25 * MS  # loaded before the lane is free
    world.lane("l0", up=False, at=6)
    assert earliest_end_ns("m", board) is None


def test_the_earliest_end_of_a_loading_model_is_after_its_load():
    models = {"m": {1: 10, "memory": "60MB", "load": "7ms"}}
    world = Driver(models, {"am": "m"}, resident={"cpu": []}, device={"cpu": {"memory": "100MB"}})
    world.arrive("am", at=5)
    world.now_ms = 6
    world.step()
    assert earliest_end_ns("m", world.scheduler.state.board) == 22 * MS
