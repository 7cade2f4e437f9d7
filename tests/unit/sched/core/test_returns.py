"""A lane waits for clients that ask again as soon as they are answered, and for nobody else."""

from __future__ import annotations

from typing import Any, List

import pytest
from hand_world import MS, Driver, ended, like, ran

from edgeserve.sched.core.returns import ReturningClient, Returns, Wait
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.protocol.actions import RunBatch

COUNTED_MIN = 16  # answers and arrivals before a client may be trusted
DELAYS_LEN = 8
CLIENTS_MAX = 64
SLACK_NS = MS // 10
SILENT_NS = 10_000 * MS
STRIKES_MAX = 6
WINDOW_SHARE = (2, 5)
"""What the rules say, here in numbers of their own: a test that read them from the code would follow any change."""

CHEAP = {1: 10, 2: 11, 4: 13}
"""Four together take little longer than one."""

DELAY = 1.0
PATIENCE = DELAY * 5 / 4 + SLACK_NS / MS
"""What a lane waits for a client that comes back after ``DELAY``."""


def world_of(times: Any = None, app: Any = None, **sections: Any) -> Driver:
    """One model, one app with time enough."""
    return Driver(
        {"m": times or CHEAP, **sections.pop("models", {})},
        {"a": {"model": "m", "slo": "1s", **(app or {})}, **sections.pop("apps", {})},
        **sections,
    )


def teach(world: Driver, *clients: str, rounds: int = COUNTED_MIN + 2, delay: float = DELAY) -> Driver:
    """Each of these asks, alone, and asks again ``delay`` ms after each answer."""
    for client in clients:
        for _ in range(rounds):
            world.arrive("a", client=client, at=world.now_ms + delay)
            world.finish(at=world.now_ms + 10)
        world.now_ms += 100  # silence: nothing more is expected of it
    return world


def returns_of(world: Driver) -> Returns:
    return world.scheduler._auction.returns


def started(actions: List[Any]) -> List[int]:
    """How many jobs each batch has."""
    return [len(action.jobs) for action in actions if isinstance(action, RunBatch)]


def one_waits_while_another_is_answered(world: Driver, **second: Any) -> List[Any]:
    """``x`` runs, ``y`` comes meanwhile, ``x`` is answered: what the lane does with ``y`` then."""
    world.arrive("a", client="x", at=world.now_ms + 50)
    world.arrive("a", at=world.now_ms + 5, **{"client": "y", **second})
    return world.finish(at=world.now_ms + 5)


def test_the_lane_waits_for_who_was_just_answered_and_starts_when_it_is_there():
    world = teach(world_of(), "x", "y")
    first = 2 * (COUNTED_MIN + 2) + 1
    assert one_waits_while_another_is_answered(world) == [ended(first, "completed")]
    assert world.wake_ms == pytest.approx(world.now_ms + PATIENCE)
    assert "waits for clients that were just answered" in "\n".join(world.scheduler.story(first + 1))
    assert world.arrive("a", client="x", at=world.now_ms + DELAY) == [ran("m", first + 1, first + 2)]
    assert world.finish(at=world.now_ms + 11) == [ended(first + 1, "completed"), ended(first + 2, "completed")]


def test_who_does_not_come_is_waited_for_no_longer_than_the_longest_of_its_last_delays():
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world)) == []
    until_ms = world.wake_ms
    assert started(world.step(at=until_ms - 0.001)) == []
    assert world.wake_ms == until_ms
    assert started(world.step(at=until_ms)) == [1]


