"""The server's side of the bus alone: what it sleeps on, and requests of a known form."""

from __future__ import annotations

import os
import time
from typing import Any, Iterator, List

import msgpack
import numpy as np
import pytest
from bus_server import bus_of, dealer, header

from edgeserve.ipc.bus import Ask, Bus

MS = 10**6
X = np.arange(3, dtype=np.float32)


class Bell:
    """A file that can be read when it was rung."""

    def __init__(self) -> None:
        self.file, self._write = os.pipe()

    def ring(self) -> None:
        os.write(self._write, b"\0")

    def close(self) -> None:
        os.close(self.file)
        os.close(self._write)


@pytest.fixture
def bell() -> Iterator[Bell]:
    one = Bell()
    yield one
    one.close()


@pytest.fixture
def bus(tmp_path: Any, context: Any) -> Iterator[Bus]:
    one = bus_of(f"ipc://{tmp_path}/bus", context=context)
    yield one
    one.close()


def ask(one: Any, key: int, app: str = "echo", data: bytes = X.tobytes()) -> None:
    one.send_multipart([header(kind="infer", id=key, app=app, tensors=[["x", "float32", [3]]]), data])


def keys_of(one: Any, count: int) -> List[int]:
    return [msgpack.unpackb(one.recv_multipart()[0][1:])["id"] for _ in range(count)]


def wait(bus: Bus, bell: Bell, ms: float) -> Any:
    now_ns = time.monotonic_ns()
    return bus.wait(bell.file, now_ns, now_ns + int(ms * MS))


def received(bus: Bus, bell: Bell, count: int = 1) -> List[Any]:
    """So many news, each slept for."""
    news: List[Any] = []
    ends = time.monotonic() + 5
    while len(news) < count and time.monotonic() < ends:
        if wait(bus, bell, 50)[1]:
            news += bus.receive()
    assert len(news) == count, news
    return news


def come_to_rest(bus: Bus, bell: Bell) -> None:
    """News of a connection may follow its first message."""
    ends = time.monotonic() + 5
    while time.monotonic() < ends:
        began = time.monotonic()
        wait(bus, bell, 20)
        if time.monotonic() - began >= 0.02:
            return
        assert bus.receive() == []


@pytest.mark.parametrize("ms", [1.5, 200])
def test_a_wait_ends_for_a_message_a_bell_or_the_time(bus: Bus, bell: Bell, context: Any, ms: float) -> None:
    one = dealer(context, bus.endpoints[0])
    ask(one, 1)
    received(bus, bell)
    come_to_rest(bus, bell)
    began = time.monotonic()
    assert wait(bus, bell, ms) == (False, True)
    assert time.monotonic() - began >= int(ms) / 1000
    bell.ring()
    assert wait(bus, bell, ms)[0]
    os.read(bell.file, 1)
    ask(one, 2)
    assert [news.key for news in received(bus, bell)] == [2]


def test_no_message_is_overlooked_whose_signal_an_answer_took(bus: Bus, bell: Bell, context: Any) -> None:
    """Sending takes libzmq's signals in: a message that came before is then told by no file."""
    one = dealer(context, bus.endpoints[0])
    slept_s = 0.0
    for key in range(20):
        ask(one, 2 * key)
        (first,) = received(bus, bell)
        ask(one, 2 * key + 1)
        time.sleep(0.003)  # it is here, and its signal with it
        bus.answer(first, first.inputs)
        began = time.monotonic()
        assert wait(bus, bell, 10_000)[1]
        slept_s += time.monotonic() - began
        (second,) = received(bus, bell)
        bus.answer(second, second.inputs)
        assert keys_of(one, 2) == [2 * key, 2 * key + 1]
    assert slept_s < 4  # a wait that overlooks one ends when clients are looked at, a second later


def test_another_bell_is_waited_for_too(bus: Bus, bell: Bell) -> None:
    other = Bell()
    wait(bus, bell, 5)
    other.ring()
    assert wait(bus, other, 1000)[0]
    assert not wait(bus, bell, 5)[0]
    other.close()


def test_requests_one_after_the_other_keep_every_bound(bus: Bus, bell: Bell, context: Any) -> None:
    one = dealer(context, bus.endpoints[0])
    for key in range(16):
        ask(one, 1000 + key)
    asks = received(bus, bell, 16)
    assert [type(each) for each in asks] == [Ask] * len(asks)
    ask(one, 1000)  # in flight already
    ask(one, 1500, data=X.tobytes()[1:])
    for _ in range(3):
        wait(bus, bell, 50)
        assert bus.receive() == []
    replies = [msgpack.unpackb(one.recv_multipart()[0][1:]) for _ in range(2)]
    assert [(reply["id"], reply["code"]) for reply in replies] == [(1000, "malformed"), (1500, "malformed")]
    assert "is in flight already" in replies[0]["message"]
    assert "its frame has 11 bytes" in replies[1]["message"]
    for each in asks:
        assert (each.inputs["x"] == X).all()
        bus.answer(each, each.inputs)
    assert keys_of(one, len(asks)) == [each.key for each in asks]
