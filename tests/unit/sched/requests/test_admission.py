"""Admission: shares of a full app by weight, and who has to go."""

from __future__ import annotations

import pytest
from hand_world import MS, app_of, job

from edgeserve.sched.requests.admission import Admission, LaneShare, lane_sets, to_displace_anywhere


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


def test_the_greediest_cannot_displace_itself_nor_anybody_else():
    assert displaced(admission(x=3, y=1), "x") is None
    assert displaced(admission(x=4), "x") is None
    assert displaced(admission(), "x") is None


def test_a_client_may_use_as_much_more_as_its_weight_says():
    assert displaced(admission({"x": 3}, x=3, y=1), "y") is None
    assert displaced(admission({"x": 3}, x=2, y=2), "x") == ("y", 4)


ONE, TWO, THREE = (f"uid:1/pid:{number}" for number in (1, 2, 3))
OTHER, THIRD = "uid:2/pid:7", "name@uid:3/pid:9"


def test_places_are_shared_by_user_first_and_then_by_process():
    crowd = {ONE: 1, TWO: 1, THREE: 1, OTHER: 2}
    assert displaced(admission(**crowd), OTHER) is None, "three of one user have three"
    assert displaced(admission(**{**crowd, TWO: 3}), OTHER) == (TWO, 4), "the greatest of its processes"
    assert displaced(admission(**crowd), THIRD) == (ONE, 1)
    assert displaced(admission(**{**crowd, TWO: 3}), THREE) == (TWO, 4), "a user's own processes share what it has"
    assert displaced(admission(**{ONE: 3, OTHER: 3}), ONE) is None
    gone = to_displace_anywhere([admission(**{ONE: 2, TWO: 2}), admission(**{OTHER: 3})], THIRD)
    assert gone is not None and gone.client == ONE


def test_a_user_weighs_what_its_weightiest_process_does():
    crowd = {f"arm@{ONE}": 3, TWO: 1, OTHER: 1}
    assert displaced(admission({"arm": 3}, **crowd), OTHER) is None
    assert displaced(admission({"arm": 2}, **{**crowd, TWO: 3}), OTHER) == (TWO, 6)
    assert displaced(admission({"uid:1": 4}, **{ONE: 3, TWO: 2, OTHER: 1}), OTHER) is None
    front = {"token:a@uid:1": 3, "token:b@uid:1": 1}
    assert displaced(admission(**front), "token:b@uid:1") == ("token:a@uid:1", 3), "a front's users are users"


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


def lane_share(weights=None, on_late="drop", **pending):
    """One lane; clients that have so many requests of 10 ms pending, that came at 0 and are due in 100 ms."""
    shared, app, number = LaneShare(), app_of("m", weights=weights or {}), 0
    made = Admission(app)
    for client, count in pending.items():
        for _ in range(count):
            number += 1
            request = job(number, app, client=client, deadline=100, on_late=on_late).request
            request.uses = [(shared.asks(request, 10 * MS, 0), 10 * MS)]
            made.enter(request)
    return shared, app, made


def asking(shared, client, now_ms, slo_ms=100, app=None, **fields):
    """A request of 10 ms comes: what its client wants."""
    request = job(99, app or app_of("m"), client=client, arrival=now_ms, deadline=now_ms + slo_ms, **fields).request
    return shared.asks(request, 10 * MS, round(now_ms * MS))


def within(shared, client, now_ms, **fields):
    return shared.is_within(asking(shared, client, now_ms, **fields), 10 * MS, round(now_ms * MS))


def in_the_way(shared, client, now_ms, **fields):
    return shared.in_the_way(asking(shared, client, now_ms, **fields), 10 * MS, round(now_ms * MS))


def greedy(shared, *clients, from_ms=1.0, until_ms=500.0):
    """Each of these clients asks for five times what the lane can do, until then."""
    now_ms = from_ms
    while now_ms < until_ms:
        for client in clients:
            asking(shared, client, now_ms)
        now_ms += 2


def test_a_client_that_wants_less_than_its_part_may_have_pending_what_its_own_time_allows():
    shared, *_ = lane_share(x=6, y=1)
    greedy(shared, "x")
    assert not within(shared, "x", 500)  # it has 60 ms of 66 pending, and y may want a part of that
    assert within(shared, "y", 500)
    shared, *_ = lane_share(x=1, y=9)
    assert within(shared, "y", 0)
    assert not within(shared, "y", 0, slo_ms=99)
    shared, *_ = lane_share(on_late="answer", x=1, y=50)
    assert within(shared, "y", 0, on_late="answer")