def test_waits_in_vain_become_rarer_and_one_that_pays_heals():
    world = teach(world_of(), "x")

    def turns_until_a_wait() -> int:
        for turn in range(2**STRIKES_MAX):
            teach(world, "x", rounds=20)  # it returns always, but not when it is waited for
            if not started(one_waits_while_another_is_answered(world)):
                return turn
            world.finish(at=world.now_ms + 10)
        raise AssertionError("never tried again")

    for passed in (0, 2, 4, 8):
        assert turns_until_a_wait() == passed
        assert started(world.step(at=world.wake_ms)) == [1]
        world.finish(at=world.now_ms + 10)
    assert turns_until_a_wait() == 16
    assert started(world.arrive("a", client="x", at=world.now_ms + DELAY)) == [2]
    world.finish(at=world.now_ms + 11)
    assert turns_until_a_wait() == 0
    assert started(world.step(at=world.wake_ms)) == [1]
    world.finish(at=world.now_ms + 10)
    assert turns_until_a_wait() == 8, "half forgiven by the one that paid"


@pytest.mark.parametrize(
    ("before", "waited_ms", "strikes", "skips"),
    [(0, 9, 1, 2), (4, 9, 5, 32), (5, 9, 6, 64), (6, 9, 6, 64), (6, 8.999999, 3, 0), (1, 8.999999, 0, 0)],
)
def test_a_wait_pays_that_took_less_than_the_fuller_batch_saves_and_at_most_64_are_let_pass(
    before, waited_ms, strikes, skips
):
    world = world_of()
    returns, lane = returns_of(world), world.scheduler.state.lanes["cpu0"]
    bid = Bid("m", (None, None), 2, 11 * MS, None, 0)  # two in 11 ms, alone 10 each
    wait = returns.waits["cpu0"] = Wait("m", 0, 20 * MS, 1)
    returns._strikes["cpu0"] = before
    returns._grade(lane, bid, wait, round(waited_ms * MS))
    assert (returns._strikes["cpu0"], returns._skip.get("cpu0", 0), returns.waits) == (strikes, skips, {})


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        ({}, True),
        ({"klass": "critical"}, False),
        ({"klass": "background"}, False),
        ({"drops": [(None, "late")]}, False),
        ({"probe": True}, False),
        ({"latest_start_ns": 0}, False),
        ({"steps_max": 3}, False),
        ({"model": "n"}, False),
    ],
)
def test_only_for_normal_batches_that_may_start_later_a_lane_waits(given, waits):
    world = world_of(models={"n": {1: 30}}, apps={"b": {"model": "n", "slo": "1s"}})
    lane, given = world.scheduler.state.lanes["cpu0"], dict(given)
    bid = Bid(given.pop("model", "m"), (), 1, 10 * MS, None, 0, **given)
    assert returns_of(world)._may_wait(lane, bid, [bid], 0) == waits


@pytest.mark.parametrize(("silent_ns", "is_room"), [(SILENT_NS, False), (SILENT_NS + 1, True)])
def test_who_was_silent_for_more_than_ten_seconds_makes_room(silent_ns, is_room):
    returns = returns_of(world_of())
    clients = {str(number): ReturningClient() for number in range(CLIENTS_MAX)}
    for client in clients.values():
        client.answered_ns = silent_ns
    clients["7"].answered_ns = 0
    assert returns._tidy(clients, silent_ns) is is_room
    assert ("7" in clients) != is_room and len(clients) == CLIENTS_MAX - is_room


def test_nobody_waits_for_clients_that_ask_whatever_is_answered():
    world = world_of()
    for turn in range(100):  # one request every 7 ms, of which some follow an answer at once
        world.arrive("a", client="x", at=max(world.now_ms, turn * 7.0))
        while world.on_lane and world.given_ms[world.work().work_id] + 11 <= (turn + 1) * 7.0:
            world.finish(at=world.given_ms[world.work().work_id] + 11)
            assert world.on_lane or not world.scheduler.open_count, "the lane idles while a request waits"


@pytest.mark.parametrize("times", [{1: 10, 2: 20, 4: 40}, {1: 10, 2: 18, 4: 36}])
def test_no_wait_where_a_fuller_batch_saves_nothing_or_hardly_anything(times):
    assert started(one_waits_while_another_is_answered(teach(world_of(times), "x"))) == [1]


