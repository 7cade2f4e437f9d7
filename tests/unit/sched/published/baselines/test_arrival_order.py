"""Queues in arrival order: whose model is served next, and who of it goes."""

from __future__ import annotations

import pytest
from hand_world import Driver, app_of, job

from edgeserve.sched.published.baselines.arrival_order import InOrder

APPS = {name: app_of(name, f"app of {name}") for name in ("m", "n")}
SEVERAL = {"m": {1: 10, "lanes": ["l0", "l1"]}, "n": {1: 10, "lanes": ["l1"]}}


def waiting(*rows):
    """A queue of these jobs: (model, ready at, class, lane), numbered from 0."""
    queues, jobs = InOrder(), []
    for seq, (model, ready_ms, priority_class, lane) in enumerate(rows):
        item = job(seq, APPS[model], arrival=ready_ms, priority_class=priority_class)
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
