"""The expected worth of batches whose time is a distribution."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, app_of, job

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