def test_no_wait_for_who_comes_too_late_to_pay():
    world = teach(world_of({1: 10, 2: 17, 4: 30}), "x", delay=2.0)
    assert started(one_waits_while_another_is_answered(world)) == [1]
    world = teach(world_of({1: 10, 2: 15, 4: 30}), "x", delay=2.0)
    assert started(one_waits_while_another_is_answered(world)) == []


@pytest.mark.parametrize(("slo", "waits"), [(5 + 11 + PATIENCE + 0.1, True), (5 + 11 + PATIENCE - 0.1, False)])
def test_no_wait_that_could_make_a_request_late(slo, waits):
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world, slo=slo)) == ([] if waits else [1])


def test_a_request_that_has_no_time_ends_the_wait():
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world)) == []
    assert started(world.arrive("a", client="z", slo=11.5, at=world.now_ms + 0.5)) == [2]


def test_no_critical_request_waits_and_none_is_made_to():
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world, klass="critical")) == [1]
    for slo, batches in ((20, [1]), (30, [])):
        world = teach(world_of(), "x")
        world.arrive("a", client="c", klass="critical", slo=slo)
        world.finish(at=world.now_ms + 10)
        assert started(one_waits_while_another_is_answered(world)) == batches, "another one is expected"
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world)) == []
    assert started(world.arrive("a", client="c", klass="critical", at=world.now_ms + 0.5)) == [2]


@pytest.mark.parametrize("policies", [("fifo",), ("edf", "second")])
def test_no_wait_while_another_model_has_work_for_the_lane(policies):
    def world_of_two() -> Driver:
        return teach(
            world_of(
                models={"n": {1: 30}},
                apps={"b": {"model": "n", "slo": "1s", "policy": policies[-1]}},
                app={"policy": policies[0]},
                policy={name: {"kind": policies[0]} for name in policies},
            ),
            "x",
        )

    world = world_of_two()
    assert started(one_waits_while_another_is_answered(world)) == []
    assert started(world.arrive("b", at=world.now_ms + 0.5)) == [1]
    world = world_of_two()
    world.arrive("a", client="x", at=world.now_ms + 50)
    world.arrive("a", client="y", at=world.now_ms + 5)
    world.arrive("b")
    assert started(world.finish(at=world.now_ms + 5)) == [1]


def test_no_wait_while_another_lane_is_idle():
    world = world_of(lane={"l0": {}, "l1": {}})
    for _ in range(COUNTED_MIN + 2):
        world.arrive("a", client="x", at=world.now_ms + 1)
        world.finish("l0", at=world.now_ms + 10)
    for client in ("x", "z"):
        world.arrive("a", client=client)
    world.arrive("a", client="y")
    assert started(world.finish("l0", at=world.now_ms + 10)) == [], "the other lane is busy: it waits"
    assert started(world.finish("l1", at=world.now_ms + 0.5)) == [1], "the other lane could serve who returns"


def test_a_lane_that_may_not_wait_does_not_and_nothing_is_learnt():
    world = teach(world_of(lane={"cpu0": {"wait": False}}), "x")
    assert started(one_waits_while_another_is_answered(world)) == [1]
    assert not world.scheduler._auction.returns.learns
    assert not teach(world_of({1: 10}), "x").scheduler._auction.returns.learns, "nothing to gain"


def test_a_server_that_drains_waits_for_nobody():
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world)) == []
    assert started(world.drain()) == [1]


def test_a_full_batch_starts_and_so_does_one_that_has_become_full():
    world = teach(world_of(), "x", "z")
    world.arrive("a", client="x", at=world.now_ms + 50)
    world.arrive("a", client="y", count=4, at=world.now_ms + 5)
    assert started(world.finish(at=world.now_ms + 5)) == [4]
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world)) == []
    assert started(world.arrive("a", client="y", count=3, at=world.now_ms + 0.5)) == [4]


