"""The connected clients: numbers, names, seats and the connections that are over, without a socket."""

from __future__ import annotations

import socket
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import zmq

from edgeserve.errors import Malformed, Rejected
from edgeserve.ipc.client_registry import DEAD, DEAD_NS, ClientRegistry
from edgeserve.ipc.credentials import Credential, Credentials
from edgeserve.ipc.wire import Ask


class Frame:
    """A message's frame that says by which file it came."""

    def __init__(self, file: int | None) -> None:
        self.file = file

    def get(self, name: Any) -> Any:
        if name == zmq.SRCFD and self.file is not None:
            return self.file
        raise zmq.ZMQError(zmq.EINVAL)


def client_of(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


class Hall:
    """A registry with connections of socket pairs; ``gone``: who parted, and why."""

    def __init__(self, count_max: int, has_inproc: bool = False) -> None:
        self.now_ns = 0
        self.out: List[str] = []
        self.gone: List[Tuple[bytes, str]] = []
        self.pairs: Dict[int, Any] = {}
        self.registry = ClientRegistry(
            Credentials(),
            clock_ns=lambda: self.now_ns,
            count_max=count_max,
            connections_max=100,
            has_inproc=has_inproc,
            is_out=self.out.__contains__,
            on_part=lambda peer, reason: self.gone.append((peer.client, reason)),
        )

    def connected(self, owner: str = "uid:7/pid:1") -> int:
        ours, theirs = socket.socketpair()
        file = ours.fileno()
        self.pairs[file] = ours, theirs
        self.registry.connections.opened(file, True)
        self.registry.connections.by_file[file].owner = owner
        return file

    def meet(self, number: int, file: int | None = None) -> Any:
        return self.registry.meet(client_of(number), Frame(self.connected() if file is None else file))

    def close(self) -> None:
        for pair in self.pairs.values():
            for end in pair:
                end.close()


@pytest.fixture
def hall() -> Iterator[Hall]:
    one = Hall(2)
    yield one
    one.close()


def test_a_client_is_known_by_its_number_and_its_connection(hall: Hall) -> None:
    file = hall.connected()
    peer, refusal = hall.meet(1, file)
    assert refusal is None and hall.registry.by_id == {client_of(1): peer}
    assert hall.registry.of_file(file) is peer and peer.name == "uid:7/pid:1 #0000000001"
    hall.registry.closed(peer)
    assert hall.gone == [(client_of(1), "its connection closed")]
    assert hall.registry.of_file(file) is None and hall.meet(1, file)[1] is DEAD
    hall.registry.part(peer, "again")
    assert len(hall.gone) == 1, "it parts once"


def test_numbers_that_clients_chose_are_refused(hall: Hall) -> None:
    for chosen in (b"mine", client_of(9), b"\0\0"):
        peer, refusal = hall.registry.meet(chosen, Frame(hall.connected()))
        assert refusal is DEAD or type(refusal) is Malformed
    assert hall.registry.by_id == {} and hall.registry.ended_count == 2


def test_messages_of_no_connection_are_not_heard(hall: Hall) -> None:
    assert hall.registry.meet(client_of(1), Frame(None))[1] is DEAD
    assert hall.registry.meet(client_of(1), Frame(9999))[1] is DEAD
    assert list(hall.registry.dead) == [client_of(1)], "what else it sent is dropped unread"


def test_a_seat_is_made_by_who_waits_for_nothing_then_by_who_has_most(hall: Hall) -> None:
    busy, _ = hall.meet(1)
    idle, _ = hall.meet(2)
    busy.open = {1: object()}
    third, refusal = hall.meet(3)
    assert refusal is None and hall.gone == [(idle.client, "forgotten")]
    third.open = {1: object()}
    assert type(hall.meet(4)[1]) is Rejected, "all seats are of this owner, and in use"
    other, refusal = hall.meet(5, hall.connected("uid:8/pid:2"))
    assert refusal is None and hall.gone[-1][0] == third.client, "the newest of the owner with the most"
    assert set(hall.registry.by_id) == {busy.client, other.client}


def test_of_two_clients_of_one_connection_the_later_number_counts(hall: Hall) -> None:
    files = [hall.connected(), hall.connected()]
    later, _ = hall.meet(2, files[0])
    assert hall.meet(1, files[0])[1] is DEAD
    assert hall.registry.of_file(files[0]) is later and client_of(1) in hall.registry.dead


def test_the_connections_that_are_over_are_forgotten_after_a_while(hall: Hall) -> None:
    peer, _ = hall.meet(1)
    hall.registry.cut(peer, "enough")
    assert hall.gone == [(peer.client, "enough")] and hall.registry.ended_count == 1
    hall.registry.forget_dead(DEAD_NS)
    assert client_of(1) in hall.registry.dead
    hall.registry.forget_dead(DEAD_NS + 1)
    assert not hall.registry.dead


def test_an_owner_that_is_kept_out_gets_no_seat(hall: Hall) -> None:
    hall.out.append("uid:7/pid:1")
    assert hall.meet(1)[1] is DEAD and not hall.registry.by_id


def named(client: str, origin: str = "") -> Ask:
    ask = Ask()
    ask.client, ask.origin = client, origin
    return ask


def test_an_owner_keeps_its_first_name_and_only_who_may_control_names_another(hall: Hall) -> None:
    peer, _ = hall.meet(1)
    for name, origin, expected in (
        ("arm", "", "arm@uid:7/pid:1 #0000000001"),
        ("leg", "", "arm@uid:7/pid:1 #0000000001"),
        ("", "eye", "arm@uid:7/pid:1 #0000000001"),
    ):
        ask = named(name, origin)
        hall.registry.take_name(peer, ask)
        assert (ask.client, ask.origin) == (expected, "")
    peer.credential = Credential("front", may_control=True)
    ask = named("", "eye")
    hall.registry.take_name(peer, ask)
    assert (ask.client, ask.origin) == ("eye@uid:7 #0000000001", "eye")
