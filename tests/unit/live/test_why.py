"""The reasons of a request's time, by its own log and those beside it: exact times, and what counts as before it."""

from __future__ import annotations

import pytest
from hand_world import Driver, app_of, job

from edgeserve.live.why import story_of, why
from edgeserve.sched.protocol.actions import LatencyBreakdown

MS = 1_000_000


def request(number, *notes, app="a", state="completed", sent=0, deadline=100, breakdown=(0, 0, 0, 0)):
    """A request with these lines in its log, times in ms, that ended as ``state`` with the last of them."""
    record = job(number, app_of("m", name=app), arrival=sent, deadline=deadline).request
    for at, *what in notes:
        record.log.append((at * MS, tuple(what)))
    record.state, record.ended = state, state not in ("new", "open")
    record.spent = LatencyBreakdown(*(part * MS for part in breakdown))
    return record


def launch(at, work, lane="cpu0"):
    return (at, "launched", "m", "", "in work", work, "on", lane, "with", 0, "others")


def test_the_parts_add_up_to_the_whole_from_sending_to_end():
    late = request(1, (3, "arrived"), launch(10, 1), (42, "completed"), sent=1, deadline=40, breakdown=(5, 2, 4, 20))
    assert why(late, [late]) == [
        "  time: 2ms sending, 5ms queue, 2ms load, 4ms batch, 20ms execute, 8ms other",
        "  2ms past this deadline; most of its time was execute: its own batches",
    ]


@pytest.mark.parametrize(
    ("breakdown", "most"),
    [
        ((30, 0, 0, 5), "queue: waiting for a lane"),
        ((0, 30, 0, 5), "load: waiting for its model to be loaded"),
        ((0, 0, 30, 5), "batch: launched, behind"),
        ((0, 0, 0, 5), "other: between its works"),
    ],
)
def test_the_largest_part_is_named(breakdown, most):
    late = request(1, (0, "arrived"), launch(1, 1), (41, "completed"), deadline=40, breakdown=breakdown)
    assert f"1ms past this deadline; most of its time was {most}" in why(late, [])[1]


def test_in_time_is_no_miss_and_exactly_on_the_deadline_neither():
    for deadline in (40, 41):
        assert why(request(1, (0, "arrived"), launch(1, 1), (40, "completed"), deadline=deadline), []) == [
            "  time: 40ms other"
        ]


def test_lateness_is_told_by_the_clients_deadline_and_not_by_the_one_that_was_planned_for():
    for end, lines in (
        (43, ["  time: 43ms other"]),
        (
            44,
            [
                "  time: 44ms other",
                "  1ms past this deadline; most of its time was other: between its works: the loop, or a busy machine",
            ],
        ),
    ):
        answered = request(1, (0, "arrived"), launch(1, 1), (end, "completed"), deadline=40)
        answered.margin_ns = 3 * MS
        assert why(answered, []) == lines
        assert answered.story()[0].endswith("deadline 43ms after it was asked, of which 3ms are kept for the answer")


@pytest.mark.parametrize("state", ["new", "open", "held", "rejected", "cancelled", "failed"])
def test_who_has_not_ended_or_was_refused_has_no_such_lines(state):
    assert why(request(1, (0, "arrived"), launch(1, 1), (90, "x"), state=state, deadline=5), []) == []


def test_who_never_ran_waited_all_the_time_since_it_arrived():
    for end, missed in ((50, "given up before this deadline"), (52, "given up before"), (53, "1ms past this deadline")):
        dropped = request(1, (4, "arrived"), (end, "dropped", "expired"), state="dropped", deadline=52)
        assert why(dropped, []) == [f"  time: 4ms sending, {end - 4}ms queue", why(dropped, [])[1]]
        assert missed in why(dropped, [])[1] and "queue: waiting for a lane" in why(dropped, [])[1]


def test_batches_that_ran_at_its_arrival_or_began_before_its_own_are_before_it():
    late = request(9, (10, "arrived"), launch(30, 7), (50, "completed"), deadline=45)
    others = [
        request(1, launch(1, 1), (10, "completed")),  # over when it arrived
        request(2, launch(2, 2), (11, "completed")),  # still ran
        request(3, launch(12, 3), (20, "completed")),
        request(4, launch(12, 3), (20, "completed")),  # one batch of two
        request(5, launch(30, 4), (40, "completed"), app="b"),  # in the same step
        request(6, launch(31, 5), (60, "completed")),  # after it
        request(7, launch(12, 6, "cpu1"), (20, "completed")),  # elsewhere
        request(8, launch(30, 7), (50, "completed")),  # in its own batch
        request(10, launch(13, 8), (13, "note"), app="c", state="open"),
        late,
    ]  # has not ended
    assert (
        why(late, others)[-1]
        == "  before it: 2 batches of app a on cpu0, 1 batch of app b on cpu0, 1 batch of app c on cpu0"
    )


def test_a_story_ends_with_why_it_was_late_and_what_was_before_it():
    world = Driver({"m": {1: 10, 4: 20}}, {"a": {"model": "m", "pending_max": 9}})
    world.arrive("a")
    world.arrive("a", at=4, slo=12, on_late="answer")
    world.finish(at=10)
    world.finish(at=22, took=11)
    assert story_of(world.scheduler, 2)[-3:] == [
        "  time: 6ms queue, 1ms batch, 11ms execute",
        "  6ms past this deadline; most of its time was execute: its own batches",
        "  before it: 1 batch of app a on cpu0",
    ]
    assert not [line for line in story_of(world.scheduler, 1) if "past this deadline" in line or "before it" in line]


def test_no_word_of_a_policys_note_breaks_a_story():
    world = Driver({"m": {1: 10, 4: 20}}, {"a": {"model": "m"}})
    world.arrive("a")
    world.scheduler.state.requests[1].note(1, "launched", "by hand")
    world.scheduler.state.requests[1].note(2)
    world.finish(at=10)
    assert story_of(world.scheduler, 1)[-1] == "  time: 10ms execute"
