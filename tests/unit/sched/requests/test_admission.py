"""Admission: shares of a full app by weight, and who has to go."""

from __future__ import annotations

import pytest
from hand_world import app_of, job

from edgeserve.sched.requests.admission import Admission


def admission(weights=None, **pending):
    made = Admission(app_of("m", pending_max=4, weights=weights or {}))
    number = 0
    for client, count in pending.items():
        for _ in range(count):
            number += 1
            made.enter(job(number, made.app, client=client).request)
    return made


def displaced(made, client):
    request = made.to_displace(client)
    return None if request is None else (request.client, request.id)


def test_it_is_full_at_its_bound_and_empty_again_when_all_have_left():
    made = admission(x=3)
    assert made.pending < made.app.pending_max
    last = job(9, made.app, client="y").request
    made.enter(last)
    assert made.pending == made.app.pending_max
    made.leave(last)
    assert made.pending < made.app.pending_max
    assert list(made.clients) == ["x"]


def test_a_newcomer_takes_the_place_of_the_newest_of_the_greediest():
    assert displaced(admission(x=3, y=1), "z") == ("x", 3)
    assert displaced(admission(x=3, y=1), "y") == ("x", 3)


@pytest.mark.parametrize("client", ["x", "y"])
def test_at_equal_shares_nobody_is_displaced(client):
    assert displaced(admission(x=2, y=2), client) is None


def test_the_greediest_cannot_displace_itself_nor_anybody_else():
    assert displaced(admission(x=3, y=1), "x") is None
    assert displaced(admission(x=4), "x") is None
    assert displaced(admission(), "x") is None


def test_a_client_may_use_as_much_more_as_its_weight_says():
    assert admission({"x": 3}, x=3).use("x") == 1.0
    assert displaced(admission({"x": 3}, x=3, y=1), "y") is None
    assert displaced(admission({"x": 3}, x=2, y=2), "x") == ("y", 4)


def test_what_runs_is_not_displaced():
    made = admission(x=4)
    requests = list(made.clients["x"].values())
    requests[3].running = 1
    assert displaced(made, "z") == ("x", 3)
    for request in requests:
        request.running = 1
    assert displaced(made, "z") is None
