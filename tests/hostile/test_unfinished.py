"""Messages whose last frame does not come: the server's memory is bounded, and no other connection is ended for it."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, List, Tuple

import numpy as np
import pytest
import zmq
import zmtp
from bus_server import BusServer

from edgeserve.client import Client
from edgeserve.ipc.bounds import BusBounds
from edgeserve.ipc.bus import Bus
from edgeserve.ipc.memory import own_bytes
from edgeserve.ipc.unfinished import (
    FORGET_NS,
    LOOK_NS,
    NEVER_NS,
    SLACK_BYTES,
    SOON_NS,
    UNFINISHED_NS_MAX,
    ConnectionLook,
    Unfinished,
)

MIB = 1024**2
MESSAGE = 8 * MIB
ONE = 2 * MESSAGE + SLACK_BYTES
"""The bytes of an unfinished message that one connection may have."""


class Looks:
    """Looks at connections whose memory and bytes are made up."""

    def __init__(self, all_bytes_max: int = 2**62, whose: Callable[[int], str] = str) -> None:
        self.whose = whose
        self.unfinished = Unfinished(MESSAGE, all_bytes_max)
        self.unfinished.connected(0)
        self.held_bytes = 100 * MIB
        self.unfinished.look(0, self.held_bytes, [])
        self.now_ns = 0

    def __call__(self, *samples: Tuple[int, int, bool, int], grown: int = 0) -> List[int]:
        """One look: (file, messages that it finished, whether bytes wait, bytes that came or -1)."""
        self.now_ns = min(self.unfinished.look_at_ns, self.now_ns + LOOK_NS)
        self.held_bytes += grown
        seen = [
            ConnectionLook(file, (file, mark), arrives, came, self.whose(file)) for file, mark, arrives, came in samples
        ]
        return self.unfinished.look(self.now_ns, self.held_bytes, seen)


def test_memory_that_grows_while_one_finishes_nothing_is_put_down_to_it() -> None:
    looks = Looks()
    grown = 0
    while not (ended := looks((3, 0, True, -1), (4, 0, False, -1), (5, looks.now_ns, True, -1), grown=10 * MIB)):
        grown += 10 * MIB
        assert grown < 3 * ONE
    assert ended == [3], "neither who is silent nor who finishes messages"
    assert grown >= ONE


def test_who_is_seldom_seen_at_it_is_found_too() -> None:
    looks = Looks()
    look = ended = 0
    while not ended:
        ended = len(looks((3, 0, look % 40 == 0, -1), (4, look, look % 2 == 0, -1), grown=100_000))
        look += 1
    assert looks.held_bytes - 100 * MIB < 3 * ONE


def test_a_model_that_is_loaded_ends_nobody() -> None:
    looks = Looks()
    for look in range(100):
        assert looks((3, look // 2, True, -1), (4, 0, False, -1), (5, 0, look == 50, -1), grown=50 * MIB) == []


def test_bytes_that_are_counted_need_no_guess() -> None:
    looks = Looks()
    assert looks((3, 0, True, 10), (4, 0, True, 10)) == []
    assert looks((3, 0, False, 10 + ONE), (4, 0, True, MESSAGE), grown=10 * ONE) == []
    assert looks((3, 0, False, 11 + ONE), (4, 0, False, 2 * MESSAGE)) == [3]
    assert looks((4, 1, True, 3 * ONE)) == [], "it finished a message"


def test_empty_frames_cost_more_than_their_bytes() -> None:
    looks = Looks()
    for came in range(3):
        assert looks((3, 0, True, came * ONE // 99), (4, 0, False, came * ONE // 99), grown=came * ONE) == []
    assert looks((3, 0, True, ONE // 20), (4, 0, False, ONE // 20)) == [3]


def test_all_together_have_a_bound_and_who_has_most_goes_first() -> None:
    looks = Looks(all_bytes_max=2 * ONE)
    looks(*[(file, 0, True, 0) for file in range(10)])
    assert looks(*[(file, 0, True, ONE // 5 - file) for file in range(10)]) == []
    assert looks(*[(file, 0, True, ONE // 4 - file) for file in range(10)]) == [0]
    assert looks(*[(file, 0, True, ONE // 4 - file) for file in range(1, 10)]) == [1]
    assert looks(*[(file, 0, True, ONE // 4 - file) for file in range(2, 10)]) == []


def test_where_all_together_have_too_much_the_user_with_most_is_meant_with_all_its_connections() -> None:
    looks = Looks(all_bytes_max=2 * ONE, whose=lambda file: "one" if file < 2 else "many")
    looks(*[(file, 0, True, 0) for file in range(10)])
    bytes_of = [ONE - 1, ONE // 2] + [ONE // 5] * 8
    assert looks(*[(file, 0, True, bytes_of[file]) for file in range(10)]) == list(range(2, 10))


def test_a_message_on_this_host_has_its_time() -> None:
    looks = Looks()
    while not (ended := looks((3, 0, True, -1), (4, 0, True, 5))):
        assert looks.now_ns <= UNFINISHED_NS_MAX + LOOK_NS
    assert ended == [3], "a line may be slow"
    assert looks.now_ns > UNFINISHED_NS_MAX


def test_what_was_seen_long_ago_or_before_a_pause_counts_no_more() -> None:
    looks = Looks()
    for _ in range(6):
        assert looks((3, 0, True, -1)) == []
        looks.now_ns += FORGET_NS
        looks.unfinished.look_at_ns = looks.now_ns + 1
    for _ in range(6):
        assert looks((3, 0, True, -1), grown=ONE) == []
        looks.unfinished.forget()


def test_looks_are_soon_while_something_arrives_and_end_with_the_last_connection() -> None:
    looks = Looks()
    looks((3, 0, False, -1))
    assert looks.unfinished.look_at_ns - looks.now_ns == LOOK_NS
    looks((3, 0, True, -1))
    assert looks.unfinished.look_at_ns - looks.now_ns == SOON_NS
    looks((3, 1, True, -1))  # that was a message
    assert looks.unfinished.look_at_ns - looks.now_ns == LOOK_NS
    looks()
    assert looks.unfinished.look_at_ns == NEVER_NS
    looks.unfinished.connected(7)
    assert looks.unfinished.look_at_ns == 7 + LOOK_NS


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_message_that_does_not_end_is_ended_and_its_memory_comes_back(tmp_path: Any, transport: str) -> None:
    endpoint = f"ipc://{tmp_path}/bus" if transport == "ipc" else "tcp://127.0.0.1:*"
    with BusServer(endpoint, message_bytes_max=MIB) as server, Client(server.endpoint) as healthy:
        before_bytes = own_bytes()
        sent: List[int] = [0]
        attacker = threading.Thread(target=_send_without_end, args=(server.endpoint, sent), daemon=True)
        attacker.start()
        due_s = time.monotonic() + 60
        while attacker.is_alive() and time.monotonic() < due_s:
            assert healthy.infer("echo", {"x": np.ones(3, np.float32)})["x"].tolist() == [1, 1, 1]
            time.sleep(0.002)
        assert not attacker.is_alive(), f"{sent[0] // MIB} MiB of one message were taken"
        while own_bytes() - before_bytes > SLACK_BYTES and time.monotonic() < due_s:
            time.sleep(0.05)
        assert own_bytes() - before_bytes <= SLACK_BYTES
        assert healthy.infer("echo", {"x": np.ones(3, np.float32)})["x"].tolist() == [1, 1, 1]


@pytest.mark.nightly
def test_small_messages_are_no_shield_for_one_that_does_not_end() -> None:
    clock, context = [0], zmq.Context()
    bus = Bus(
        ["tcp://127.0.0.1:*"],
        BusBounds(1000, 10**12, clients_max=8),
        clock_ns=lambda: clock[0],
        context=context,
    )
    shields = [context.socket(zmq.DEALER) for _ in range(4)]
    for one in shields:
        one.linger, one.sndhwm = 0, 0
        one.connect(bus.endpoints[0])
        for _ in range(4000):
            one.send(zmtp.header(kind="cancel", id=1))
    time.sleep(0.1)  # until they have come
    sent: List[int] = [0]
    attacker = threading.Thread(target=_send_without_end, args=(bus.endpoints[0], sent, 0.0), daemon=True)
    attacker.start()
    try:
        due_s = time.monotonic() + 30
        while attacker.is_alive() and time.monotonic() < due_s:
            for one in shields * 70:
                one.send(zmtp.header(kind="cancel", id=1))
            clock[0] += 10**8
            bus.receive()
        assert not attacker.is_alive()
        assert sent[0] < 400 * MIB, f"{sent[0] // MIB} MiB of one message were taken"
    finally:
        bus.close()
        context.destroy(0)


def _send_without_end(endpoint: str, sent: List[int], rest_s: float = 120.0) -> None:
    """Frames that all say that another one follows, until the connection ends."""
    one = zmtp.connect(endpoint)
    frame = b"\x03" + MIB.to_bytes(8, "big") + bytes(MIB)
    try:
        while sent[0] < 16 * 1024 * MIB:
            one.sendall(frame)
            sent[0] += MIB
    except OSError:
        return
    finally:
        one.close()
    time.sleep(rest_s)