def test_what_the_others_do_not_want_is_anybodys():
    """One of three clients wants a tenth of the lane: each of two greedy ones may have 45 hundredths of the room."""
    shared, *_ = lane_share(x=1, y=1, z=1)
    greedy(shared, "x", "y")
    for now_ms in range(100, 500, 100):
        asking(shared, "z", now_ms)
    greedy(shared, "x", "y", from_ms=500, until_ms=520)
    asking(shared, "z", 520)
    parts = {name: use.part for name, use in shared.uses.items()}
    assert parts["x"] == parts["y"] == pytest.approx(0.45, abs=0.07)
    assert 2 * parts["x"] + shared.uses["z"].want(520 * MS, 0) == pytest.approx(1.0, abs=0.02)


def test_greedy_clients_share_by_weight():
    shared, app, _ = lane_share({"x": 3}, x=1, y=1)
    for now_ms in range(1, 500, 2):
        for client in "xy":
            asking(shared, client, now_ms, app=app)
    assert shared.uses["x"].part == pytest.approx(0.75)
    assert shared.uses["y"].part == pytest.approx(0.25)


def test_lane_time_that_a_greedy_client_had_beyond_its_part_counts_until_its_part_has_paid_for_it():
    shared, *_ = lane_share(x=1, y=6)
    greedy(shared, "x", "y")
    assert within(shared, "x", 500)
    shared.had(shared.uses["x"], 20 * MS, {}, 500 * MS)  # of 33 ms that are its part, 10 are pending and 20 were had
    assert not within(shared, "x", 500)
    assert not within(shared, "x", 510)  # it earned 5 ms, half of the lane's time
    assert within(shared, "x", 520)


def test_who_is_furthest_above_its_part_makes_room_where_another_would_be_late():
    shared, *_ = lane_share(x=6, y=4, z=1)
    assert in_the_way(shared, "z", 0, slo_ms=120) == ""
    assert in_the_way(shared, "z", 0) == "x"
    greedy(shared, "x", "y")
    shared.had(shared.uses["y"], 60 * MS, {}, 500 * MS)
    assert in_the_way(shared, "z", 500) == "y"
    assert in_the_way(shared, "z", 600) == "x"  # its part has paid for what y had


def test_what_is_due_later_makes_nobody_late():
    shared, *_ = lane_share(x=10)
    assert in_the_way(shared, "y", 0, slo_ms=99) == "x"  # 100 ms of x, of which 1 can be later
    shared, *_ = lane_share(x=8)
    assert in_the_way(shared, "y", 0, slo_ms=80) == ""  # behind 60 ms of x: the other 20 can be later
    assert in_the_way(shared, "y", 0, slo_ms=99) == ""


def test_who_has_longer_makes_no_room_since_that_would_not_help():
    """``x`` has most pending, and is far above its part; ``y`` alone stands before ``z``."""
    shared, *_ = lane_share(x=40, y=4)
    asking(shared, "x", 0, slo_ms=1000)
    asking(shared, "y", 0, slo_ms=45)
    assert in_the_way(shared, "z", 0, slo_ms=45) == "y"


def test_what_a_client_had_while_nobody_was_in_a_hurry_does_not_lock_it_out():
    shared, *_ = lane_share(x=1, y=6)
    greedy(shared, "x", "y")
    x = shared.uses["x"]
    room_ns, shared.room_ns = shared.room_ns, 2**62
    shared.had(x, 60_000 * MS, {}, 500 * MS)
    shared.room_ns = room_ns
    assert not within(shared, "x", 505)
    greedy(shared, "x", "y", from_ms=506, until_ms=566)
    assert within(shared, "x", 566)


def test_work_that_returns_when_all_who_asked_are_gone_counts_for_nobody():
    shared, *_ = lane_share(x=1, y=1)
    x = shared.uses["x"]
    for use in shared.uses.values():
        use.pending = use.pending_ns = 0  # cancelled, while their batch went on for two seconds
    shared.had(x, 10 * MS, {}, 2000 * MS)
    assert not shared.uses


def test_a_client_whose_requests_have_ended_is_forgotten_and_one_that_waits_is_not():
    shared, _, made = lane_share(x=1, y=1, z=1)
    made.leave(made.clients["x"][1])
    shared.had(shared.uses["z"], 10 * MS, {}, 2000 * MS)
    assert sorted(shared.uses) == ["y", "z"]


# --- sets of lanes ----------------------------------------------------------------------------------------------------


def test_models_that_meet_on_a_lane_share_a_set_and_others_do_not():
    found = lane_sets({"m": ["gpu0"], "n": ["cpu0", "cpu1"], "x": ["gpu0", "gpu1"], "z": ["cpu2"]})
    assert found["m"] == found["x"]
    assert len({found["m"], found["n"], found["z"]}) == 3
    joined = lane_sets({"m": ["gpu0"], "n": ["cpu0"], "x": ["gpu0", "cpu0"]})
    assert len(set(joined.values())) == 1
