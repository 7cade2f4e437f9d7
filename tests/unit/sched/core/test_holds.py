"""A lane waits for clients that ask again as soon as they are answered, and for no other client."""

from __future__ import annotations

from typing import Any, List

import pytest
from hand_world import MS, Driver, ended, ran

from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import RequestArrived

COUNTED_MIN = 16  # answers and arrivals before a client may be trusted
SLACK_NS = MS // 10
STRIKES_MAX = 6

CHEAP = {1: 10, 2: 11, 4: 13}
"""Four together take little longer than one."""

DELAY, LATER = 1.0, 3.0
PATIENCE = DELAY * 5 / 4 + SLACK_NS / MS
"""The wait of a lane for a client that comes back after ``DELAY``."""


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


def started(actions: List[Any]) -> List[int]:
    """The number of jobs of each batch."""
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


def test_nobody_waits_for_clients_that_ask_whatever_is_answered():
    world = world_of()
    for turn in range(100):  # one request every 7 ms, of which some follow an answer at once
        world.arrive("a", client="x", at=max(world.now_ms, turn * 7.0))
        while world.on_lane and world.given_ms[world.work().work_id] + 11 <= (turn + 1) * 7.0:
            world.finish(at=world.given_ms[world.work().work_id] + 11)
            assert world.on_lane or not world.scheduler.open_count, "the lane idles while a request waits"


@pytest.mark.parametrize(("delay", "batches"), [(4, []), (4.1, [1])])
def test_who_comes_back_after_more_than_two_fifths_of_its_batch_is_not_waited_for(delay, batches):
    world = teach(world_of(), "x", delay=delay)
    assert started(one_waits_while_another_is_answered(world)) == batches


@pytest.mark.parametrize("times", [{1: 10, 2: 20, 4: 40}, {1: 10, 2: 18, 4: 36}])
def test_no_wait_where_a_fuller_batch_saves_nothing_or_hardly_anything(times):
    assert started(one_waits_while_another_is_answered(teach(world_of(times), "x"))) == [1]


def test_no_wait_for_who_comes_too_late_to_pay():
    world = teach(world_of({1: 10, 2: 17, 4: 30}), "x", delay=2.0)
    assert started(one_waits_while_another_is_answered(world)) == [1]
    world = teach(world_of({1: 10, 2: 15, 4: 30}), "x", delay=2.0)
    assert started(one_waits_while_another_is_answered(world)) == []


def two_are_answered(four: float) -> Driver:
    """``x`` and ``z`` are answered together now; ``z`` comes back later. A batch of four takes ``four`` ms."""
    world = teach(teach(world_of({1: 10, 2: 11, 4: four}), "x"), "z", delay=LATER)
    world.step(*[RequestArrived(world.request("a", client=client)) for client in ("x", "z")])
    return world


@pytest.mark.parametrize(("four", "delay"), [(13, LATER), (16, DELAY)])
def test_it_waits_for_the_later_of_two_clients_only_where_three_together_are_cheaper_still(four, delay):
    world = two_are_answered(four)
    world.arrive("a", client="y", at=world.now_ms + 5)
    assert started(world.finish(at=world.now_ms + 6)) == []
    assert world.wake_ms == pytest.approx(world.now_ms + delay * 5 / 4 + SLACK_NS / MS)


def test_who_should_be_back_by_now_is_not_counted_on():
    world = two_are_answered(16)
    world.finish(at=world.now_ms + 11)
    answered_ms = world.now_ms
    assert started(world.arrive("a", client="y", at=answered_ms + PATIENCE)) == [], "with z alone it is cheaper"
    assert world.wake_ms == pytest.approx(answered_ms + LATER * 5 / 4 + SLACK_NS / MS)


@pytest.mark.parametrize(
    ("slo", "waits"),
    [(5 + 11 + PATIENCE + 0.1, True), (5 + 11 + PATIENCE, True), (5 + 11 + PATIENCE - 0.1, False)],
)
def test_no_wait_that_could_make_a_request_late(slo, waits):
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world, slo=slo)) == ([] if waits else [1])


def test_a_request_that_has_no_time_ends_the_wait():
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world)) == []
    assert started(world.arrive("a", client="z", slo=11.5, at=world.now_ms + 0.5)) == [2]


def test_no_critical_request_waits_and_none_is_made_to():
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world, priority_class="critical")) == [1]
    for slo, batches in ((20, [1]), (30, [])):
        world = teach(world_of(), "x")
        world.arrive("a", client="c", priority_class="critical", slo=slo)
        world.finish(at=world.now_ms + 10)
        assert started(one_waits_while_another_is_answered(world)) == batches, "another one is expected"
    world = teach(world_of(), "x")
    assert started(one_waits_while_another_is_answered(world)) == []
    assert started(world.arrive("a", client="c", priority_class="critical", at=world.now_ms + 0.5)) == [2]


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
