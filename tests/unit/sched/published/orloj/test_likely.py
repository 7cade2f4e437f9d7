"""The expected worth of batches whose time is a distribution."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, app_of, job

from edgeserve.sched.protocol.actions import LatencyBreakdown
from edgeserve.sched.published.orloj.distribution import Distribution
from edgeserve.sched.published.orloj.likely import LikelyUtility, likely_bid

APP = app_of("m")
PIPE = {"a": [{"name": "x"}, {"name": "y"}, {"name": "z"}]}
PIPE_MODELS = {"x": {1: 10}, "y": {1: 20}, "z": {1: 5}}


def test_of_uncertain_length_each_request_counts_with_its_chance():
    known = Distribution([10 * MS, 20 * MS], [0.0, 1.0])
    worth = LikelyUtility([job(1, APP, deadline=100, worth=10), job(2, APP, deadline=105, worth=4)], known, 0)
    assert [worth.value(start * MS) for start in (80, 85, 90, 95)] == pytest.approx([14 * MS, 9 * MS, 2 * MS, 0])
    later = LikelyUtility([job(1, APP, deadline=100, worth=10)], known, 5 * MS)
    assert later.value(80 * MS) == pytest.approx(5 * MS)


def test_a_bid_of_uncertain_length_counts_the_rest_of_the_pipeline_behind_it():
    world = Driver(PIPE_MODELS, PIPE)
    app = world.scheduler.state.apps["a"]
    bid = likely_bid(
        [job(1, app, node="x", deadline=50, worth=35), job(2, app, node="z", deadline=50, worth=35)],
        1,
        Distribution([10 * MS, 20 * MS], [0.0, 1.0]),
        world.scheduler.state.board,
    )
    assert (bid.expected_ns, bid.remaining_ns) == (15 * MS, 40 * MS)
    assert bid.utility.value(10 * MS) == pytest.approx(35 * MS)  # 25 follow: half a chance for each


def frame(**fields):
    """A camera's frame whose successor is expected 60 to 66 ms after the start of the test."""
    made = job(1, APP, deadline=fields.pop("deadline", 200), worth=10)
    made.request.successor_ns = (60 * MS, 66 * MS)
    for name, value in fields.items():
        setattr(made.request, name, value)
    return made


def utility(jobs, *now):
    """The expected worth of a batch of 20 to 40 ms."""
    return LikelyUtility(jobs, Distribution([20.0 * MS, 40.0 * MS], [0.5, 1.0]), 0, *now)


def test_a_frame_counts_if_it_begins_before_the_next_one_comes():
    worth = utility([frame()], 0)
    assert worth.value(60 * MS) == 10 * MS  # in any time
    assert worth.value(60 * MS + 1) == 0


def test_when_the_next_frame_is_late_the_latest_counts_and_then_the_deadline():
    assert utility([frame()], 60 * MS + 1).value(66 * MS) == 10 * MS
    assert utility([frame()], 60 * MS + 1).value(66 * MS + 1) == 0
    assert utility([frame()], 66 * MS + 1).value(160 * MS) == 10 * MS
    assert utility([frame()], 66 * MS + 1).value(200 * MS) == 0


@pytest.mark.parametrize("begun", [{"running": 1}, {"breakdown": LatencyBreakdown(execute_ns=1)}])
def test_the_next_frame_does_not_end_one_that_has_begun(begun):
    assert utility([frame(**begun)], 0).value(160 * MS) == 10 * MS


def test_a_deadline_before_the_next_frame_stays_and_others_in_the_batch_keep_theirs():
    assert utility([frame(deadline=30)], 0).value(30 * MS) == 0
    both = utility([job(2, APP, deadline=200, worth=7), frame()], 0)
    assert both.value(60 * MS) == 17 * MS
    assert both.value(60 * MS + 1) == 7 * MS
