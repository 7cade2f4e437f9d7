"""Connections are admitted before libzmq takes a message of them."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Iterator, List

import pytest
import zmq
import zmtp

from edgeserve.ipc.credentials import refuse_old_greetings
from edgeserve.ipc.gate import BURST, Gate
from edgeserve.owners import process_owner


class Door:
    """A server's socket behind a gate. ``out``: owners that may not connect; ``mark``: what the gate looks at."""

    def __init__(self, endpoint: str) -> None:
        self.out: List[str] = []
        self.mark = 0
        self.endpoint = endpoint
        self._context: Any = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, 2000)
        refuse_old_greetings(self.socket)
        self._gate = Gate(self._context, lambda owner: owner in self.out, lambda: self.mark, time.monotonic_ns)
        self.socket.bind(endpoint)

    def came(self, count: int, seconds: float = 10.0) -> int:
        """The number of messages that come, until ``count`` or the end of the time."""
        due_s, seen = time.monotonic() + seconds, 0
        while seen < count and time.monotonic() < due_s:
            if self.socket.poll(50):
                self.socket.recv_multipart()
                seen += 1
        return seen

    def close(self) -> None:
        self.socket.close()
        self._gate.stop()
        self._context.term()


@pytest.fixture
def door(tmp_path: Any) -> Iterator[Door]:
    with contextlib.closing(Door(f"ipc://{tmp_path}/bus")) as one:
        yield one


@contextlib.contextmanager
def closing_context() -> Iterator[Any]:
    """A context whose sockets are closed at its end in any case."""
    context: Any = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(0)


def dealers(context: Any, endpoint: str, count: int) -> List[Any]:
    """So many connections, each of which sends a message."""
    made = []
    for _ in range(count):
        one = context.socket(zmq.DEALER)
        one.linger, one.reconnect_ivl = 0, 20
        one.connect(endpoint)
        one.send(b"hello")
        made.append(one)
    return made


def test_who_is_kept_out_is_heard_when_it_may_come_again(door: Door) -> None:
    door.out.append(process_owner(os.getuid(), os.getpid()))
    with closing_context() as context:
        held = dealers(context, door.endpoint, 1)
        assert door.came(1, 0.3) == 0
        door.out.clear()
        assert door.came(1) == 1, "its library connects again by itself"
        assert held, "a socket without a reference closes"


def test_a_message_ahead_of_the_verdict_ends_its_connection(door: Door) -> None:
    door.out.append(process_owner(os.getuid(), os.getpid()))
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    with zmtp.dial(door.endpoint) as one:
        with contextlib.suppress(ConnectionError):  # ended while it still sends
            one.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready + b"\x01\x00" * 200_000 + b"\x00\x00")
            while one.recv(1 << 16):
                pass
    assert door.came(1, 0.2) == 0


def test_no_user_has_many_new_connections_at_once(door: Door) -> None:
    with closing_context() as context:
        many = dealers(context, door.endpoint, 4 * BURST)
        assert BURST <= door.came(len(many), 0.3) < len(many)
        while door.mark < 4:  # the server has read all that waits, again and again
            door.mark += 1
            door.came(BURST, 0.3)
        many += dealers(context, door.endpoint, 1)
        assert door.came(1) == 1, "all others came before"


def test_a_context_has_one_gate() -> None:
    with zmq.Context() as context:
        gate = Gate(context, lambda owner: False, lambda: 0, time.monotonic_ns)
        with pytest.raises(zmq.ZMQError):
            Gate(context, lambda owner: False, lambda: 0, time.monotonic_ns)
        gate.stop()
        gate.stop()
