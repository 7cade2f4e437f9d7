"""The worth of requests: all of an app alike, or each by its size; on lanes and in memory."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, app_of, job

from edgeserve.sched.policies.common.bidding import Utility
from edgeserve.sched.protocol.actions import LoadModel
from edgeserve.sched.requests.worth import worth_ns


def asked(app, *sizes_ms):
    """Requests of these sizes came."""
    app.recent.unread += [(index * MS, size * MS, 1.0, 100.0 * MS) for index, size in enumerate(sizes_ms)]
    return app


def test_requests_of_an_app_count_their_mean_as_soon_as_some_are_known():
    assert worth_ns(job(1, asked(app_of("m"), 10), worth=50).request) == 50 * MS
    assert worth_ns(job(1, asked(app_of("m"), 10, 20, 90), worth=50).request) == pytest.approx(40 * MS)
    assert worth_ns(job(1, asked(app_of("m"), 10, 20, 90), worth=50, value=3.0).request) == pytest.approx(120 * MS)


def test_where_an_app_says_so_they_count_by_their_own_size():
    app = asked(app_of("m", worth="work"), 10, 20, 90)
    assert [worth_ns(job(1, app, worth=size).request) for size in (10, 90)] == [10 * MS, 90 * MS]
    assert Utility([job(1, app, worth=10), job(2, app, worth=90, value=2.0)], 0).value(0) == 190 * MS


@pytest.mark.parametrize(("worth", "loaded"), [("request", "even"), ("work", "own")])
def test_memory_is_given_by_what_the_requests_that_wait_count(worth, loaded):
    """One of 30 ms waits beside one of nine steps of 5 ms, whose app is usually asked for one step."""
    world = Driver(
        {
            "busy": {1: 1, "memory": "10MB", "load": "100ms"},
            "own": {1: 5, "memory": "60MB"},
            "even": {1: 30, "memory": "60MB"},
        },
        {
            "busy": {"model": "busy", "slo": "900ms"},
            "own": {"model": "own", "worth": worth, "slo": "900ms"},
            "even": {"model": "even", "slo": "900ms"},
        },
        resident={"cpu": []},
        device={"cpu": {"memory": "100MB"}},
    )
    world.arrive("busy")  # its load keeps the copy lane
    for number in range(3):
        world.arrive("own", hints={"steps": 1})
        world.cancel(2 + number)
    world.arrive("own", hints={"steps": 9})
    world.arrive("even")
    world.finish("copy:cpu", at=100)
    assert [action.model for action in world.actions if isinstance(action, LoadModel)] == [loaded]
