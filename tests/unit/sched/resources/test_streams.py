"""Streams: who holds one, who waits, and whose state is forgotten."""

from __future__ import annotations

from hand_world import MS, app_of, job

from edgeserve.sched.protocol.actions import DropState, LatencyBreakdown
from edgeserve.sched.resources.model_cache import Device
from edgeserve.sched.resources.streams import OWNER_MARK, Streams, owner_of

APP = app_of("m", stream="in_order")


def make(*devices, budget=0):
    """Streams of one app, and the devices that hold their states."""
    made = [Device(name, budget) for name in devices or ("d",)]
    return Streams({device.name: device for device in made}, {"a": 100 * MS}), made


def request(number, stream="s", state="new"):
    made = job(number, APP, stream=stream).request
    made.state = state
    return made


def held(streams, number, stream="s"):
    made = request(number, stream)
    assert not streams.arrive(made)
    made.state = "held"
    return made


def test_one_request_holds_a_stream_and_the_others_follow_in_order():
    streams, _ = make()
    first = request(1)
    assert streams.arrive(first)
    assert streams.arrive(request(9, "other"))
    second, third = held(streams, 2), held(streams, 3)
    assert streams.leave(second, 0) is None  # only the holder gives it on
    assert streams.leave(first, 0) is second
    assert streams.leave(first, 0) is None  # and only once
    assert streams.leave(second, 0) is third
    assert streams.leave(third, 0) is None
    assert [key for key, _ in streams] == [("a", "other")]


def test_those_that_ended_while_they_waited_are_passed_over():
    streams, _ = make()
    first = request(1)
    streams.arrive(first)
    second, third = held(streams, 2), held(streams, 3)
    streams.abandon(second)
    streams.abandon(first)  # holds the stream: that is for leave()
    assert list(streams.streams["a", "s"].held) == [third]
    assert streams.leave(first, 0) is third


def test_what_waits_or_has_not_begun_is_superseded():
    streams, _ = make()
    active = request(1, state="open")
    streams.arrive(active)
    second = held(streams, 2)
    newer = request(3)
    third = held(streams, 6)
    assert streams.superseded(newer) == [active, second, third]
    third.state = "cancelled"
    assert streams.superseded(newer) == [active, second]
    active.running = 1
    assert streams.superseded(newer) == [second]
    active.running, active.breakdown = 0, LatencyBreakdown(execute_ns=5)  # a node of it ran: it is under way
    assert streams.superseded(newer) == [second]
    active.breakdown = LatencyBreakdown()
    part = job(4, APP)
    part.steps = 1
    active.jobs[4] = part
    assert streams.superseded(newer) == [second]
    second.state = "cancelled"
    assert streams.superseded(newer) == []
    assert streams.superseded(request(5, "unknown")) == []


def test_state_counts_against_its_device_and_goes_with_the_stream():
    streams, (device,) = make()
    first = request(1)
    streams.arrive(first)
    assert streams.keep_state(first, "m", "d", 30) == []
    assert streams.keep_state(first, "m", "d", 20) == []
    assert streams.keep_state(first, "n", "d", 5) == []
    assert device.state_bytes == 25
    streams.leave(first, 10 * MS)
    assert streams.due_ns == 110 * MS
    assert streams.forget_silent(110 * MS - 1) == []
    assert streams.forget_silent(110 * MS) == [DropState(app="a", stream="s")]
    assert (device.state_bytes, len(streams), streams.due_ns) == (0, 0, None)


def test_state_that_moves_to_another_device_is_counted_there_alone():
    streams, devices = make("d", "e")
    first = request(1)
    streams.arrive(first)
    streams.keep_state(first, "m", "d", 30)
    streams.keep_state(first, "m", "e", 40)
    assert [device.state_bytes for device in devices] == [0, 40]


def test_the_alarm_is_set_for_the_stream_that_is_silent_longest():
    streams, _ = make()
    for number, name, at_ms in ((1, "x", 10), (2, "y", 30)):
        made = request(number, name)
        streams.arrive(made)
        streams.keep_state(made, "m", "d", 1)
        streams.leave(made, at_ms * MS)
    assert streams.due_ns == 110 * MS
    assert streams.forget_silent(115 * MS) == [DropState(app="a", stream="x")]
    assert streams.due_ns == 130 * MS
    assert streams.arrive(request(3, "y"))  # it speaks again: nothing is forgotten
    assert streams.forget_silent(130 * MS) == []
    assert streams.due_ns is None


def test_over_budget_the_least_recently_used_silent_streams_of_that_device_go():
    streams, (device, _) = make("d", "e", budget=100)
    for number, (name, on) in enumerate((("x", "d"), ("y", "e"), ("z", "d")), 1):
        made = request(number, name)
        streams.arrive(made)
        streams.keep_state(made, "m", on, 40)
        streams.leave(made, number)
    busy = request(9, "busy")
    streams.arrive(busy)
    assert streams.keep_state(busy, "m", "d", 30) == [DropState(app="a", stream="x")]
    assert device.state_bytes == 70
    assert streams.keep_state(busy, "m", "d", 200) == [DropState(app="a", stream="z")]


def test_an_app_keeps_a_bounded_number_of_streams():
    streams, _ = make()
    for number, name in enumerate(("x", "y", "z"), 1):
        made = request(number, name)
        streams.arrive(made)
        streams.keep_state(made, "m", "d", 1)
        if name != "x":
            streams.leave(made, number)
    assert streams.bound("a", 3) == []
    assert streams.bound("a", 2) == [DropState(app="a", stream="y")]  # x is in flight
    assert streams.bound("a", 2) == []
    assert streams.bound("b", 0) == []


def test_a_streams_owner_is_what_the_server_put_before_its_name():
    assert owner_of(f"door{OWNER_MARK}camera") == "door"
    assert owner_of(f"door{OWNER_MARK}left{OWNER_MARK}camera") == "door"
    assert owner_of("camera") == "camera"
