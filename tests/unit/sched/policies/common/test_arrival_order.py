"""Queues in arrival order: whose model is served next, and who of it goes."""

from __future__ import annotations

import pytest
from cores import interpreted_only
from hand_world import Driver, app_of, job

from edgeserve.sched.policies.common import arrival_order
from edgeserve.sched.policies.common.arrival_order import InOrder

APPS = {name: app_of(name, f"app of {name}") for name in ("m", "n")}
SEVERAL = {"m": {1: 10, "lanes": ["l0", "l1"]}, "n": {1: 10, "lanes": ["l1"]}}


def waiting(*rows):
    """A queue of these jobs: (model, ready at, class, lane), numbered from 0."""
    queues, jobs = InOrder(), []
    for seq, (model, ready_ms, klass, lane) in enumerate(rows):
        item = job(seq, APPS[model], arrival=ready_ms, klass=klass)
        item.lane = lane
        jobs.append(item)
        queues.add(item)
    return queues, jobs


def world():
    return Driver(SEVERAL, {"a": "m", "b": "n"}, lane={"l0": {}, "l1": {}})


@pytest.mark.parametrize(
    ("rows", "on_l0", "on_l1"),
    [
        ([("m", 5, "normal", ""), ("n", 3, "normal", "")], "m", "n"),
        ([("m", 3, "normal", ""), ("n", 5, "normal", "")], "m", "m"),
        ([("n", 3, "normal", ""), ("m", 3, "normal", "")], "m", "n"),
        ([("m", 3, "normal", "l0"), ("n", 5, "normal", "")], "m", "n"),
        ([("m", 3, "normal", "l1"), ("m", 9, "normal", ""), ("n", 5, "normal", "")], "m", "m"),
        ([("n", 3, "normal", "")], None, "n"),
        ([], None, None),
    ],
)
def test_the_model_whose_first_runnable_job_waits_longest_goes_next(rows, on_l0, on_l1):
    queues, _ = waiting(*rows)
    lanes, board = world().scheduler.state.lanes, world().scheduler.state.board
    assert [queues.oldest(lanes[lane], board) for lane in ("l0", "l1")] == [on_l0, on_l1]


def test_a_queue_that_ran_empty_counts_no_more():
    queues, (first, second) = waiting(("m", 1, "normal", ""), ("n", 2, "normal", ""))
    lanes, board = world().scheduler.state.lanes, world().scheduler.state.board
    queues.remove(first)
    assert queues.oldest(lanes["l1"], board) == "n" and list(queues) == [second]


@interpreted_only
@pytest.mark.parametrize(
    ("yields", "count", "first"), [(False, 2, [0, 1]), (False, 9, [0, 1, 3, 4]), (True, 1, [3]), (True, 9, [3, 4])]
)
def test_where_background_work_must_yield_others_that_may_run_on_the_lane_go(monkeypatch, yields, count, first):
    monkeypatch.setattr(arrival_order, "must_yield", lambda jobs, lane, board: yields)
    queues, _ = waiting(
        ("m", 1, "background", ""),
        ("m", 2, "background", "l0"),
        ("m", 3, "normal", "l1"),
        ("m", 4, "normal", ""),
        ("m", 5, "critical", "l0"),
    )
    state = world().scheduler.state
    assert [item.seq for item in queues.first("m", state.lanes["l0"], count, state.board)] == first
