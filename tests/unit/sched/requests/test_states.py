"""The two tables: every pair that they hold, every pair that they do not, and the story in what is raised."""

from __future__ import annotations

import itertools

import pytest
from hand_world import app_of, job

from edgeserve.errors import PolicyError
from edgeserve.sched.protocol.actions import LatencyBreakdown
from edgeserve.sched.requests import states
from edgeserve.sched.requests.states import JOB_TABLE, REQUEST_TABLE, move_job, move_request, steps_left

STORY_LEN_MAX = 256
STATES = {state for pair in REQUEST_TABLE for state in (pair[0], REQUEST_TABLE[pair])}
JOB_STATES = {state for pair in JOB_TABLE for state in (pair[0], JOB_TABLE[pair])}


def pairs(states, table):
    return sorted(itertools.product(sorted(states), sorted({what for _, what in table})))


@pytest.mark.parametrize(("state", "what"), pairs(STATES, REQUEST_TABLE))
def test_a_request_moves_by_the_table_or_raises_and_stays(state, what):
    request = job(1, app_of("m")).request
    request.state = state
    request.note(5_000_000, "launched")
    if (state, what) in REQUEST_TABLE:
        move_request(request, what)
        assert request.state == REQUEST_TABLE[state, what]
    else:
        with pytest.raises(PolicyError, match=rf"request 1 is {state}: it cannot {what}\n(.|\n)*\+5ms: launched"):
            move_request(request, what)
        assert request.state == state


@pytest.mark.parametrize(("state", "what"), pairs(JOB_STATES, JOB_TABLE))
def test_a_job_moves_by_the_table_or_raises_and_stays(state, what):
    made = job(1, app_of("m"))
    made.state = state
    if (state, what) in JOB_TABLE:
        move_job(made, what)
        assert made.state == JOB_TABLE[state, what]
    else:
        with pytest.raises(PolicyError, match=rf"cannot {what}\nrequest 1 of app a"):
            move_job(made, what)
        assert made.state == state


def test_a_request_has_one_end_and_nothing_follows_it():
    assert {state for state in STATES if not any(pair[0] == state for pair in REQUEST_TABLE)} == states.ENDS
    assert {JOB_TABLE[pair] for pair in JOB_TABLE} - {pair[0] for pair in JOB_TABLE} == {"done", "failed", "gone"}


def test_whatever_a_lane_says_of_an_orphan_makes_it_gone():
    assert {following for (state, _), following in JOB_TABLE.items() if state == "orphan"} == {"gone"}


def test_a_story_tells_times_from_arrival_and_is_bounded():
    request = job(1, app_of("m"), arrival=100, deadline=150, priority_class="critical").request
    for index in range(STORY_LEN_MAX + 5):
        request.note(100_000_000 + index * 1_000, "line", index)
    story = request.story()
    assert story[0] == "request 1 of app a: new, class critical, deadline 50ms after it was asked"
    assert story[1:3] == ["  +0ns: line 0", "  +1us: line 1"]
    assert story[-1] == f"  (the story is cut after {STORY_LEN_MAX} lines)"
    assert len(story) == STORY_LEN_MAX + 2


@pytest.mark.parametrize(
    ("total", "hint", "made", "left"),
    [
        (0, None, 0, 1),
        (0, None, 3, 1),
        (0, 20, 0, 20),
        (0, 20, 19, 1),
        (0, 20, 20, 1),
        (0, 20, 30, 1),
        (30, 20, 10, 20),
        (30, 20, 29, 1),
        (30, 20, 30, 1),
        (30, None, 40, 1),
    ],
)
def test_at_least_one_step_is_left_of_those_said_or_declared(total, hint, made, left):
    for nodes, name in (("m", "steps"), (["m", "n"], "m.steps")):
        app = app_of(nodes if nodes == "m" else [{"name": node} for node in nodes])
        item = job(1, app, node="m", hints={} if hint is None else {name: hint, "other": 5})
        item.steps_total, item.steps = total, made
        assert steps_left(item) == left


def test_reasons_are_added_until_they_are_two_hundred_letters_long():
    for length in (199, 200):
        request = job(1, app_of("m")).request
        request.leave_out("x" * length)
        request.leave_out("late")
        assert request.left_out == "x" * length + ("; late" if length < 200 else "")


def test_a_request_that_has_begun_is_ended_by_no_other_of_its_stream():
    waiting, running, between = [job(number, app_of("m")).request for number in (1, 2, 3)]
    running.running, between.breakdown = 1, LatencyBreakdown(execute_ns=5)
    for request in (waiting, running, between):
        request.successor_ns = (60, 66)
    assert [waiting.begin_by_ns(now_ns) for now_ns in (60, 61, 66, 67)] == [60, 66, 66, None]
    assert running.begin_by_ns(0) is None and between.begin_by_ns(0) is None
