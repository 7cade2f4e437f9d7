"""The server's side of the bus: one ROUTER socket that the loop's thread owns.

It turns messages into plain records and answers into messages; what cannot be read it answers itself with a typed
error. It has the one table of requests in flight, by connection, so that a cancel finds its request and a client that
vanishes can be reported with all of its own. It does not know apps, deadlines or the scheduler, has no thread, and is
handed its clock.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import select
import struct
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, Union

import msgpack
import zmq

from edgeserve.errors import (
    BadInput,
    Cancelled,
    ConfigError,
    Malformed,
    NotAllowed,
    Rejected,
    RequestError,
    TooLarge,
)
from edgeserve.ipc import wire
from edgeserve.ipc.connections import Connection, Connections, connections_max, hang_up, received_bytes
from edgeserve.ipc.credentials import NOBODY, AllowedKeys, Authenticator, Credential, Credentials, require_keys
from edgeserve.ipc.endpoints import (
    default_endpoint,
    has_ipv6,
    last_endpoint,
    notice_gone_peers,
    prepare_endpoint,
    read_server_keys,
    readable,
    remove_socket,
    socket_mode,
    split_endpoint,
    watch_socket,
)
from edgeserve.ipc.flood import PENALTY_NS, Flood
from edgeserve.ipc.forms import FIRST_LEARN_AFTER, LEARN_AFTER, Form, learn_form
from edgeserve.ipc.memory import GiveBack, own_bytes
from edgeserve.ipc.segments import Offers, check_room, offers_for
from edgeserve.ipc.tensors import LARGE_BYTES, TENSORS_MAX
from edgeserve.ipc.unfinished import LOOK_NS, Sample, Unfinished
from edgeserve.ipc.unread import MARK_BYTES, Unread
from edgeserve.ipc.wire import Ask, Key
from edgeserve.units import NS_PER_MS, NS_PER_S, format_size, ns_to_ms

__all__ = ["Ask", "Bus", "Cancel", "ClientGone", "Control", "default_endpoint"]

REQUESTS_PER_CLIENT_MAX = 4096  # in flight on one connection; the runtime's own bounds are usually below
READ_MAX = 256  # messages that one receive reads, also if none of them is news: the loop has others to serve
SEND_MESSAGES_MAX = 4096  # answers per client that it has not read; one more and it counts as gone, never a silent drop
LOOK_BUSY_NS = 50 * NS_PER_MS  # how soon a killed client is noticed while its work waits
LOOK_IDLE_NS = NS_PER_S
DEAD_IDENTITIES_MAX = 4096  # connections that closed lately, whose last messages may still come
DEAD_NS = 30 * NS_PER_S  # and for how long, once the socket was found empty: the last have come by then
CLOSE_LINGER_MS = 250  # answers given just before closing still go out, if their clients read
STAMP_AHEAD_NS_MAX = NS_PER_S  # a send stamp further in the future is of another clock and ignored

BYTES_MAX = 2**62
"""Where no bound was given."""

NAMES_MAX = 4096
"""Owners whose name is remembered."""

SLICE_FRAMES = 2048
"""Frames of an oversized message that are dropped at a time, about a millisecond: the loop has others to serve."""

STUCK_PENALTY_NS = 600 * NS_PER_S
"""How long an owner of connections that libzmq does not close may not connect."""

DROP_MAX = 256
"""Messages of connections that are over which one receive drops, about a millisecond."""

SURPLUS_FRAMES_MAX = 65_536
"""A message with more frames than that ends its connection: no mistake makes so many."""

AWAY_CHECKS = 2
"""Where nothing was read for so many times the time between two checks for silent clients, the server itself was away
(stopped, or busy), and every client has its full time again."""

PROBE_MESSAGES_MAX = 2
"""Before each of so many messages of a burst the socket is asked whether one waits; then messages are read until none
is there. The exception that an empty socket raises costs as much as three questions."""

POLL_NS_MIN = 2 * NS_PER_MS
"""Shorter waits use ``select``, which counts microseconds; ``zmq_poll`` counts milliseconds."""

FD_SELECT_MAX = 1024  # ``select`` takes no file number beyond this

NAME_MARK = " #"
"""In the name of a request's client: before it whose connection it is, which is what shares go by, behind it which."""

OWNER_MARK = "@"
"""Before it what the client calls itself, for its weight; behind it whose connection it is."""

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=HI")
_POLLIN = int(zmq.POLLIN)
_first_numbers = itertools.count(1)


class Cancel:
    """A client no longer wants the answer to one request in flight. The request still gets its one reply."""

    __slots__ = ("ask",)

    def __init__(self, ask: Ask) -> None:
        self.ask = ask


class Control:
    """A question about the server (``kind`` of ``wire.CONTROL_KINDS``), to be answered by ``Bus.control_reply``.
    ``number``: the request that a ``story`` is asked of, the step behind which a ``trace`` begins, else 0.
    ``name``: of the model that a ``reload`` is about, else empty."""

    __slots__ = ("peer", "key", "is_req", "kind", "number", "name")

    def __init__(self, peer: Any, key: Key, is_req: bool, kind: str, number: int = 0, name: str = "") -> None:
        self.name = name
        self.peer = peer
        self.key = key
        self.is_req = is_req
        self.kind = kind
        self.number = number


class ClientGone:
    """A client vanished with requests in flight: ``asks``. Nobody waits for them; replies to them are ignored."""

    __slots__ = ("client", "asks", "reason")

    def __init__(self, client: bytes, asks: List[Ask], reason: str) -> None:
        self.client = client
        self.asks = asks
        self.reason = reason


News = Union[Ask, Cancel, Control, ClientGone]


