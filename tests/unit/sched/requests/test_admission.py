"""Admission: shares of a full app by weight, and who has to go."""

from __future__ import annotations

import pytest
from hand_world import MS, app_of, job

from edgeserve.sched.requests.admission import Admission, LaneShare, to_displace_anywhere


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


def test_who_would_have_as_many_as_the_greediest_displaces_nobody():
    assert displaced(admission(x=2, y=1), "y") is None
    assert displaced(admission(x=1), "y") is None
    assert displaced(admission(x=2), "y") == ("x", 2)
    for pending, gone in (({"x": 2, "y": 1}, None), ({"x": 1}, None), ({"x": 2}, 2), ({"x": 3, "y": 1}, 3)):
        found = to_displace_anywhere([admission(**pending)], "y")
        assert (found.id if found else None) == gone


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


def test_when_the_server_is_full_the_newest_that_waits_of_the_greediest_goes_whatever_its_app():
    one, other = admission(x=2, y=1), admission()
    for number, client in enumerate(["x", "x", "z"], start=10):
        other.enter(job(number, other.app, client=client).request)
    gone = to_displace_anywhere([one, other], "new")
    assert gone is not None and (gone.client, gone.id) == ("x", 11)
    gone.running = 1
    assert to_displace_anywhere([one, other], "new") is other.clients["x"][10], "what runs is not displaced"
    other.clients["x"][10].running = 1
    assert to_displace_anywhere([one, other], "new") is one.clients["x"][2]
    for made in (one, other):
        for request in made.clients["x"].values():
            request.running = 1
    assert to_displace_anywhere([one, other], "new") is None
    assert to_displace_anywhere([one, other], "x") is None and to_displace_anywhere([], "new") is None


# --- lane time --------------------------------------------------------------------------------------------------------


def lane_share(**pending):
    """One lane, clients with so many requests of 10 ms pending that came at 0 and are due in 100: 66 ms of room."""
    shared, app, number = LaneShare(1), app_of("m"), 0
    made = Admission(app)
    for client, count in pending.items():
        for _ in range(count):
            number += 1
            request = job(number, app, client=client, worth=10).request
            shared.asks(request, 0)
            made.enter(request)
    return shared, request


def asking(shared, client, now_ms, number=99):
    request = job(number, app_of("m"), client=client, worth=10, arrival=now_ms, deadline=now_ms + 100).request
    shared.asks(request, now_ms * MS)
    return request


def test_lane_time_that_a_client_had_beyond_its_part_counts_until_its_part_has_paid_for_it():
    shared, _ = lane_share(x=1, y=3)
    x = shared.uses["x"]
    assert shared.is_within(asking(shared, "x", 0), 0)
    shared.had(x, 20 * MS, {}, 0)  # of 33 ms that are its part, 10 are pending and 20 were had
    assert not shared.is_within(asking(shared, "x", 0), 0)
    assert shared.is_within(asking(shared, "y", 0), 0) is False  # three pending: 40 ms with a fourth
    assert not shared.is_within(asking(shared, "x", 10), 10 * MS)  # it earned 5 ms, half of the lane's time
    assert shared.is_within(asking(shared, "x", 20), 20 * MS)


def test_a_client_without_a_pending_request_is_refused_while_it_is_ahead_and_at_most_a_whole_part():
    shared, _ = lane_share(x=1, y=3)
    x = shared.uses["x"]
    shared.had(x, 1000 * MS, {}, 0)
    x.pending_ns = 0
    assert not shared.is_within(asking(shared, "x", 10), 10 * MS)
    assert shared.is_within(asking(shared, "x", 20), 20 * MS)
    shared.had(x, 1000 * MS, {}, 20 * MS)
    assert shared.is_within(asking(shared, "x", 86), 86 * MS)
    assert shared.furthest(asking(shared, "y", 86), 86 * MS) == ""


def test_who_is_furthest_ahead_loses_its_newest_request_first():
    shared, last = lane_share(x=2, y=2, z=1)
    assert shared.furthest(last, 0) == ""
    shared.had(shared.uses["y"], 20 * MS, {}, 0)
    assert shared.furthest(last, 0) == "y"
    assert shared.furthest(last, 100 * MS) == ""  # its part has paid for it


def test_nobody_is_above_its_part_who_has_exactly_that():
    shared, last = lane_share(x=2, y=1)
    part_ns = shared.part_ns("x", {})
    for has_ns, furthest in ((part_ns - 1, ""), (part_ns, ""), (part_ns + 1, "x")):
        shared.uses["x"].pending_ns = has_ns
        assert shared.furthest(asking(shared, "y", 0), 0) == furthest


def test_what_a_client_had_while_nobody_was_in_a_hurry_does_not_lock_it_out():
    shared, _ = lane_share(x=1, y=3)
    x = shared.uses["x"]
    room_ns, shared.room_ns = shared.room_ns, 2**62
    shared.had(x, 60_000 * MS, {}, 0)
    shared.room_ns = room_ns
    assert not shared.is_within(asking(shared, "x", 5), 5 * MS)
    assert shared.is_within(asking(shared, "x", 66), 66 * MS)


def test_work_that_returns_when_all_who_asked_are_gone_counts_for_nobody():
    shared, _ = lane_share(x=1, y=1)
    x = shared.uses["x"]
    for use in shared.uses.values():
        use.pending = use.pending_ns = 0  # cancelled, while their batch went on for two seconds
    shared.had(x, 10 * MS, {}, 2000 * MS)
    assert not shared.uses


def test_a_client_whose_requests_have_ended_is_forgotten_and_one_that_waits_is_not():
    shared, app = LaneShare(1), app_of("m")
    made, requests = Admission(app), {}
    for number, client in enumerate(("x", "y", "z")):
        requests[client] = job(number, app, client=client, worth=10).request
        shared.asks(requests[client], 0)
        made.enter(requests[client])
    made.leave(requests["x"])
    shared.had(shared.uses["z"], 10 * MS, {}, 2000 * MS)
    assert sorted(shared.uses) == ["y", "z"]
