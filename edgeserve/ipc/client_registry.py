"""The connections of the bus: the clients, whose they are, what they call themselves, and who makes room for another.

It reads and writes no message; of a message's frame it asks only whose connection it came by.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from typing import Any, Callable, Dict, Tuple

import zmq

from edgeserve.errors import Malformed, Rejected, RequestError
from edgeserve.ipc.connections import Connection, Connections, hang_up
from edgeserve.ipc.costs import OwnerAccounts
from edgeserve.ipc.credentials import Credentials
from edgeserve.ipc.peer import Peer
from edgeserve.ipc.wire import Ask
from edgeserve.owners import CONNECTION_MARK, NAME_MARK, user_of, who_makes_room
from edgeserve.units import NS_PER_S

DEAD_IDENTITIES_MAX = 4096
"""Connections that closed lately and are remembered, since their last messages may still come: sixteen times the
clients that there may be by default."""

DEAD_NS = 30 * NS_PER_S
"""The least time for which they are remembered, once the socket was found empty: the last have come by then."""

NAMES_MAX = 4096
"""Owners whose name is remembered, sixteen times the clients that there may be by default; all are forgotten beyond."""

DEAD = RequestError("the connection is closed")
"""Refuses a message of a connection that is over: the error has no receiver."""

_first_numbers = itertools.count(1)


class ClientRegistry:
    """The clients of a ROUTER socket by routing id (``by_id``), at most ``count_max``; it alone changes that.

    ``dead`` are the connections that are over: since when, and whose. ``ended_count``: connections that this server
    ended. ``is_out(owner)``: whether an owner may not connect; ``on_part(peer, reason)`` is called for each client
    that is forgotten. ``has_inproc``: sockets of this program are clients, too."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        clock_ns: Callable[[], int],
        count_max: int,
        connections_max: int,
        has_inproc: bool,
        is_out: Callable[[str], bool],
        on_part: Callable[[Peer, str], None],
    ) -> None:
        self.by_id: Dict[bytes, Peer] = {}
        self.dead: Dict[bytes, Tuple[int, str]] = {}
        self.ended_count = 0
        self.connections = Connections(connections_max, self._is_idle)
        self.credentials = credentials
        self._clock_ns = clock_ns
        self._count_max = count_max
        self._has_inproc = has_inproc
        self._is_out = is_out
        self._on_part = on_part
        self._accounts = OwnerAccounts(self.connections.processes_of)
        self._files: Dict[int, bytes] = {}  # connection -> client
        self._names: Dict[str, str] = {}  # whose connections -> what they call themselves, with the mark behind it
        self._first_id = 0

    def learn_first_id(self, socket: zmq.Socket[Any], context: zmq.Context[Any]) -> None:
        """libzmq numbers the clients that choose no routing id one after the other: the number of the first, which is
        a client of our own. What looks like such a number and cannot be one was chosen by a client."""
        address = f"inproc://edgeserve-first-{next(_first_numbers)}"
        socket.bind(address)
        first: zmq.Socket[Any] = context.socket(zmq.DEALER)
        first.linger = 0
        try:
            first.connect(address)
            first.send(b"")
            client, _ = socket.recv_multipart()
        finally:
            first.close()
            socket.unbind(address)
        self._first_id = int.from_bytes(client[1:], "big")

    # --- who comes ----------------------------------------------------------------------------------------------------

    def meet(self, client: bytes, frame: Any) -> Tuple[Peer, RequestError | None]:
        """The first message of a connection (or of a forgotten one), and why it is refused, if it is. What happened to
        an earlier connection of the same number must be known before."""
        if client in self.dead:
            return Peer(client, None), DEAD
        file = _file_of(frame)
        if file is None and not self._has_inproc:
            return Peer(client, None), DEAD  # libzmq does not say whose connection it came by
        connection = self.connections.by_file.get(file) if file is not None else None
        now_ns = self._clock_ns()
        if connection is not None:
            connection.met_ns = now_ns
        if file is not None and (connection is None or not self.credentials.is_from(frame, connection.owner)):
            gone = Peer(client, None)  # closed before its first message was read; another may have its number now
            gone.owner = self.credentials.owner_of(frame)
            if client[:1] == b"\0":  # libzmq's own names are never used twice
                self.bury(client, gone.owner)
            return gone, DEAD
        peer = self._new_peer(client, connection, frame, now_ns)
        if client[0] != 0:
            return peer, Malformed(
                "a client may not choose its routing id; leave the socket's option ROUTING_ID (IDENTITY) unset"
            )
        # The owner of a key is known now; by its address alone it was let in.
        is_flooder = connection is not None and self._is_out(peer.owner)
        if self._is_chosen(client) or is_flooder or (peer.key and not self.credentials.is_allowed(peer.key)):
            if connection is not None:
                self.hang_up(connection)
            return peer, DEAD
        if len(self.by_id) >= self._count_max and not self._forget_idle() and not self._make_room(peer.owner):
            return peer, Rejected(
                f"the server remembers {self._count_max} clients and each has requests in flight; "
                "ask again later, or share a client",
                "too many clients",
            )
        if file is not None:
            before = self.of_file(file)
            if before is not None:  # one of two is of an earlier connection of this number: libzmq numbered it before
                if self._number_of(client) < self._number_of(before.client):
                    self.bury(client, peer.owner)
                    return peer, DEAD
                self.closed(before)
            self._files[file] = client
        self.by_id[client] = peer
        return peer, None

    def _new_peer(self, client: bytes, connection: Connection | None, frame: Any, now_ns: int) -> Peer:
        named = f"client {client.hex()}" if connection is None else f"connection {connection.number}"
        peer = Peer(client, connection, self.credentials.of(frame, named, in_process=connection is None))
        if not peer.same_host:
            peer.key, owner = self.credentials.key_of(frame)
            if owner:
                peer.owner = owner
                peer.name = f"{owner}{CONNECTION_MARK}{client.hex()}"
        peer.account = self._accounts.of(peer.owner, now_ns)
        return peer

    def _is_chosen(self, client: bytes) -> bool:
        """True if a routing id that begins as libzmq's own do is none of these."""
        return not self._has_inproc and (
            len(client) != 5 or not 0 < self._number_of(client) <= self.connections.accepted
        )

    def _number_of(self, client: bytes) -> int:
        """libzmq's number of a connection, from the first on."""
        return (int.from_bytes(client[1:], "big") - self._first_id) & 0xFFFFFFFF

    def take_name(self, peer: Peer, ask: Ask) -> None:
        """Take the name that a client of this host gives itself, for its weight, and give a request its client's name;
        an owner keeps its first name. A gateway asks for others: only an owner that may control the server can name
        another."""
        if ask.client:
            if peer.owner not in self._names and peer.same_host:
                if len(self._names) >= NAMES_MAX:
                    self._names.clear()
                self._names[peer.owner] = ask.client + NAME_MARK
            peer.name = f"{self._names.get(peer.owner, '')}{peer.owner}{CONNECTION_MARK}{peer.client.hex()}"
        ask.client = peer.name
        if ask.origin:
            if peer.credential.may_control:
                ask.client = f"{ask.origin}{NAME_MARK}{user_of(peer.owner)}{CONNECTION_MARK}{peer.client.hex()}"
            else:
                ask.origin = ""

    def _forget_idle(self) -> bool:
        """Make room: forget the client without requests in flight that was silent longest."""
        idle = [(peer.seen_ns, client) for client, peer in self.by_id.items() if not peer.open]
        if idle:
            self.part(self.by_id[min(idle)[1]], "forgotten")
        return bool(idle)

    def _make_room(self, owner: str) -> bool:
        """End the newest connection of the owner with the most, if ``owner`` has fewer."""
        counts: Dict[str, int] = {}
        for peer in self.by_id.values():
            counts[peer.owner] = counts.get(peer.owner, 0) + 1
        greediest = who_makes_room(counts, owner)
        if greediest is None:
            return False
        newest = [peer for peer in self.by_id.values() if peer.owner == greediest][-1]
        self.cut(newest, f"its owner has {counts[greediest]} connections, and another client came")
        return True

    def of_file(self, file: int) -> Peer | None:
        """The client of a connection, once a message of it was read."""
        return self.by_id.get(self._files.get(file, b""))

    def _is_idle(self, file: int) -> bool:
        peer = self.of_file(file)
        return peer is None or not peer.open

    # --- who goes -----------------------------------------------------------------------------------------------------

    def part(self, peer: Peer, reason: str) -> None:
        """Forget a client."""
        if self.by_id.get(peer.client) is not peer:
            return
        del self.by_id[peer.client]
        if peer.file is not None and self._files.get(peer.file) == peer.client:
            del self._files[peer.file]
        self._on_part(peer, reason)

    def closed(self, peer: Peer) -> None:
        """Forget a client whose connection has closed."""
        self.bury(peer.client, peer.owner)
        self.part(peer, "its connection closed")

    def cut(self, peer: Peer, reason: str) -> None:
        """Give a client up and end its connection, so that what libzmq holds for it is freed."""
        connection = self.connections.by_file.get(peer.file) if peer.file is not None else None
        if self.by_id.get(peer.client) is peer and connection is not None:
            self.bury(peer.client, peer.owner)
        self.part(peer, reason)
        if connection is not None:
            self.hang_up(connection)

    def hang_up(self, connection: Connection) -> None:
        """End a connection."""
        self.ended_count += 1
        hang_up(connection)

    def bury(self, client: bytes, owner: str) -> None:
        """Ignore from now on what a connection sent before."""
        if len(self.dead) >= DEAD_IDENTITIES_MAX:
            del self.dead[next(iter(self.dead))]
        self.dead[client] = (self._clock_ns(), owner)

    def forget_dead(self, now_ns: int) -> None:
        """Forget connections that were over long before: the socket was empty, so nothing of theirs comes any more."""
        for client, (since_ns, _) in list(self.dead.items()):
            if now_ns - since_ns <= DEAD_NS:
                break
            del self.dead[client]


def seed_routing_ids() -> None:
    """libzmq numbers clients from the C library's ``rand()``, which begins the same in every process: a client could
    take the number of the next one, at which libzmq aborts."""
    ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "little"))


def _file_of(frame: Any) -> int | None:
    """The file of the connection that a frame came from; inproc has none."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None