class _Peer:
    """What is known of one connection. ``open`` holds its requests and control questions in flight, ``bytes`` what
    their messages have together. ``owner`` is whose it is (:class:`Connection`), ``name`` what its requests carry as
    their client. ``key`` is its public key, where keys are allowed. ``patient``: one request came from a REQ socket,
    which cannot send heartbeats while it waits. ``memory``: what its connection shares with this process."""

    __slots__ = ("client", "name", "open", "seen_ns", "file", "same_host", "patient", "credential", "owner", "uid",
                 "bytes", "unread", "key", "memory", "form", "unformed")

    def __init__(self, client: bytes, connection: Connection | None, credential: Credential = NOBODY) -> None:
        self.client = client
        self.credential = credential
        self.open: Dict[Key, Union[Ask, Control]] = {}
        self.seen_ns = 0
        self.file = None if connection is None else connection.file
        self.same_host = connection is None or connection.same_host
        self.owner = "inproc" if connection is None else connection.owner
        self.uid = os.getuid() if connection is None else connection.uid
        self.name = f"{self.owner}{NAME_MARK}{client.hex()}"
        self.patient = False
        self.bytes = 0
        self.unread = Unread()
        self.key = ""
        self.memory = None if connection is None else connection.memory
        self.form: Form | None = None
        self.unformed = LEARN_AFTER - FIRST_LEARN_AFTER


