"""The clients of the bus: their owners, their requests in flight, their unread answers, and the rule by which one
counts as gone.

A client is gone when its connection closed, when it was silent for too long with requests in flight, or when it is cut
off: it floods the server, sends a message without end, or leaves its answers unread. Its requests in flight are news
then (:class:`ClientGone`). ``connections.py`` counts the connections, ``unfinished.py`` judges messages without end by
numbers; this module asks them and acts. It reads and writes no message.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import select
import struct
from collections import deque
from typing import Any, Callable, Deque, Dict, FrozenSet, List, Mapping, Sequence, Tuple

import zmq

from edgeserve.errors import Cancelled, Malformed, Rejected, RequestError, TooLarge
from edgeserve.ipc.connections import (
    Connection,
    Connections,
    connections_max,
    culprit,
    hang_up,
    offender,
    received_bytes,
)
from edgeserve.ipc.credentials import NOBODY, Credential, Credentials
from edgeserve.ipc.endpoints import readable, watch_socket
from edgeserve.ipc.memory import own_bytes, resident_bytes
from edgeserve.ipc.other_end import sockets_of
from edgeserve.ipc.unfinished import LOOK_NS, Sample, Unfinished
from edgeserve.ipc.wire import Ask, Key
from edgeserve.owners import CONNECTION_MARK, NAME_MARK, pid_of, process_owner, user_of, who_makes_room
from edgeserve.units import NS_PER_MS, NS_PER_S, format_duration, format_size, ns_to_ms

log = logging.getLogger("edgeserve")

STAMP_AHEAD_NS_MAX = NS_PER_S  # a send stamp further in the future is of another clock and ignored
REQUESTS_PER_CLIENT_MAX = 4096  # in flight on one connection; the runtime's own bounds are usually below
LOOK_BUSY_NS = 50 * NS_PER_MS  # how soon a killed client is noticed while its work waits
LOOK_IDLE_NS = NS_PER_S
DEAD_IDENTITIES_MAX = 4096  # connections that closed lately, whose last messages may still come
DEAD_NS = 30 * NS_PER_S  # and for how long, once the socket was found empty: the last have come by then

NAMES_MAX = 4096
"""Owners whose name is remembered."""

STUCK_PENALTY_NS = 600 * NS_PER_S
"""The time for which an owner of connections that libzmq does not close may not connect."""

AWAY_CHECKS = 2
"""The number of intervals between checks for silent clients without a read after which the server itself was away
(stopped, or busy): every client then has its full time again."""

DEAD = RequestError("the connection is closed")
"""Refuses a message of a connection that is over: the error has no receiver."""

MARK_BYTES = 256 * 1024
"""A mark per so many bytes: fewer are never counted, and lending costs more than copying."""

FLOOD_LOOK_NS = 10 * NS_PER_MS
GROWTH_BYTES_MAX = 64 * 1024**2
"""The growth of the process, in bytes, while messages are always waiting, from which a flood is ended."""

CLIENT_MESSAGES_MIN = 8192
"""Read of one client meanwhile: twice the requests that a connection may have in flight. Fewer may be a burst."""

BURST_BYTES_MAX = 512 * 1024**2
"""Growth at which a burst counts as a flood, too, from :data:`MESSAGES_MIN` on."""

MESSAGES_MIN = 1024
"""Read of all meanwhile: fewer are no flood, and the memory is something else's."""

MOST_SHARE = 0.9
"""The share of the most messages sent by one client from which a client is ended with it."""

PENALTY_NS = 2 * NS_PER_S
"""The time for which an owner that flooded may not connect: its messages must be dropped first."""

DROP_SHARE = 30
"""The same, besides, for a message with too many frames: so many times as long as it took to drop it."""

_NOBLOCK = int(zmq.NOBLOCK)
_POLLIN = int(select.POLLIN)
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=HI")
_first_numbers = itertools.count(1)


COST_SHARE = 20
"""A user's refused messages and questions may take this part of the loop's time, those of one of its processes an
equal part of that."""

COST_NS_MAX = 50 * NS_PER_MS
"""And so much at once."""

ACCOUNTS_MAX = 4096
"""Users and processes whose costs are remembered."""


