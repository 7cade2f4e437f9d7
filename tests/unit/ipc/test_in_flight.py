"""Requests in flight: what is taken is given back exactly once, in any order of answers and ends."""

from __future__ import annotations

from typing import Any, List

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgeserve.errors import Malformed, Rejected, TooLarge
from edgeserve.ipc.bus import Control
from edgeserve.ipc.in_flight import REQUESTS_PER_CLIENT_MAX, InFlight
from edgeserve.ipc.peer import Peer
from edgeserve.ipc.wire import Ask

MESSAGE, CLIENT, ALL = 100, 250, 400


def ask_of(app: str) -> Ask:
    ask = Ask()
    ask.app = app
    return ask


class Flights(RuleBasedStateMachine):
    """Beside the tables under test: which entries wait, as lists that are searched."""

    @initialize()
    def begin(self) -> None:
        self.flight = InFlight(MESSAGE, CLIENT, ALL)
        self.peers: List[Peer] = [Peer(bytes([0, number]), None) for number in range(3)]
        self.waiting: List[Any] = []
        self.ended: List[Any] = []

    def total(self, **of: Any) -> int:
        asks = [one for one in self.waiting if isinstance(one, Ask)]
        return sum(one.bytes for one in asks if all(getattr(one, name) is value for name, value in of.items()))

    @rule(
        which=st.integers(0, 2),
        key=st.integers(0, 5),
        size=st.integers(0, MESSAGE + 20),
        is_req=st.booleans(),
    )
    def enter(self, which: int, key: int, size: int, is_req: bool) -> None:
        peer = self.peers[which]
        fits = (
            size <= MESSAGE
            and not any(one.peer is peer and one.key == key for one in self.waiting)
            and self.total(peer=peer) + size <= CLIENT
            and self.total() + size <= ALL
        )
        ask = ask_of("a")
        try:
            self.flight.check(peer, key, size)
            self.flight.enter(peer, ask, key, size, is_req)
        except (Malformed, Rejected, TooLarge):
            assert not fits
        else:
            assert fits
            self.waiting.append(ask)

    @rule(which=st.integers(0, 2), key=st.integers(0, 5))
    def question(self, which: int, key: int) -> None:
        peer = self.peers[which]
        is_free = not any(one.peer is peer and one.key == key for one in self.waiting)
        control = Control(peer, key, False, "stats")
        try:
            self.flight.enter_question(peer, key, control)
        except Malformed:
            assert not is_free
        else:
            assert is_free
            self.waiting.append(control)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def answer(self, data: Any) -> None:
        entry = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        assert self.flight.leave(entry)
        self.ended.append(entry)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def answer_again(self, data: Any) -> None:
        assert not self.flight.leave(data.draw(st.sampled_from(self.ended)))

    @rule(which=st.integers(0, 2))
    def disconnect(self, which: int) -> None:
        peer = self.peers[which]
        gone = [one for one in self.waiting if one.peer is peer]
        assert self.flight.end_all(peer) == [one for one in gone if isinstance(one, Ask)]
        self.waiting = [one for one in self.waiting if one.peer is not peer]
        self.ended += gone
        self.peers[which] = Peer(peer.client, None)  # it comes back under its number

    @invariant()
    def adds_up(self) -> None:
        assert self.flight.bytes == self.total()
        for peer in self.peers:
            assert peer.bytes == self.total(peer=peer)
            assert sorted(peer.open) == sorted(one.key for one in self.waiting if one.peer is peer)


TestFlights = Flights.TestCase
TestFlights.settings = settings(stateful_step_count=40)


def test_a_client_has_so_many_requests_in_flight_and_no_more() -> None:
    flight, peer = InFlight(1, 10**9, 10**9), Peer(b"\0", None)
    for key in range(REQUESTS_PER_CLIENT_MAX):
        flight.enter(peer, ask_of("a"), key, 0, False)
    for more in (lambda: flight.check(peer, -1, 0), lambda: flight.enter_question(peer, -1, object())):
        with pytest.raises(Rejected, match="requests in flight, the most one may have"):
            more()


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ([101], "the message has 101 bytes, at most 100 are allowed"),
        ([100, 100, 51], "this client's requests in flight have 200B, this one 51B"),
    ],
)
def test_a_refusal_names_the_bound(sizes: List[int], why: str) -> None:
    flight, peer = InFlight(MESSAGE, CLIENT, ALL), Peer(b"\0", None)
    for key, size in enumerate(sizes[:-1]):
        flight.check(peer, key, size)
        flight.enter(peer, ask_of("a"), key, size, False)
    with pytest.raises((TooLarge, Rejected), match=why):
        flight.check(peer, -1, sizes[-1])


def test_a_bound_below_one_message_lets_a_single_one_in() -> None:
    flight, peer = InFlight(100, 1, 1), Peer(b"\0", None)
    flight.check(peer, 1, 100)
    flight.enter(peer, ask_of("a"), 1, 100, False)
    with pytest.raises(Rejected):
        flight.check(peer, 2, 1)