def test_requests_that_were_not_answered_by_their_batch_are_not_expected_back():
    world = teach(world_of(), "x")
    world.arrive("a", client="x", at=world.now_ms + 50)
    world.arrive("a", client="y", at=world.now_ms + 5)
    assert started(world.finish(at=world.now_ms + 5, status="failed", reason="the engine raised")) == [1]


def test_the_parts_of_one_request_are_one_answer():
    nodes = [{"name": "cut", "fan_out": True}, {"name": "read"}]
    world = Driver({"cut": CHEAP, "read": CHEAP}, {"a": {"node": nodes, "slo": "1s"}})
    world.arrive("a", client="x")
    world.finish(at=10, parts=3)
    world.finish(at=23)
    (known,) = world.scheduler._auction.returns._known["a"].values()
    assert known.owed == 1


def test_few_clients_are_remembered_and_silent_ones_make_room():
    world = world_of()
    known = world.scheduler._auction.returns._known["a"]
    for index in range(CLIENTS_MAX + 5):
        world.arrive("a", client=f"c{index}", at=world.now_ms + 1)
        world.finish(at=world.now_ms + 10)
    assert len(known) == CLIENTS_MAX and "c0" in known
    world.arrive("a", client="c7", at=world.now_ms + SILENT_NS / MS / 2)
    world.finish(at=world.now_ms + 10)
    world.arrive("a", client="new", at=world.now_ms + SILENT_NS / MS / 2)
    world.finish(at=world.now_ms + 10)
    assert "new" in known and "c0" not in known and "c7" in known


def test_apps_whose_batches_cannot_grow_are_answered_beside_those_that_learn():
    world = world_of(models={"n": {1: 10}}, apps={"b": {"model": "n", "slo": "1s"}})
    world.arrive("b", client="x")
    assert world.finish(at=10) == [ended(1, "completed")]
    assert list(returns_of(world)._known) == ["a"]


def test_a_client_is_trusted_by_what_it_did_lately():
    client, now = ReturningClient(), 0

    def turn(returns: bool) -> None:
        nonlocal now
        now += 100
        client.open(now, 10)
        client.owed += 1
        if returns:
            client.owed, client.returned, client.counted, client.last_ns = 0, client.returned + 1, client.counted + 1, 5

    for _ in range(COUNTED_MIN):
        assert not client.trusted
        turn(True)
    turn(True)
    assert client.trusted and client.due_ns == now + 10, "no longer than the window"
    for _ in range(200):
        turn(True)
    for _ in range(40):
        turn(False)
    assert not client.trusted, "what was long ago does not count"


@pytest.mark.parametrize(
    ("returned", "counted", "trusted"),
    [(12, 16, True), (11, 16, False), (15, 15, False), (48, 64, True), (47, 64, False)],
)
def test_three_of_four_returns_of_sixteen_or_more_make_a_client_trusted(returned, counted, trusted):
    client = ReturningClient()
    client.returned, client.counted = returned, counted
    client.close()
    assert client.trusted == trusted


def test_counts_are_halved_beyond_64_and_what_is_owed_at_the_end_of_a_window_did_not_return():
    client = ReturningClient()
    client.returned, client.counted, client.owed = 60, 61, 3
    client.close()
    assert (client.returned, client.counted, client.owed) == (60, 64, 0)
    client.owed = 1
    client.close()
    assert (client.returned, client.counted, client.owed) == (30, 32, 0)


def test_a_window_that_is_not_over_goes_on_unless_nothing_is_owed():
    client = ReturningClient()
    client.open(100, 50)
    assert (client.answered_ns, client.until_ns, client.due_ns) == (100, 150, 150)
    client.owed = 2
    client.open(150, 50)
    assert (client.owed, client.counted, client.until_ns) == (2, 0, 200), "its returns may still come"
    client.open(201, 50)
    assert (client.owed, client.counted) == (0, 2)
    client.last_ns = 7
    client.open(210, 50)
    assert client.last_ns == -1, "none is owed: the delay is remembered at once"


