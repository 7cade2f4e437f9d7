"""The sleep of the loop and its reading: on a clock and a source of messages that the test holds."""

from __future__ import annotations

from typing import Any, List, Tuple

import pytest

from edgeserve.live import loop_io
from edgeserve.live.loop_io import LoopIO, Mailbox
from edgeserve.loop.coalescing import ReceiveCoalescing

MS = 1_000_000


class Source:
    """Messages that come at drawn times. ``reads`` are the times at which it was read."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.coming: List[int] = []
        self.reads: List[int] = []
        self.endpoints: List[str] = []

    def receive(self, events: List[Any]) -> None:
        self.reads.append(self.world.now_ns)
        here = [at_ns for at_ns in self.coming if at_ns <= self.world.now_ns]
        self.coming = self.coming[len(here) :]
        events.extend(here)

    def has_more(self) -> bool:
        return bool(self.coming) and self.coming[0] <= self.world.now_ns

    def wait(self, file: int, now_ns: int, until_ns: int) -> Tuple[bool, bool]:
        rang = self.world.pass_time(min([until_ns, *self.coming[:1]]))
        return rang, self.has_more() or not rang

    def close(self) -> None:
        """Nothing to give back."""


class World:
    """One lane, mail that is posted at drawn times, and a clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, idle_lanes: int) -> None:
        self.now_ns = 0
        self.mail: List[int] = []
        self.mailbox = Mailbox()
        self.coalescing = ReceiveCoalescing(shares_cores=False)
        self.idle = idle_lanes
        self.io = LoopIO(self.mailbox, {str: self.lane_is_back}, self.coalescing, self, looks_ahead=False)
        self.source = self.io.source = Source(self)
        monkeypatch.setattr(loop_io, "clock_ns", lambda: self.now_ns)
        monkeypatch.setattr(
            loop_io, "readable_files", lambda files, timeout_ns: self.pass_time(self.now_ns + timeout_ns)
        )

    def lane_is_back(self, mail: str, events: List[Any]) -> None:
        self.idle = 1
        events.append(mail)

    def pass_time(self, until_ns: int) -> bool:
        """Sleep; whether mail ended it."""
        assert self.mailbox.asleep, "a post would ring nobody"
        rang = bool(self.mail) and self.mail[0] <= until_ns
        self.now_ns = max(self.now_ns, self.mail.pop(0) if rang else until_ns)
        if rang:
            self.mailbox.post("done")
        return rang


def test_an_idle_lane_s_message_is_read_when_it_comes_and_nothing_is_read_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, idle_lanes=1)
    world.source.coming = [3 * MS]
    events: List[Any] = []
    assert world.io.gather(10 * MS, events) == 3 * MS
    assert events == [3 * MS] and world.source.reads == [3 * MS]


def test_mail_wakes_the_loop_and_reads_no_message_where_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, idle_lanes=0)
    world.mail = [2 * MS]
    events: List[Any] = []
    assert world.io.gather(10 * MS, events) == 2 * MS
    assert events == ["done"] and world.source.reads == []


def test_a_loop_that_never_sleeps_reads_messages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, idle_lanes=1)
    world.mailbox.post("done")
    world.source.coming = [0]
    events: List[Any] = []
    world.io.gather(None, events)
    assert events == ["done", 0]


def test_while_the_lane_is_busy_reading_waits_and_the_end_of_that_reads_nothing_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, idle_lanes=0)
    world.coalescing.launched(0, 8 * MS)  # held until half of it has passed
    world.mail = [8 * MS]
    events: List[Any] = []
    assert world.io.gather(100 * MS, events) == 8 * MS
    assert events == ["done"] and world.source.reads == []


def test_what_came_while_reading_waited_is_read_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, idle_lanes=0)
    world.coalescing.launched(0, 8 * MS)
    world.source.coming = [1 * MS, 2 * MS]
    events: List[Any] = []
    assert world.io.gather(100 * MS, events) == 4 * MS
    assert events == [1 * MS, 2 * MS]


def test_a_lane_that_is_back_early_brings_along_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, idle_lanes=0)
    world.coalescing.launched(0, 8 * MS)
    world.source.coming, world.mail = [1 * MS], [2 * MS]
    events: List[Any] = []
    assert world.io.gather(100 * MS, events) == 2 * MS
    assert events == ["done", 1 * MS]  # one decision over both


def test_what_is_due_ends_the_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, idle_lanes=1)
    events: List[Any] = []
    assert world.io.gather(7 * MS, events) == 7 * MS and events == []