class Account:
    """The loop's time that an owner's refused messages and questions have cost, less its share since. A process has
    the account of its ``user``, too, of which it is one of ``processes``."""

    __slots__ = ("user", "processes", "_owed_ns", "_at_ns")

    def __init__(self, user: Account | None = None, now_ns: int = 0) -> None:
        self.user = user
        self.processes = 1
        # An owner over its limit begins no new account by a new process.
        self._owed_ns = COST_NS_MAX if user is not None and user.is_over(now_ns) else 0
        self._at_ns = now_ns

    def charge(self, cost_ns: int, now_ns: int) -> None:
        """One of them was read."""
        parts = 1
        if self.user is not None:
            self.user.charge(cost_ns, now_ns)
            parts = self.user.processes
        self._owed_ns = max(0, self._owed_ns - (now_ns - self._at_ns) // (COST_SHARE * parts)) + cost_ns
        self._at_ns = now_ns

    def is_over(self, now_ns: int) -> bool:
        """Whether it has had more than its share: then it gets the cheapest answer."""
        parts = 1
        if self.user is not None:
            if not self.user.is_over(now_ns):
                return False
            parts = self.user.processes
        return self._owed_ns - (now_ns - self._at_ns) // (COST_SHARE * parts) > COST_NS_MAX // parts


class ClientGone:
    """A client vanished with requests in flight: ``asks``. Replies to them are ignored."""

    __slots__ = ("client", "asks", "reason")

    def __init__(self, client: bytes, asks: List[Ask], reason: str) -> None:
        self.client = client
        self.asks = asks
        self.reason = reason


class Unread:
    """The bytes of answers that a client has not read yet, as far as libzmq holds them.

    libzmq bounds a client's answers in messages and does not say how many wait. But it tells when it has let go of a
    buffer that it was lent. So once in a while an answer's frame is lent instead of copied, as a mark: answers go out
    in order, so when the mark is let go of, everything before it is with the client's system. ``fresh`` are the bytes
    sent since the last mark; the bus adds to it. ``total`` are those up to the last mark that were not let go of when
    :meth:`look` looked last."""

    __slots__ = ("fresh", "total", "_marks")

    def __init__(self) -> None:
        self.fresh = 0
        self.total = 0
        self._marks: Deque[Tuple[Any, int]] = deque()

    def mark(self, tracker: Any) -> None:
        """A frame was lent: ``tracker.done`` says when it has been let go of."""
        self._marks.append((tracker, self.fresh))
        self.total += self.fresh
        self.fresh = 0

    def look(self) -> int:
        """The number of waiting bytes, without the fresh ones."""
        marks = self._marks
        while marks and marks[0][0].done:
            self.total -= marks.popleft()[1]
        return self.total


class Peer:
    """The state of one connection. ``open`` holds its requests and control questions in flight, ``bytes`` what
    their messages have together. ``owner`` is its owner's name (:class:`Connection`), ``name`` what its requests carry
    as their client. ``key`` is its public key, where keys are allowed. ``patient``: one request came from a REQ socket,
    which cannot send heartbeats while it waits. ``memory``: what its connection shares with this process. ``account``
    is its owner's. ``culprit``: the owner to keep out for its behaviour, once that was looked for."""

    __slots__ = (
        "client",
        "name",
        "open",
        "seen_ns",
        "file",
        "same_host",
        "patient",
        "credential",
        "owner",
        "bytes",
        "unread",
        "key",
        "memory",
        "account",
        "culprit",
    )

    def __init__(self, client: bytes, connection: Connection | None, credential: Credential = NOBODY) -> None:
        self.client = client
        self.credential = credential
        self.open: Dict[Key, Any] = {}  # Ask, or Control of the bus
        self.seen_ns = 0
        self.file = None if connection is None else connection.file
        self.same_host = connection is None or connection.same_host
        self.owner = process_owner(os.getuid(), os.getpid()) if connection is None else connection.owner
        self.name = f"{self.owner}{CONNECTION_MARK}{client.hex()}"
        self.patient = False
        self.bytes = 0
        self.unread = Unread()
        self.key = ""
        self.memory = None if connection is None else connection.memory
        self.account = Account()
        self.culprit: str | None = None


def name_for(peer: Peer, ask: Ask) -> str:
    """The client's name of a request, also where a gateway asks for others: only an owner that may control the server
    can name another."""
    if not peer.credential.may_control:
        ask.origin = ""
        return peer.name
    return f"{ask.origin}{NAME_MARK}{user_of(peer.owner)}{CONNECTION_MARK}{peer.client.hex()}"


class Flood:
    """A period in which messages always waited; it finds the clients that send faster than the server reads.

    libzmq's bound on the messages that wait per client is not used: where it stops reading from a client that then
    closes its connection, it may abort the process (docs/develop/libzmq.md). While messages come faster than they are
    read, the server's memory grows. When it has grown by :data:`GROWTH_BYTES_MAX`, the connections that sent most are
    ended, if they sent more than a client of ours may have in flight: libzmq reads its clients in turn, so clients that
    always have a message waiting have sent equally much, and more than any other. ``counts``: how many of each client
    were read; ``refused``: senders that are no clients. The bus adds to both."""

    __slots__ = ("counts", "refused", "_memory_bytes", "_look_ns")

    def __init__(self, now_ns: int) -> None:
        self.counts: Dict[bytes, int] = {}
        self.refused: Dict[bytes, Any] = {}
        self._memory_bytes = resident_bytes()
        self._look_ns = now_ns + FLOOD_LOOK_NS

    def culprits(self, now_ns: int) -> List[bytes]:
        """The clients that are to be cut off, mostly none."""
        if now_ns < self._look_ns:
            return []
        self._look_ns = now_ns + FLOOD_LOOK_NS
        memory_bytes = resident_bytes()
        growth_bytes = memory_bytes - self._memory_bytes
        if growth_bytes < GROWTH_BYTES_MAX or sum(self.counts.values()) < MESSAGES_MIN:
            return []
        if growth_bytes < BURST_BYTES_MAX and max(self.counts.values()) < CLIENT_MESSAGES_MIN:
            return []
        self._memory_bytes = memory_bytes
        counts, self.counts = self.counts, {}
        least = MOST_SHARE * max(counts.values())
        return [client for client, count in counts.items() if count >= least]


class Peers:
    """The clients of a ROUTER socket, by routing id (``by_id``), and what happens to their connections.

    ``news`` is what the bus tells next: the bus adds what it read, this class the clients that are gone, in order.
    ``dead`` are the connections that are over: since when, and whose. ``flood``: the time since the socket was empty
    last, if messages always waited. ``stirred``: something happened to a connection. ``looked_ns``: when it was last
    known which connections are open; ``check_at_ns``: when silence is judged next; ``received_ns``: when the bus read
    last; ``read_all``: how often nothing more waited then. ``open_count``: requests and control questions in flight,
    ``open_bytes``: of the requests' messages, ``app_bytes``: the same by app, where the app has a bound. The bus reads
    and sets these itself, so that a turn without trouble costs no call.
    """

    __slots__ = (
        "by_id",
        "news",
        "dead",
        "flood",
        "stirred",
        "looked_ns",
        "look_busy_ns",
        "check_ns",
        "check_at_ns",
        "received_ns",
        "read_all",
        "ended_count",
        "unfinished",
        "connections",
        "monitor_file",
        "_credentials",
        "_first_id",
        "_awake_ns",
        "_files",
        "_names",
        "_flooders",
        "_kept_out",
        "_accounts",
        "open_count",
        "open_bytes",
        "app_bytes",
        "_message_bytes_max",
        "_client_bytes_max",
        "_app_bytes_max",
        "_monitor",
        "_socket",
        "_clock_ns",
        "_count_max",
        "_silence_ns",
        "_silence",
        "_unread_bytes_max",
        "_all_bytes_max",
        "_has_inproc",
        "_has_tcp",
    )

    def __init__(
        self,
        socket: zmq.Socket[Any],
        context: zmq.Context[Any],
        credentials: Credentials,
        *,
        clock_ns: Callable[[], int],
        endpoints: Sequence[str],
        count_max: int,
        silence_ns: int,
        message_bytes_max: int,
        client_bytes_max: int,
        app_bytes_max: Mapping[str, int],
        unread_bytes_max: int,
        all_bytes_max: int,
    ) -> None:
        self.by_id: Dict[bytes, Peer] = {}
        self.news: List[Any] = []
        self.dead: Dict[bytes, Tuple[int, str]] = {}
        self.flood: Flood | None = None
        self.stirred = False
        self.looked_ns = now_ns = clock_ns()
        self.look_busy_ns = max(NS_PER_MS, min(LOOK_BUSY_NS, silence_ns // 4))
        self.check_ns = max(NS_PER_MS, min(LOOK_IDLE_NS, silence_ns // 4))
        self.check_at_ns = now_ns + self.check_ns
        self.read_all = 0
        self.ended_count = 0  # connections that this server ended
        self.received_ns = self._awake_ns = now_ns  # and since when without a pause
        self.unfinished = Unfinished(message_bytes_max, all_bytes_max)
        self._credentials = credentials
        self._first_id = 0
        self._files: Dict[int, bytes] = {}  # connection -> client
        self.connections = Connections(connections_max(count_max), self._is_idle)
        self._names: Dict[str, str] = {}  # whose connections -> what they call themselves, with the mark behind it
        self._flooders: Dict[str, int] = {}  # offenders that may not connect, and until when
        self._kept_out = 0
        self._accounts: Dict[str, Account] = {}
        self.open_count = 0
        self.open_bytes = 0
        self.app_bytes = dict.fromkeys(app_bytes_max, 0)
        self._message_bytes_max = message_bytes_max
        self._client_bytes_max = max(client_bytes_max, message_bytes_max)
        self._app_bytes_max = app_bytes_max
        self._clock_ns = clock_ns
        self._count_max = count_max
        self._silence_ns = silence_ns
        self._silence = f"it sent nothing for {ns_to_ms(silence_ns):g} ms"
        self._unread_bytes_max = unread_bytes_max
        self._all_bytes_max = all_bytes_max
        self._has_inproc = any(endpoint.startswith("inproc") for endpoint in endpoints)
        self._has_tcp = any(endpoint.startswith("tcp") for endpoint in endpoints)
        self._socket = socket
        self._monitor = watch_socket(socket, context, _WATCHED)
        self.monitor_file = int(self._monitor.getsockopt(zmq.FD))

    def learn_first_id(self, context: zmq.Context[Any]) -> None:
        """libzmq numbers the clients that choose no routing id one after the other: the number of the first, which is
        a client of our own. What looks like such a number and cannot be one was chosen by a client."""
        address = f"inproc://edgeserve-first-{next(_first_numbers)}"
        self._socket.bind(address)
        first: zmq.Socket[Any] = context.socket(zmq.DEALER)
        first.linger = 0
        try:
            first.connect(address)
            first.send(b"")
            client, _ = self._socket.recv_multipart()
        finally:
            first.close()
            self._socket.unbind(address)
        self._first_id = int.from_bytes(client[1:], "big")

    # --- who comes ----------------------------------------------------------------------------------------------------

    def meet(self, client: bytes, frame: Any) -> Tuple[Peer, RequestError | None]:
        """The first message of a connection (or of a forgotten one)."""
        self.watch()  # what happened to an earlier connection of the same number is known before this one is noted
        if client in self.dead:
            return Peer(client, None), DEAD
        file = _file_of(frame)
        if file is None and not self._has_inproc:
            return Peer(client, None), DEAD  # libzmq does not say whose connection it came by
        connection = self.connections.by_file.get(file) if file is not None else None
        if connection is not None:
            connection.met_ns = self.received_ns
        if file is not None and (connection is None or not self._credentials.is_from(frame, connection.owner)):
            gone = Peer(client, None)  # closed before its first message was read; another may have its number now
            gone.owner = self._credentials.owner_of(frame)
            if client[:1] == b"\0":
                self._die(client, gone.owner)
            return gone, DEAD
        peer = self._new_peer(client, connection, frame)
        if client[0] != 0:
            return peer, Malformed(
                "a client may not choose its routing id; leave the socket's option ROUTING_ID (IDENTITY) unset"
            )
        # The owner of a key is known now; by its address alone it was let in.
        is_flooder = connection is not None and self.is_out(peer.owner)
        if self._is_chosen(client) or is_flooder or (peer.key and not self._credentials.is_allowed(peer.key)):
            if connection is not None:
                self._hang_up(connection)
            return peer, DEAD
        if len(self.by_id) >= self._count_max and not self._forget_idle() and not self._make_room(peer.owner):
            return peer, Rejected(
                f"the server remembers {self._count_max} clients and each has requests in flight; "
                "raise [server] clients_max",
                "too many clients",
            )
        if file is None:
            self.by_id[client] = peer
        else:
            before = self.by_id.get(self._files.get(file, b""))
            if before is not None:  # one of two is of an earlier connection of this number: libzmq numbered it before
                if self._number_of(client) < self._number_of(before.client):
                    self._die(client, peer.owner)
                    return peer, DEAD
                self._closed(before)
            self.by_id[client] = peer
            self._files[file] = client
        return peer, None

    def _new_peer(self, client: bytes, connection: Connection | None, frame: Any) -> Peer:
        named = f"client {client.hex()}" if connection is None else f"connection {connection.number}"
        peer = Peer(client, connection, self._credentials.of(frame, named, in_process=connection is None))
        if not peer.same_host:
            peer.key, owner = self._credentials.key_of(frame)
            if owner:
                peer.owner = owner
                peer.name = f"{owner}{CONNECTION_MARK}{client.hex()}"
        peer.account = self._account_of(peer.owner)
        return peer

    def _account_of(self, owner: str) -> Account:
        if len(self._accounts) >= ACCOUNTS_MAX:
            self._accounts.clear()
        user, account = user_of(owner), self._accounts.get(owner)
        if account is None:
            of_user = self._account_of(user) if user != owner else None
            account = self._accounts[owner] = Account(of_user, self.received_ns)
        if account.user is not None:
            account.user.processes = max(1, self.connections.processes_of(user))
        return account

    def _is_chosen(self, client: bytes) -> bool:
        """Whether a routing id that begins as libzmq's own do is none of these."""
        return not self._has_inproc and (
            len(client) != 5 or not 0 < self._number_of(client) <= self.connections.accepted
        )

    def _number_of(self, client: bytes) -> int:
        """libzmq's number of a connection, from the first on."""
        return (int.from_bytes(client[1:], "big") - self._first_id) & 0xFFFFFFFF

    def take_name(self, peer: Peer, name: str) -> None:
        """Take the name that a client of this host gives itself, for its weight; an owner keeps its first name."""
        if peer.owner not in self._names and peer.same_host:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            self._names[peer.owner] = name + NAME_MARK
        peer.name = f"{self._names.get(peer.owner, '')}{peer.owner}{CONNECTION_MARK}{peer.client.hex()}"

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

    def _is_idle(self, file: int) -> bool:
        peer = self.by_id.get(self._files.get(file, b""))
        return peer is None or not peer.open

    # --- what is in flight --------------------------------------------------------------------------------------------

    def check(self, peer: Peer, key: Key, total: int) -> None:
        """Refuse a request with so many bytes for which there is no room, before it is looked at."""
        if (
            total > self._message_bytes_max
            or peer.bytes + total > self._client_bytes_max
            or self.open_bytes + total > self._all_bytes_max
            or key in peer.open
            or len(peer.open) >= REQUESTS_PER_CLIENT_MAX
        ):
            raise self._why_not(peer, key, total)

    def check_new(self, peer: Peer, key: Key) -> None:
        """Refuse another message that is answered: its id is in flight already, or the client has too many."""
        if key in peer.open:
            raise Malformed(f"id = {key!r} is in flight already; every request needs an id of its own")
        if len(peer.open) >= REQUESTS_PER_CLIENT_MAX:
            raise Rejected(
                f"this client has {REQUESTS_PER_CLIENT_MAX} requests in flight, the most one may have; "
                "wait for answers",
                "too many in flight",
            )

    def _why_not(self, peer: Peer, key: Key, total: int) -> RequestError:
        """Why a request with so many bytes is refused before its header is looked at."""
        if total > self._message_bytes_max:
            return TooLarge(
                f"the message has {total} bytes, at most {self._message_bytes_max} are allowed; raise "
                "[server] message_max"
            )
        self.check_new(peer, key)
        if peer.bytes + total > self._client_bytes_max:
            return Rejected(
                f"this client's requests in flight have {format_size(peer.bytes)}, this one "
                f"{format_size(total)}, together at most {format_size(self._client_bytes_max)}; wait for "
                "answers, or raise [server] client_bytes_max",
                "client_bytes",
            )
        return Rejected(
            f"all requests in flight have {format_size(self.open_bytes)}, this one {format_size(total)}, "
            f"together at most {format_size(self._all_bytes_max)}; try later, or raise [server] "
            "pending_bytes_max",
            "server_bytes",
        )

    def enter(self, peer: Peer, ask: Ask, key: Key, total: int, is_req: bool, now_ns: int) -> None:
        """A request is in flight from now on, unless its app has no room: then it is refused."""
        if ask.sent_ns is not None and (not peer.same_host or ask.sent_ns > now_ns + STAMP_AHEAD_NS_MAX):
            ask.sent_ns = None
        if ask.app in self.app_bytes:
            self._enter_app(ask.app, total)
        ask.peer, ask.key, ask.is_req, ask.bytes = peer, key, is_req, total
        if ask.client:
            self.take_name(peer, ask.client)
        ask.client = peer.name if not ask.origin else name_for(peer, ask)
        peer.bytes += total
        self.open_bytes += total
        self.open_count += 1
        peer.open[key] = ask
        peer.patient = peer.patient or is_req

    def _enter_app(self, app: str, total: int) -> None:
        """Count a request's bytes with its app, or refuse it."""
        bytes_max = max(self._app_bytes_max[app], self._message_bytes_max)
        if self.app_bytes[app] + total > bytes_max:
            raise Rejected(
                f"the requests in flight of app {app!r} have {format_size(self.app_bytes[app])}, this one "
                f"{format_size(total)}, together at most {format_size(bytes_max)}; try later, or raise "
                f"[app.{app}] pending_bytes_max",
                "app_bytes",
            )
        self.app_bytes[app] += total

    def leave(self, peer: Peer, ask: Ask) -> None:
        """A request ended: its bytes count no more."""
        peer.bytes -= ask.bytes
        self.open_bytes -= ask.bytes
        if ask.app in self.app_bytes:
            self.app_bytes[ask.app] -= ask.bytes

    # --- what happens to connections ----------------------------------------------------------------------------------

    def was_away(self, now_ns: int) -> None:
        """Restart every client's time of silence: the server read nothing for a while."""
        self._awake_ns = now_ns
        self.unfinished.forget()

    def look_around(self, now_ns: int) -> None:
        """Note which clients' connections closed."""
        self.looked_ns = now_ns
        self.stirred = False
        self.watch()
        # A connection may have closed before its first message was read, so before it had a name here.
        for peer in list(self.by_id.values()):
            if peer.file is not None and peer.file not in self.connections.by_file:
                self._closed(peer)

    def judge(self, now_ns: int) -> List[Tuple[Peer, Key, Cancelled]]:
        """Give up the clients that were silent for too long, as far as the server listened. Returns what they are to be
        told of their requests, since they are still connected."""
        self.check_at_ns = now_ns + self.check_ns
        self._forget_dead(now_ns)
        for owner in self.connections.look_for_stuck():
            self._keep_out(owner, now_ns + STUCK_PENALTY_NS, "libzmq cannot close connections of it")
        if self._credentials.have_changed():
            for peer in list(self.by_id.values()):
                if peer.key and not self._credentials.is_allowed(peer.key):
                    self.cut(peer, "its key is not allowed any more")
        told = []
        for peer in list(self.by_id.values()):
            if peer.open and not peer.patient and now_ns - max(peer.seen_ns, self._awake_ns) > self._silence_ns:
                told += [(peer, key, Cancelled(f"the client counts as gone: {self._silence}")) for key in peer.open]
                self.part(peer, self._silence)
        return told

    def watch(self) -> None:
        """Note which connections opened and closed, as libzmq's monitor tells."""
        monitor, connections = self._monitor, self.connections
        while readable(monitor):
            event, endpoint = monitor.recv_multipart(_NOBLOCK)
            kind, file = _EVENT.unpack(event)
            if kind == zmq.EVENT_ACCEPTED:
                ended = connections.opened(file, not endpoint.startswith(b"tcp"))
                if ended is not None:
                    self._file_closed(ended)
                self.unfinished.connected(self.received_ns)
                if self._flooders:
                    self._refuse_flooder(file)
            else:
                self._file_closed(file)

    def _refuse_flooder(self, file: int) -> None:
        """End a connection that was just accepted if its owner flooded the server lately."""
        now_ns = self._clock_ns()
        self._flooders = {owner: until_ns for owner, until_ns in self._flooders.items() if until_ns > now_ns}
        connection = self.connections.by_file.get(file)
        if connection is not None and any(self._is_of(connection, whose) for whose in self._flooders):
            self._hang_up(connection)

    @staticmethod
    def _is_of(connection: Connection, whose: str, sockets: FrozenSet[int] | None = None) -> bool:
        """Whether it is a connection of an offender, whose process, where it is one, has these ``sockets``."""
        return offender(connection.owner) == whose or connection.is_among(
            sockets_of(pid_of(whose)) if sockets is None else sockets
        )

    def is_out(self, owner: str) -> bool:
        """Whether this owner may not connect now. For any thread."""
        return self._flooders.get(offender(owner), 0) > self._clock_ns()

    def _file_closed(self, file: int) -> None:
        self.connections.closed(file)
        peer = self.by_id.get(self._files.get(file, b""))
        if peer is not None:
            self._closed(peer)

    # --- who asks too much of the server ------------------------------------------------------------------------------

    def look_for_flood(self, now_ns: int) -> None:
        """There was more to read than was read."""
        if self.flood is None:
            self.flood = Flood(now_ns)
            return
        for client in self.flood.culprits(now_ns):
            peer = self.by_id.get(client) or self.flood.refused.get(client)
            if peer is not None:
                self._keep_out(self._culprit(peer), now_ns + PENALTY_NS, "it sends faster than the server reads")
                self._die(client, peer.owner)
                self.cut(peer, "it sends faster than the server reads")

    def _culprit(self, peer: Peer) -> str:
        """The owner to keep out for a client's behaviour; ``""`` where no owner can be identified."""
        if peer.culprit is None:
            connection = self.connections.by_file.get(peer.file) if peer.file is not None else None
            peer.culprit = culprit(offender(peer.owner), connection)
        return peer.culprit

    def _keep_out(self, whose: str, until_ns: int, reason: str) -> None:
        """No connection of an offender is let in until then."""
        if whose and whose not in self._flooders:
            self._kept_out += 1
            if self._kept_out & (self._kept_out - 1) == 0:  # at 1, 2, 4, 8, ...
                log.warning(
                    "%s may not connect for %s: %s (%d so far)",
                    whose,
                    format_duration(until_ns - self._clock_ns()),
                    reason,
                    self._kept_out,
                )
        if whose:
            self._flooders[whose] = max(self._flooders.get(whose, 0), until_ns)

    def penalise(self, peer: Peer, spent_ns: int, reason: str) -> None:
        """Another slice of frames was dropped of a message with too many, all of them in this time. All connections of
        the offender end (each could hold up the others as long), and no new one is let in for a while; where no owner
        can be identified, the connection ends alone."""
        whose = self._culprit(peer)
        self._keep_out(whose, self._clock_ns() + PENALTY_NS + DROP_SHARE * spent_ns, reason)
        self.cut(peer, reason)
        if not whose:
            return
        for other in [other for other in self.by_id.values() if offender(other.owner) == whose]:
            self.cut(other, reason)
        sockets = sockets_of(pid_of(whose))
        for connection in [one for one in self.connections.by_file.values() if self._is_of(one, whose, sockets)]:
            client = self.by_id.get(self._files.get(connection.file, b""))
            if client is None:  # no message of it was read yet
                self._hang_up(connection)
            else:
                self.cut(client, reason)

    def look_for_unfinished(self, now_ns: int) -> None:
        """End the connections that send without end and finish no message."""
        connections = self.connections
        found = connections.waiting(0)
        if connections.by_file and not found and not self.unfinished.watches and not self._has_tcp:
            self.unfinished.look_at_ns = now_ns + LOOK_NS
            return
        arriving = {file for file, event in found if event & _POLLIN}
        samples = []
        for file, one in connections.by_file.items():
            peer = self.by_id.get(self._files.get(file, b""))
            mark = (one.number, one.met_ns if peer is None else peer.seen_ns)
            samples.append(Sample(file, mark, file in arriving, received_bytes(one), offender(one.owner)))
        for file in self.unfinished.look(now_ns, own_bytes(), samples):
            one = connections.by_file[file]
            self._keep_out(culprit(offender(one.owner), one), now_ns + PENALTY_NS, "a message of it does not end")
            peer = self.by_id.get(self._files.get(file, b""))
            if peer is not None:
                self.cut(peer, "a message of it does not end")
            else:
                self._hang_up(one)

    def may_have_more(self, peer: Peer) -> bool:
        """Whether a client may get another answer; else it is given up, or the one with the most to read is."""
        waits = peer.unread.look()
        if waits > self._unread_bytes_max:
            self.cut(peer, f"it left answers of {format_size(waits)} unread")
            return False
        if sum([other.unread.total for other in self.by_id.values()]) > self._all_bytes_max:
            for other in self.by_id.values():
                other.unread.look()
            most = max(self.by_id.values(), key=lambda other: other.unread.total)
            if most.unread.total and sum([other.unread.total for other in self.by_id.values()]) > self._all_bytes_max:
                self.cut(most, f"of all clients it left the most unread, {format_size(most.unread.total)}")
        return peer.client in self.by_id

    # --- who goes -----------------------------------------------------------------------------------------------------

    def _closed(self, peer: Peer) -> None:
        """A client's connection is over."""
        if peer.client[:1] == b"\0":  # libzmq's own names are never used twice
            self._die(peer.client, peer.owner)
        self.part(peer, "its connection closed")

    def cut(self, peer: Peer, reason: str) -> None:
        """Give a client up and end its connection, so that what libzmq holds for it is freed."""
        connection = self.connections.by_file.get(peer.file) if peer.file is not None else None
        if self.by_id.get(peer.client) is peer and peer.client[:1] == b"\0" and connection is not None:
            self._die(peer.client, peer.owner)
        self.part(peer, reason)
        if connection is not None:
            self._hang_up(connection)

    def _hang_up(self, connection: Connection) -> None:
        self.ended_count += 1
        hang_up(connection)

    def _die(self, client: bytes, owner: str) -> None:
        """Nothing that a connection sent before counts from now on."""
        if len(self.dead) >= DEAD_IDENTITIES_MAX:
            del self.dead[next(iter(self.dead))]
        self.dead[client] = (self.received_ns, owner)

    def _forget_dead(self, now_ns: int) -> None:
        """The socket was empty: nothing comes any more of connections that were over long before."""
        for client, (since_ns, _) in list(self.dead.items()):
            if now_ns - since_ns <= DEAD_NS:
                break
            del self.dead[client]

    def close(self) -> None:
        """Hear of no connection any more."""
        self._monitor.close(0)

    def part(self, peer: Peer, reason: str) -> None:
        """Forget a client; news when it had requests in flight."""
        if self.by_id.get(peer.client) is not peer:
            return
        del self.by_id[peer.client]
        if peer.file is not None and self._files.get(peer.file) == peer.client:
            del self._files[peer.file]
        self.open_count -= len(peer.open)
        asks = [entry for entry in peer.open.values() if isinstance(entry, Ask)]
        for ask in asks:
            self.leave(peer, ask)
        peer.open.clear()
        peer.memory = None  # what its connection shares lasts as long as that
        if asks:
            self.news.append(ClientGone(peer.client, asks, reason))


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