def test_of_the_delays_the_longest_of_eight_counts():
    client = ReturningClient()
    for delay_ns in [8 * MS, *[4 * MS] * 7]:
        client.last_ns = delay_ns
        client.close()
    client.open(0, 50 * MS)
    assert client.due_ns == 8 * MS * 5 // 4 + MS // 10
    client.last_ns = 4 * MS
    client.close()
    client.open(0, 50 * MS)
    assert client.due_ns == 4 * MS * 5 // 4 + MS // 10


def test_a_delay_of_nothing_is_one():
    client = ReturningClient()
    client.last_ns = 0
    client.close()
    client.open(0, 50 * MS)
    assert client.due_ns == MS // 10
    assert client.last_ns == -1


def test_the_longest_window_is_20_ms():
    world = world_of({1: 100, 2: 101})
    world.arrive("a", client="x")
    world.finish(at=100)
    (known,) = returns_of(world)._known["a"].values()
    assert known.until_ns == 120 * MS


def test_an_arrival_at_the_end_of_the_window_returns_and_one_behind_it_counts_against():
    for late_ms, returned in ((4.0, 1), (4.000001, 0)):
        world = world_of()
        world.arrive("a", client="x")
        world.finish(at=10)
        world.arrive("a", client="x", count=2, at=10 + late_ms)
        (known,) = returns_of(world)._known["a"].values()
        assert (known.returned, known.counted, known.owed) == (returned, 2, 1 - returned)
        assert known.last_ns == (4 * MS if returned else -1)


def test_with_more_than_256_open_requests_no_lane_waits():
    models = {"m": {**CHEAP, "lanes": ["one"]}, "n": {1: 5000, "lanes": ["other"]}}
    for others, waits in ((255, True), (256, False)):
        apps = {"a": {"model": "m", "slo": "1s"}, "b": {"model": "n", "slo": "9999s", "pending_max": 999}}
        world = Driver(models, apps, lane={"one": {}, "other": {}})
        world.arrive("b", count=others)
        for _ in range(COUNTED_MIN + 2):
            world.arrive("a", client="x", at=world.now_ms + DELAY)
            world.finish("one", at=world.now_ms + 10)
        world.arrive("a", client="x", at=world.now_ms + 50)
        world.arrive("a", client="y", at=world.now_ms + 5)
        assert started(world.finish("one", at=world.now_ms + 5)) == ([] if waits else [1])


def test_an_outlier_of_the_delay_is_forgotten():
    client = ReturningClient()
    for turn, delay_ns in enumerate([MS, 5 * MS, *[MS] * DELAYS_LEN]):
        client.open(turn * 100 * MS, 50 * MS)
        client.last_ns = delay_ns
        if turn == 2:
            assert client.due_ns == turn * 100 * MS + 5 * MS * 5 // 4 + SLACK_NS
    client.open(10**10, 50 * MS)
    assert client.due_ns == 10**10 + MS * 5 // 4 + SLACK_NS


def test_the_window_is_a_part_of_the_batch_shared_among_the_lanes_of_the_model():
    part, whole = WINDOW_SHARE
    for lanes in (1, 2):
        world = world_of(lane={f"l{index}": {} for index in range(lanes)})
        world.arrive("a", client="x")
        world.finish(at=10)
        (known,) = world.scheduler._auction.returns._known["a"].values()
        assert known.until_ns == 10 * MS + 10 * MS * part // (whole * lanes)


def test_a_wait_that_nobody_ends_is_over():
    """Who waited cancels; later the lane serves as ever."""
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world)) == []
    waiting = max(world.scheduler.state.requests)
    assert world.cancel(waiting, at=world.now_ms + 0.5) == [ended(waiting, "cancelled")]
    assert started(world.arrive("a", client="y", at=world.now_ms + 200)) == [1]
    assert world.scheduler._auction.returns.waits == {}
    assert world.actions == [like(RunBatch, size=1)]