class Bus:
    """The socket and the clients on it. Every method is for the one thread that made it, and none blocks.

    ``message_bytes_max`` bounds a whole message both ways, ``clients_max`` the connections remembered at a time,
    ``client_silence_ns`` how long a client with requests in flight may say nothing. With ``curve_secret_key_file``
    every TCP endpoint is encrypted and clients need the server's public key; with ``client_keys`` (a folder) only those
    whose keys lie there are let in, and ``control_keys`` (names) may control the server. ``ask_type`` is the class of
    the records of requests: :class:`Ask`, or one that extends it. Bounds in bytes of the messages of requests in
    flight: ``pending_bytes_max`` of all, ``client_bytes_max`` of one connection, ``app_bytes_max`` by app;
    ``unread_bytes_max`` of the answers that one client has not read. ``shared_memory_bytes``: what a client on this
    host may share for its large tensors, all together ``pending_bytes_max``; 0 for none.
    """

    def __init__(self, endpoints: Sequence[str], *, clock_ns: Callable[[], int], message_bytes_max: int,
                 clients_max: int, client_silence_ns: int, curve_secret_key_file: str = "",
                 client_keys: str = "", control_keys: Sequence[str] = (), ask_type: Callable[[], Ask] = Ask,
                 context: zmq.Context[Any] | None = None, pending_bytes_max: int = BYTES_MAX,
                 client_bytes_max: int = BYTES_MAX, unread_bytes_max: int = BYTES_MAX,
                 app_bytes_max: Mapping[str, int] | None = None, shared_memory_bytes: int = 0) -> None:
        self._clock_ns = clock_ns
        self._pending_bytes_max = max(pending_bytes_max, message_bytes_max)
        self._client_bytes_max = max(client_bytes_max, message_bytes_max)
        self._unread_bytes_max = max(unread_bytes_max, 2 * message_bytes_max)
        self._app_bytes_max = app_bytes_max or {}
        self._app_bytes = dict.fromkeys(self._app_bytes_max, 0)
        self._bytes = self._in_flight = 0
        self._ask_type = ask_type
        self._message_bytes_max = message_bytes_max
        self._clients_max = clients_max
        self._client_silence_ns = client_silence_ns
        self._peers: Dict[bytes, _Peer] = {}
        self._files: Dict[int, bytes] = {}  # connection -> client
        self._connections = Connections(connections_max(clients_max), self._is_idle)
        self._names: Dict[str, str] = {}  # whose connections -> what they call themselves, with the mark behind it
        self._surplus: _Peer | None = None  # whose message's rest is being dropped
        self._surplus_frames = self._first_id = 0
        self._dead: Dict[bytes, int] = {}  # connections that are over, and since when
        self._flood: Flood | None = None  # since the socket was empty last
        self._flooders: Dict[str, int] = {}  # owners that may not connect, and until when
        self._news: List[News] = []
        self._paths: Dict[str, int] = {}  # socket files of ours, by their inode
        self.refused: Callable[[RequestError, str], None] = lambda error, owner: None  # what is refused here, and whose
        self._looked_ns = clock_ns()  # when it was last known which connections are open
        self._stirred = self._quiet = False  # whether something happened to a connection; whether the last wait knows
        self._look_busy_ns = max(NS_PER_MS, min(LOOK_BUSY_NS, client_silence_ns // 4))
        self._check_ns = max(NS_PER_MS, min(LOOK_IDLE_NS, client_silence_ns // 4))  # who is silent
        self._check_at_ns = self._looked_ns + self._check_ns
        self._give_back = GiveBack(self._looked_ns)
        self._received_ns = self._awake_ns = self._looked_ns  # when was read last, and since when without a pause
        allowed = AllowedKeys(client_keys, clock_ns) if client_keys else None
        self._credentials = Credentials(allowed, control_keys)
        self._own_context = context is None
        self._context: zmq.Context[Any] = zmq.Context() if context is None else context
        self._authenticator = Authenticator(self._context, allowed) if allowed is not None else None
        seed_routing_ids()
        self.socket: zmq.Socket[Any] = self._context.socket(zmq.ROUTER)
        self._here = [(self.socket, _POLLIN)]
        self._monitor = watch_socket(self.socket, self._context, _WATCHED)
        self._monitor_file = int(self._monitor.getsockopt(zmq.FD))
        self._offers: Offers | None = None
        self._pack = msgpack.Packer().pack
        self._recv = self.socket.recv
        # The method without the wrapper around it, which is for options that are not used here: 15 % of an answer.
        self._send_frame = partial(zmq.backend.Socket.send, self.socket)
        try:
            self._set_up()
            self._has_inproc = any(endpoint.startswith("inproc") for endpoint in endpoints)
            self.endpoints = [self._bind(endpoint, curve_secret_key_file) for endpoint in endpoints]
            self._file = self.fileno()
            self._offers = offers_for(endpoints, shared_memory_bytes, self._pending_bytes_max, clock_ns)
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        socket = self.socket
        socket.linger = 0
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an answer that cannot go out is an error here, not silence
        socket.setsockopt(zmq.RCVHWM, 0)  # see flood.py
        # Nobody who chooses a routing id is served. But without this libzmq keeps all that a second connection of one
        # id sends, for ever (docs/notes/libzmq.md).
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.SNDHWM, SEND_MESSAGES_MAX)
        # Somewhat over the bound still gets a typed error; far over, libzmq closes the connection unread.
        socket.setsockopt(zmq.MAXMSGSIZE, 2 * self._message_bytes_max + wire.HEADER_BYTES_MAX)
        self._unfinished = Unfinished(self._message_bytes_max, self._pending_bytes_max)
        self._has_tcp = False
        self._first_id = self._learn_first_id()
        self._is_armed = False  # the socket was found empty and not used since: its file tells of what comes
        self._has_come = False  # the last wait ended for a message
        self._comes_in_bursts = False  # the last receive read several
        self._other_file = -1
        self._poll: Callable[[int], List[Tuple[int, int]]]
        self._tables: Dict[str, wire.Table] = {}
        self._piece_tables: Dict[str, wire.Table] = {}

    def _learn_first_id(self) -> int:
        """libzmq numbers the clients that choose no routing id one after the other: the number of the first, which is
        a client of our own. What looks like such a number and cannot be one was chosen by a client."""
        address = f"inproc://edgeserve-first-{next(_first_numbers)}"
        self.socket.bind(address)
        first: zmq.Socket[Any] = self._context.socket(zmq.DEALER)
        first.linger = 0
        try:
            first.connect(address)
            first.send(b"")
            client, _ = self.socket.recv_multipart()
        finally:
            first.close()
            self.socket.unbind(address)
        return int.from_bytes(client[1:], "big")

    def _bind(self, endpoint: str, secret_key_file: str) -> str:
        transport, address = split_endpoint(endpoint)
        prepare_endpoint(endpoint, bool(secret_key_file))
        secure = transport == "tcp" and bool(secret_key_file)
        if secure:
            self.socket.curve_publickey, self.socket.curve_secretkey = read_server_keys(secret_key_file)
        if zmq.has("curve"):
            self.socket.setsockopt(zmq.CURVE_SERVER, int(secure))  # counts for the binds that follow
        if secure and self._authenticator is not None:
            require_keys(self.socket)
        if transport == "tcp":
            self._has_tcp = True
            notice_gone_peers(self.socket)
            self.socket.setsockopt(zmq.IPV6, int(has_ipv6(endpoint)))
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            taken = " (another server listens there already)" if error.errno == errno.EADDRINUSE else ""
            raise ConfigError(f"[server] endpoint = {endpoint!r} cannot be bound: {error.strerror}{taken}; "
                              "give another endpoint") from None
        if transport == "ipc":
            os.chmod(address, socket_mode(address))
            self._paths[address] = os.stat(address).st_ino
        return last_endpoint(self.socket) if transport == "tcp" else endpoint

    # --- what comes in ------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """For ``select`` and ``poll``. Edge-triggered as libzmq's is: ask :meth:`has_more` before sleeping on it."""
        return int(self.socket.getsockopt(zmq.FD))

    def has_more(self) -> bool:
        """Something waits for :meth:`receive`."""
        return bool(self._news or self._stirred or zmq.zmq_poll(self._here, 0)) \
            or self._clock_ns() >= min(self._check_at_ns, self._unfinished.look_at_ns)

    def wait(self, file: int, now_ns: int, until_ns: int) -> Tuple[bool, bool]:
        """Sleep until ``file`` can be read, :meth:`receive` wants to be called, or ``until_ns``; whether the first,
        whether the second. Unlike a wait on :meth:`fileno` it overlooks no message that came before."""
        timeout_ns = min(self._check_at_ns, self._unfinished.look_at_ns, until_ns) - now_ns
        if self._news or self._stirred or timeout_ns <= 0:
            return False, True
        if not self._is_armed:
            if zmq.zmq_poll(self._here, 0):
                self._has_come = True
                return False, True
            self._is_armed = True
        if timeout_ns < POLL_NS_MIN:
            found = _wait_readable((file, self._file), timeout_ns)
            self._has_come = self._file in found
            return file in found, self._has_come or not found
        if file != self._other_file:
            self._poll_too(file)
        rang = came = False
        ready = self._poll(timeout_ns // NS_PER_MS)
        for found_one, _ in ready:
            if found_one == self._file:
                came = self._has_come = True
            elif found_one == file:
                rang = True
            else:
                self._stirred = came = True
        self._quiet = not self._stirred
        if not ready and self._unfinished.look_at_ns < min(self._check_at_ns, until_ns):
            self._look_for_unfinished(self._clock_ns())  # without a turn of the loop: nothing came
            return False, False
        return rang, came or not ready

    def _poll_too(self, file: int) -> None:
        """Make what :meth:`wait` sleeps on, with the file of its caller."""
        self._other_file = file
        poll = select.poll()
        for one in (self._file, file, self._monitor_file):
            poll.register(one, select.POLLIN)
        self._poll = poll.poll

    def next_due_ns(self) -> int:
        """When :meth:`receive` wants to be called although nothing arrived, by those who do not :meth:`wait`."""
        if self._news:
            return self._looked_ns
        return min(self._looked_ns + (self._look_busy_ns if self._in_flight else LOOK_IDLE_NS),
                   self._unfinished.look_at_ns)

    def receive(self, count_max: int = 64) -> List[News]:
        """What waits, at most about ``count_max`` at a time; never blocks."""
        now_ns = self._clock_ns()
        if now_ns - self._received_ns > AWAY_CHECKS * self._check_ns:
            self._awake_ns = now_ns
            self._unfinished.forget()
        self._received_ns = now_ns
        if self._quiet:  # the last wait heard nothing of connections
            self._quiet = False
            self._looked_ns = now_ns
        if self._stirred or now_ns - self._looked_ns >= self._look_busy_ns or now_ns >= self._check_at_ns:
            self._look_around(now_ns)
        news = self._news
        recv, poll, here = self._recv, zmq.zmq_poll, self._here
        read = dropped = 0
        known = 1 if self._has_come else 0
        asked = 1 if self._comes_in_bursts else PROBE_MESSAGES_MAX
        all_read = self._has_come = False
        dead = self._dead
        if self._surplus is not None:
            self._drop_surplus(self._surplus)
        counts = None
        if self._flood is not None:
            counts = self._flood.counts
            self._watch()  # who was cut off comes again at once
        while len(news) < count_max and read < READ_MAX and self._surplus is None:
            if known <= read < asked and not poll(here, 0):
                all_read = True
                break
            try:
                client = recv(_NOBLOCK)
            except zmq.Again:
                all_read = True
                break
            if client in dead:
                self._drop_message(client)
                dropped += 1
                if dropped == DROP_MAX:
                    break
                continue
            read += 1
            if counts is not None:
                counts[client] = counts.get(client, 0) + 1
            self._receive_one(client, now_ns, news)
        self._is_armed = all_read
        self._comes_in_bursts = read > PROBE_MESSAGES_MAX
        if all_read:
            self._flood = None
        else:
            self._look_for_flood(now_ns)
        if all_read:  # what a client sent counts before its silence does
            if now_ns >= self._unfinished.look_at_ns:
                self._look_for_unfinished(now_ns)
            if now_ns >= self._check_at_ns:
                self._judge(now_ns)
        self._news = []
        return news

    def _receive_one(self, client: bytes, now_ns: int, news: List[News]) -> None:
        """The rest of a message, of which ``client`` was the first frame, to a record in ``news``."""
        recv: Any = self._recv
        frame = recv(_NOBLOCK, False)  # it says whether more follows; asking the socket costs more
        peer, refusal = self._peers.get(client), None
        if peer is None:
            peer, refusal = self._meet(client, frame)
        peer.seen_ns = now_ns
        is_req = frame.more and len(frame) == 0
        if is_req:
            frame = recv(_NOBLOCK, False)
        more = frame.more
        total = len(frame)
        header = frame.bytes if total < LARGE_BYTES else frame.buffer
        buffers: List[Any] = []
        while more:
            frame = recv(_NOBLOCK, False)
            more = frame.more
            size = len(frame)
            total += size
            if len(buffers) > TENSORS_MAX:
                self._surplus = peer if more else None
                break
            buffers.append(frame.bytes if size < LARGE_BYTES else frame.buffer)
        if refusal is not None and self._is_over(peer, refusal):
            return
        form = peer.form
        found = form.match(header, buffers) if form is not None and refusal is None else None
        if form is None or found is None:
            return self._read_any(peer, header, buffers, total, is_req, now_ns, news, refusal)
        key = found[form.key_at]
        total += form.placed_bytes
        try:
            self._check_bounds(peer, key, total)
            if form.placed_bytes:
                assert peer.memory is not None, "its form was learnt with it"
                form.insert_places(found, buffers)
                peer.memory.copy(buffers)
            ask = self._ask_type()
            form.fill(ask, found, buffers)
            self._enter(peer, ask, key, total, is_req, now_ns)
        except RequestError as error:
            return self._refuse(peer, is_req, key, error)
        news.append(ask)

    def _read_any(self, peer: _Peer, header: Any, buffers: List[Any], total: int, is_req: bool, now_ns: int,
                  news: List[News], refusal: RequestError | None) -> None:
        """A message that has not the form of an earlier one."""
        key: Any = None  # of a request that shall be answered, also with an error
        try:
            fields = wire.unpack_header(header)
            kind = fields.pop("kind", None)
            if kind != "infer":
                kind = wire.take_kind({"kind": kind})
                named = None if kind in ("beat", "bye") else wire.take_key(fields)
                key = None if kind == "cancel" else named
                return self._read_other(peer, kind, named, fields, buffers, is_req, news, refusal)
            named = fields.pop("id", None)
            key = named if type(named) is int and 0 <= named < 2**63 else wire.check_key(named)
            if refusal is not None:
                raise refusal
            if peer.memory is not None:
                total += peer.memory.find(fields, buffers)
            self._check_bounds(peer, key, total)
            ask = self._ask_type()
            _read_ask(ask, fields, buffers, self._message_bytes_max, is_req, peer, header)
            self._enter(peer, ask, key, total, is_req, now_ns)
        except RequestError as error:
            return self._refuse(peer, is_req, key, error)
        news.append(ask)

    def _enter(self, peer: _Peer, ask: Ask, key: Key, total: int, is_req: bool, now_ns: int) -> None:
        """A request is in flight from now on, unless its app has no room."""
        if ask.sent_ns is not None and (not peer.same_host or ask.sent_ns > now_ns + STAMP_AHEAD_NS_MAX):
            ask.sent_ns = None
        if ask.app in self._app_bytes:
            self._enter_app(ask.app, total)
        ask.peer, ask.key, ask.is_req, ask.bytes = peer, key, is_req, total
        if ask.client:
            self._take_name(peer, ask.client)
        ask.client = peer.name if not ask.origin else _name_for(peer, ask)
        peer.bytes, self._bytes, self._in_flight = peer.bytes + total, self._bytes + total, self._in_flight + 1
        peer.open[key] = ask
        peer.patient = peer.patient or is_req

    def _is_over(self, peer: _Peer, refusal: RequestError) -> bool:
        """Whether nobody is there any more to be refused."""
        if self._flood is not None:
            self._flood.refused[peer.client] = peer
        return refusal is _DEAD

    def _refuse(self, peer: _Peer, is_req: bool, key: Any, error: RequestError) -> None:
        if key is not None:
            self.refused(error, peer.credential.owner)
        self._send(peer, is_req, (wire.encode_error(key, error),))

    def _drop_surplus(self, peer: _Peer) -> None:
        """Some more of the frames that a message has too many."""
        recv: Any = self._recv
        for _ in range(SLICE_FRAMES):
            if not recv(_NOBLOCK, False).more:
                self._surplus, self._surplus_frames = None, 0
                return
        self._surplus_frames += SLICE_FRAMES
        if self._surplus_frames > SURPLUS_FRAMES_MAX and peer.client in self._peers:
            self._cut(peer, f"a message of it has over {SURPLUS_FRAMES_MAX} frames")

    def _drop_message(self, client: bytes) -> None:
        """The rest of a message of a connection that is over."""
        recv: Any = self._recv
        for _ in range(SLICE_FRAMES):
            if not recv(_NOBLOCK, False).more:
                return
        self._surplus = _Peer(client, None)

    def _look_for_flood(self, now_ns: int) -> None:
        """There was more to read than was read."""
        if self._flood is None:
            self._flood = Flood(now_ns)
            return
        for client in self._flood.culprits(now_ns):
            peer = self._peers.get(client) or self._flood.refused.get(client)
            if peer is not None:
                self._flooders[peer.owner] = now_ns + PENALTY_NS
                self._die(client)
                self._cut(peer, "it sends faster than the server reads")

    def _look_for_unfinished(self, now_ns: int) -> None:
        """End the connections that send without end and finish no message. Every finished one has been read."""
        connections = self._connections
        found = connections.waiting(0)
        if connections.by_file and not found and not self._unfinished.watches and not self._has_tcp:
            self._unfinished.look_at_ns = now_ns + LOOK_NS
            return
        arriving = {file for file, event in found if event & _POLLIN}
        samples = []
        for file, one in connections.by_file.items():
            peer = self._peers.get(self._files.get(file, b""))
            mark = (one.number, one.met_ns if peer is None else peer.seen_ns)
            samples.append(Sample(file, mark, file in arriving, received_bytes(one)))
        for file in self._unfinished.look(now_ns, own_bytes(), samples):
            one = connections.by_file[file]
            self._flooders[one.owner] = now_ns + PENALTY_NS
            peer = self._peers.get(self._files.get(file, b""))
            if peer is not None:
                self._cut(peer, "a message of it does not end")
            else:
                hang_up(one)

    def _take_name(self, peer: _Peer, name: str) -> None:
        """What a client of this host calls itself counts for its weight, but one owner has one name: the first."""
        if peer.owner not in self._names and peer.same_host:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            self._names[peer.owner] = name + OWNER_MARK
        peer.name = f"{self._names.get(peer.owner, '')}{peer.owner}{NAME_MARK}{peer.client.hex()}"

    def _check_bounds(self, peer: _Peer, key: Key, total: int) -> None:
        """Refuse a request with so many bytes for which there is no room, before it is looked at."""
        if total > self._message_bytes_max or peer.bytes + total > self._client_bytes_max \
                or self._bytes + total > self._pending_bytes_max or self._surplus is not None \
                or key in peer.open or len(peer.open) >= REQUESTS_PER_CLIENT_MAX:
            raise self._why_not(peer, key, total)

    def _why_not(self, peer: _Peer, key: Key, total: int) -> RequestError:
        """Why a request with so many bytes is refused before its header is looked at."""
        if total > self._message_bytes_max or self._surplus is not None:
            return _too_large(total, self._message_bytes_max, self._surplus is not None)
        if key in peer.open or len(peer.open) >= REQUESTS_PER_CLIENT_MAX:
            return _not_new(peer, key)
        if peer.bytes + total > self._client_bytes_max:
            return Rejected(f"this client's requests in flight have {format_size(peer.bytes)}, this one "
                            f"{format_size(total)}, together at most {format_size(self._client_bytes_max)}; wait for "
                            "answers, or raise [server] client_bytes_max", "client_bytes")
        return Rejected(f"all requests in flight have {format_size(self._bytes)}, this one {format_size(total)}, "
                        f"together at most {format_size(self._pending_bytes_max)}; try later, or raise [server] "
                        "pending_bytes_max", "server_bytes")

    def _enter_app(self, app: str, total: int) -> None:
        """Count a request's bytes with its app, or refuse it."""
        bytes_max = max(self._app_bytes_max[app], self._message_bytes_max)
        if self._app_bytes[app] + total > bytes_max:
            raise Rejected(f"the requests in flight of app {app!r} have {format_size(self._app_bytes[app])}, this one "
                           f"{format_size(total)}, together at most {format_size(bytes_max)}; try later, or raise "
                           f"[app.{app}] pending_bytes_max", "app_bytes")
        self._app_bytes[app] += total

    def _read_other(self, peer: _Peer, kind: str, key: Any, fields: Dict[str, Any], buffers: List[Any], is_req: bool,
                    news: List[News], refusal: RequestError | None) -> None:
        """Everything but requests to infer: ``beat`` and ``bye`` end here, the others become news."""
        number = wire.take_request_id(fields) if kind == "story" else wire.take_after(fields) if kind == "trace" else 0
        name = wire.take_model(fields) if kind == "reload" else ""
        token = wire.take_token(fields) if kind == "memory" else b""
        wire.refuse_rest(fields, ("kind", "id"), f"a {kind} header")
        if self._surplus is not None:
            raise _too_large(0, self._message_bytes_max, True)
        if buffers:
            raise Malformed(f"a {kind} message has {len(buffers)} frames after its header, expected none")
        if refusal is not None:
            raise refusal
        if kind == "beat":
            self._send(peer, is_req, (wire.pack_header({
                "kind": "beat", "silence_ms": ns_to_ms(self._client_silence_ns),
                "message_bytes_max": self._message_bytes_max}),))
        elif kind == "bye":
            self._part(peer, "it said goodbye")
        elif kind == "cancel":
            ask = peer.open.get(key)
            if isinstance(ask, Ask):
                news.append(Cancel(ask))
        elif kind == "memory":
            self._send(peer, is_req, (wire.encode_info(key, {"bytes": self._claim(peer, token)}),))
        else:
            if key in peer.open or len(peer.open) >= REQUESTS_PER_CLIENT_MAX:
                raise _not_new(peer, key)
            control = peer.open[key] = Control(peer, key, is_req, kind, number, name)
            self._in_flight += 1
            news.append(control)

    def _claim(self, peer: _Peer, token: bytes) -> int:
        """Shared memory for a connection, as it was passed to its process; how many bytes it has."""
        connection = self._connections.by_file.get(peer.file) if peer.file is not None else None
        if self._offers is None or connection is None:
            raise NotAllowed("token: this server gives no shared memory to this connection; send frames")
        if connection.memory is not None:
            raise Malformed("token: this connection has its shared memory already")
        peer.memory = connection.memory = self._offers.claim(token, connection.owner, connection.uid)
        return peer.memory.bytes

    # --- what goes out ------------------------------------------------------------------------------------------------

    def answer(self, ask: Ask, outputs: Mapping[str, Any], reason: str = "", late: bool = False, finished_ns: int = 0,
               total_ns: int = 0, breakdown: Sequence[int] = (0, 0, 0, 0), quality: float = 1.0,
               branches: Sequence[str] = ()) -> None:
        """The one reply to a request that completed. Large arrays are not copied: they must not change afterwards.

        An output that cannot travel is answered with ``failed`` instead; a client that is gone meanwhile gets nothing.
        """
        peer, key = ask.peer, ask.key
        if peer.open.pop(key, None) is None:
            return
        self._in_flight -= 1
        size = ask.bytes
        peer.bytes -= size
        self._bytes -= size
        if ask.app in self._app_bytes:
            self._app_bytes[ask.app] -= size
        try:
            room = None if ask.room is None or peer.memory is None else peer.memory.room(ask.room)
            frames = wire.encode_answer(key, outputs, self._message_bytes_max, reason, late, finished_ns, total_ns,
                                        breakdown, ask.id, self._pack, quality, branches, room, self._tables)
        except RequestError as error:
            error.id = ask.id
            frames = [wire.encode_error(key, error)]
        self._send(peer, ask.is_req, frames)

    def piece(self, ask: Ask, outputs: Mapping[str, Any]) -> str:
        """Send a piece of the answer to a request that asked for pieces, ahead of its one reply. Why no piece can be
        sent, or ``""``."""
        if ask.key in ask.peer.open:
            try:
                frames = wire.encode_piece(ask.key, outputs, self._message_bytes_max, self._pack, self._piece_tables)
            except RequestError as error:
                return str(error)
            self._send(ask.peer, False, frames)
        return ""

    def refuse(self, ask: Union[Ask, Control], error: RequestError) -> None:
        """The one reply to a request that ended without an answer, or to a question that is not answered."""
        peer = ask.peer
        if peer.open.pop(ask.key, None) is not None:
            self._in_flight -= 1
            if isinstance(ask, Ask):
                self._leave(peer, ask)
            self._send(peer, ask.is_req, (wire.encode_error(ask.key, error),))

    def _leave(self, peer: _Peer, ask: Ask) -> None:
        """A request ended: its bytes count no more."""
        peer.bytes -= ask.bytes
        self._bytes -= ask.bytes
        if ask.app in self._app_bytes:
            self._app_bytes[ask.app] -= ask.bytes

    def control_reply(self, control: Control, payload: Mapping[str, Any]) -> None:
        """The one reply to a :class:`Control`: plain numbers, strings, lists and maps. What cannot travel is answered
        with ``failed``."""
        if control.peer.open.pop(control.key, None) is None:
            return
        self._in_flight -= 1
        try:
            header = wire.encode_info(control.key, payload)
        except RequestError as error:
            header = wire.encode_error(control.key, error)
        self._send(control.peer, control.is_req, (header,))

    def _send(self, peer: _Peer, is_req: bool, frames: Sequence[Any]) -> bool:
        send, unread = self._send_frame, peer.unread
        self._is_armed = False
        if unread.total and not self._may_have_more(peer):
            return False
        try:
            send(peer.client, _MORE)
        except zmq.Again:
            self._cut(peer, f"it left {SEND_MESSAGES_MAX} answers unread")
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._part(peer, "its connection closed")
            return False
        if is_req:
            send(b"", _MORE)
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            flags = _MORE if index < last else _NOBLOCK
            if type(frame) is bytes:
                unread.fresh += len(frame)
                if unread.fresh < MARK_BYTES:
                    send(frame, flags, True)
                    continue
            else:
                unread.fresh += frame.nbytes
            self._lend(unread, frame, flags)
        return True

    def _lend(self, unread: Unread, frame: Any, flags: int) -> None:
        """Send a frame uncopied; where enough was sent since the last mark it is the next."""
        if unread.fresh < MARK_BYTES:
            self._send_frame(frame, flags, False)
            return
        lent = zmq.Frame(frame, track=True, copy=False, copy_threshold=0)
        unread.mark(lent.tracker)
        self._send_frame(lent, flags, False)

    def _may_have_more(self, peer: _Peer) -> bool:
        """Whether a client may get another answer; else it is given up, or the one with the most to read is."""
        waits = peer.unread.look()
        if waits > self._unread_bytes_max:
            self._cut(peer, f"it left answers of {format_size(waits)} unread")
            return False
        if sum([other.unread.total for other in self._peers.values()]) > self._pending_bytes_max:
            for other in self._peers.values():
                other.unread.look()
            most = max(self._peers.values(), key=lambda other: other.unread.total)
            if most.unread.total and sum([other.unread.total for other in self._peers.values()]
                                         ) > self._pending_bytes_max:
                self._cut(most, f"of all clients it left the most unread, {format_size(most.unread.total)}")
        return peer.client in self._peers

    # --- who is there -------------------------------------------------------------------------------------------------

    def _meet(self, client: bytes, frame: Any) -> Tuple[_Peer, RequestError | None]:
        """The first message of a connection (or of a forgotten one)."""
        self._watch()  # what happened to an earlier connection of the same number is known before this one is noted
        if client in self._dead:
            return _Peer(client, None), _DEAD
        file = _file_of(frame)
        connection = self._connections.by_file.get(file) if file is not None else None
        if connection is not None:
            connection.met_ns = self._received_ns
        if file is not None and (connection is None or not self._credentials.is_from(frame, connection.owner)):
            if client[:1] == b"\0":
                self._die(client)  # it closed before its first message was read; its number may be another's by now
            return _Peer(client, None), _DEAD
        peer = self._new_peer(client, connection, frame)
        if client[0] != 0:
            return peer, Malformed("a client may not choose its routing id; leave the socket's option ROUTING_ID "
                                   "(IDENTITY) unset")
        if self._is_chosen(client) or (peer.key and not self._credentials.is_allowed(peer.key)):
            if connection is not None:
                hang_up(connection)
            return peer, _DEAD
        if len(self._peers) >= self._clients_max and not self._forget_idle() and not self._make_room(peer.owner):
            return peer, Rejected(f"the server remembers {self._clients_max} clients and each has requests in flight; "
                                  "raise [server] clients_max", "too many clients")
        if file is None:
            self._peers[client] = peer
        else:
            before = self._peers.get(self._files.get(file, b""))
            if before is not None:  # one of two is of an earlier connection of this number: libzmq numbered it before
                if self._number_of(client) < self._number_of(before.client):
                    self._die(client)
                    return peer, _DEAD
                self._closed(before)
            self._peers[client] = peer
            self._files[file] = client
        return peer, None

    def _new_peer(self, client: bytes, connection: Connection | None, frame: Any) -> _Peer:
        named = f"client {client.hex()}" if connection is None else f"connection {connection.number}"
        peer = _Peer(client, connection, self._credentials.of(frame, named, in_process=connection is None))
        if not peer.same_host:
            peer.key, owner = self._credentials.key_of(frame)
            if owner:
                peer.owner = owner
                peer.name = f"{owner}{NAME_MARK}{client.hex()}"
        return peer

    def _is_chosen(self, client: bytes) -> bool:
        """Whether a routing id that begins as libzmq's own do is none of these."""
        return not self._has_inproc and (
            len(client) != 5 or not 0 < self._number_of(client) <= self._connections.accepted)

    def _number_of(self, client: bytes) -> int:
        """libzmq's number of a connection, from the first on."""
        return (int.from_bytes(client[1:], "big") - self._first_id) & 0xFFFFFFFF

    def _forget_idle(self) -> bool:
        """Make room: forget the client without requests in flight that was silent longest."""
        idle = [(peer.seen_ns, client) for client, peer in self._peers.items() if not peer.open]
        if idle:
            self._part(self._peers[min(idle)[1]], "forgotten")
        return bool(idle)

    def _make_room(self, owner: str) -> bool:
        """End the newest connection of whoever has the most, if ``owner`` has fewer."""
        counts: Dict[str, int] = {}
        for peer in self._peers.values():
            counts[peer.owner] = counts.get(peer.owner, 0) + 1
        greediest = max(sorted(counts), key=counts.__getitem__)
        if counts.get(owner, 0) + 1 >= counts[greediest]:
            return False
        newest = [peer for peer in self._peers.values() if peer.owner == greediest][-1]
        self._cut(newest, f"its owner has {counts[greediest]} connections, and another client came")
        return True

    def _is_idle(self, file: int) -> bool:
        peer = self._peers.get(self._files.get(file, b""))
        return peer is None or not peer.open

    def _look_around(self, now_ns: int) -> None:
        self._looked_ns = now_ns
        self._stirred = False
        self._watch()
        # A connection may have closed before its first message was read, so before it had a name here.
        for peer in list(self._peers.values()):
            if peer.file is not None and peer.file not in self._connections.by_file:
                self._closed(peer)

    def _judge(self, now_ns: int) -> None:
        """Give up the clients that were silent for too long, as far as the server listened."""
        self._check_at_ns = now_ns + self._check_ns
        self._give_back.look(now_ns)
        self._forget_dead(now_ns)
        for owner in self._connections.look_for_stuck():
            self._flooders[owner] = now_ns + STUCK_PENALTY_NS
        if self._credentials.have_changed():
            for peer in list(self._peers.values()):
                if peer.key and not self._credentials.is_allowed(peer.key):
                    self._cut(peer, "its key is not allowed any more")
        for peer in list(self._peers.values()):
            if peer.open and not peer.patient and now_ns - max(peer.seen_ns, self._awake_ns) > self._client_silence_ns:
                self._give_up(peer)

    def _give_up(self, peer: _Peer) -> None:
        """The client is connected but silent; if it wakes up it shall know what became of its requests."""
        keys = list(peer.open)
        silence = f"it sent nothing for {ns_to_ms(self._client_silence_ns):g} ms"
        self._part(peer, silence)
        for key in keys:
            self._send(peer, False, (wire.encode_error(key, Cancelled(f"the client counts as gone: {silence}")),))

    def _watch(self) -> None:
        """Note which connections opened and closed, as libzmq's monitor tells."""
        monitor, connections = self._monitor, self._connections
        while readable(monitor):
            event, endpoint = monitor.recv_multipart(_NOBLOCK)
            kind, file = _EVENT.unpack(event)
            if kind == zmq.EVENT_ACCEPTED:
                ended = connections.opened(file, not endpoint.startswith(b"tcp"))
                if ended is not None:
                    self._file_closed(ended)
                self._unfinished.connected(self._received_ns)
                if self._flooders:
                    self._refuse_flooder(file)
            else:
                self._file_closed(file)

    def _refuse_flooder(self, file: int) -> None:
        """End a connection that was just accepted if its owner flooded the server lately."""
        now_ns = self._clock_ns()
        self._flooders = {owner: until_ns for owner, until_ns in self._flooders.items() if until_ns > now_ns}
        connection = self._connections.by_file.get(file)
        if connection is not None and connection.owner in self._flooders:
            hang_up(connection)

    def _file_closed(self, file: int) -> None:
        self._connections.closed(file)
        peer = self._peers.get(self._files.get(file, b""))
        if peer is not None:
            self._closed(peer)

    def _closed(self, peer: _Peer) -> None:
        if peer.client[:1] == b"\0":  # libzmq's own names are never used twice
            self._die(peer.client)
        self._part(peer, "its connection closed")

    def _cut(self, peer: _Peer, reason: str) -> None:
        """Give a client up and end its connection, so that what libzmq holds for it is freed."""
        connection = self._connections.by_file.get(peer.file) if peer.file is not None else None
        if self._peers.get(peer.client) is peer and peer.client[:1] == b"\0" and connection is not None:
            self._die(peer.client)
        self._part(peer, reason)
        if connection is not None:
            hang_up(connection)

    def _die(self, client: bytes) -> None:
        """Nothing that a connection sent before counts from now on."""
        if len(self._dead) >= DEAD_IDENTITIES_MAX:
            del self._dead[next(iter(self._dead))]
        self._dead[client] = self._received_ns

    def _forget_dead(self, now_ns: int) -> None:
        """The socket was empty: nothing comes any more of connections that were over long before."""
        for client, since_ns in list(self._dead.items()):
            if now_ns - since_ns <= DEAD_NS:
                break
            del self._dead[client]

    def _part(self, peer: _Peer, reason: str) -> None:
        """Forget a client; news when it had requests in flight."""
        if self._peers.get(peer.client) is not peer:
            return
        del self._peers[peer.client]
        if peer.file is not None and self._files.get(peer.file) == peer.client:
            del self._files[peer.file]
        self._in_flight -= len(peer.open)
        asks = [entry for entry in peer.open.values() if isinstance(entry, Ask)]
        for ask in asks:
            self._leave(peer, ask)
        peer.open.clear()
        peer.memory = None  # what its connection shares lasts as long as that
        if asks:
            self._news.append(ClientGone(peer.client, asks, reason))

    def close(self) -> None:
        """Stop listening; answers already given still go out within a short bound. Idempotent."""
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self._monitor.close(0)
        if self._offers is not None:
            self._offers.close()
        for path, inode in self._paths.items():
            remove_socket(path, inode)
        self.socket.close(CLOSE_LINGER_MS)
        if self._authenticator is not None:
            self._authenticator.stop()
        if self._own_context:
            self._context.term()


def _wait_readable(files: Sequence[int], timeout_ns: int) -> Sequence[int]:
    """Those of ``files`` that can be read, none after the time."""
    if max(files) < FD_SELECT_MAX:
        return select.select(files, (), (), timeout_ns / NS_PER_S)[0]
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(timeout_ns / NS_PER_MS)]


def _read_ask(ask: Ask, fields: Any, buffers: List[Any], message_bytes_max: int, is_req: bool, peer: _Peer,
              header: Any) -> None:
    """A request of no known form."""
    if peer.memory is not None:
        peer.memory.copy(buffers)
    wire.decode_infer(ask, fields, buffers, message_bytes_max)
    if ask.pieces and is_req:
        raise BadInput("pieces = true: a REQ socket takes one reply to a request; ask over a DEALER socket")
    if ask.room is not None:
        check_room(ask.room, peer.memory)
    peer.unformed += 1
    if peer.unformed >= LEARN_AFTER:
        peer.unformed = 0
        peer.form = learn_form(header, ask, 0 if peer.memory is None else peer.memory.bytes)


def _name_for(peer: _Peer, ask: Ask) -> str:
    """Whose request it is where a front asks for others. Only who may control the server is believed."""
    if not peer.credential.may_control:
        ask.origin = ""
        return peer.name
    return f"{ask.origin}{OWNER_MARK}{peer.owner}{NAME_MARK}{peer.client.hex()}"


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


def _too_large(total: int, bytes_max: int, has_surplus: bool) -> TooLarge:
    if has_surplus:
        return TooLarge(f"the message has more than {TENSORS_MAX} frames after its header; send fewer tensors")
    return TooLarge(f"the message has {total} bytes, at most {bytes_max} are allowed; raise [server] message_max")


def _not_new(peer: _Peer, key: Key) -> RequestError:
    """Why another request of this id, or another request at all, is refused."""
    if key in peer.open:
        return Malformed(f"id = {key!r} is in flight already; every request needs an id of its own")
    return Rejected(f"this client has {REQUESTS_PER_CLIENT_MAX} requests in flight, the most one may have; wait for "
                    "answers", "too many in flight")


_DEAD = RequestError("the connection is closed")
