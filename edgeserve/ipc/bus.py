"""The server's side of the bus: one ROUTER socket that the loop's thread owns.

It turns messages into plain records and answers into messages; what cannot be read it answers itself with a typed
error. It has the one table of requests in flight, by connection, so that a cancel finds its request and a client that
vanishes can be reported with all of its own. It does not know apps, deadlines or the scheduler, has no thread, and is
handed its clock.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
import struct
from collections import deque
from functools import partial
from typing import Any, Callable, Deque, Dict, List, Mapping, Sequence, Tuple, Union

import msgpack
import zmq

from edgeserve.errors import BadInput, Cancelled, ConfigError, Malformed, Rejected, RequestError, TooLarge
from edgeserve.ipc import wire
from edgeserve.ipc.credentials import NOBODY, AllowedKeys, Authenticator, Credential, Credentials, require_keys
from edgeserve.ipc.endpoints import (
    default_endpoint,
    has_ipv6,
    last_endpoint,
    prepare_endpoint,
    read_server_keys,
    readable,
    remove_socket,
    split_endpoint,
    use_heartbeats,
    watch_socket,
)
from edgeserve.ipc.tensors import LARGE_BYTES, TENSORS_MAX
from edgeserve.ipc.wire import Ask, Key
from edgeserve.units import NS_PER_MS, NS_PER_S, ns_to_ms

__all__ = ["Ask", "Bus", "Cancel", "ClientGone", "Control", "default_endpoint"]

REQUESTS_PER_CLIENT_MAX = 4096  # in flight on one connection; the runtime's own bounds are usually below
RECEIVE_MESSAGES_MAX = 256  # waiting per client inside libzmq: then the client's own queue fills, nothing is lost
SEND_MESSAGES_MAX = 4096  # answers per client that it has not read; one more and it counts as gone, never a silent drop
LOOK_BUSY_NS = 50 * NS_PER_MS  # how soon a killed client is noticed while its work waits
LOOK_IDLE_NS = NS_PER_S
DEAD_IDENTITIES_MAX = 1024  # connections that closed lately, whose last messages may still come
CLOSE_LINGER_MS = 250  # answers given just before closing still go out, if their clients read
STAMP_AHEAD_NS_MAX = NS_PER_S  # a send stamp further in the future is of another clock and ignored

PROBE_MESSAGES_MAX = 8
"""Before each of so many messages of a burst the socket is asked whether one waits; then messages are read until none
is there. The question costs an eighth of the exception that an empty socket raises."""

POLL_NS_MIN = 2 * NS_PER_MS
"""Shorter waits use ``select``, which counts microseconds; ``zmq_poll`` counts milliseconds."""

FD_SELECT_MAX = 1024  # ``select`` takes no file number beyond this

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=HI")
_POLLIN = int(zmq.POLLIN)


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
    """What is known of one connection. ``open`` holds its requests and control questions in flight. ``patient``: one
    came from a REQ socket, which cannot send heartbeats while it waits."""

    __slots__ = ("client", "name", "open", "seen_ns", "file", "same_host", "patient", "credential")

    def __init__(self, client: bytes, file: int | None, same_host: bool, credential: Credential = NOBODY) -> None:
        self.client = client
        self.credential = credential
        self.name = client.hex()
        self.open: Dict[Key, Union[Ask, Control]] = {}
        self.seen_ns = 0
        self.file = file
        self.same_host = same_host
        self.patient = False


class Bus:
    """The socket and the clients on it. Every method is for the one thread that made it, and none blocks.

    ``message_bytes_max`` bounds a whole message both ways, ``clients_max`` the connections remembered at a time,
    ``client_silence_ns`` how long a client with requests in flight may say nothing. With ``curve_secret_key_file``
    every TCP endpoint is encrypted and clients need the server's public key; with ``client_keys`` (a folder) only those
    whose keys lie there are let in, and ``control_keys`` (names) may control the server. ``ask_type`` is the class of
    the records of requests: :class:`Ask`, or one that extends it.
    """

    def __init__(self, endpoints: Sequence[str], *, clock_ns: Callable[[], int], message_bytes_max: int,
                 clients_max: int, client_silence_ns: int, curve_secret_key_file: str = "",
                 client_keys: str = "", control_keys: Sequence[str] = (), ask_type: Callable[[], Ask] = Ask,
                 context: zmq.Context[Any] | None = None) -> None:
        self._clock_ns = clock_ns
        self._ask_type = ask_type
        self._message_bytes_max = message_bytes_max
        self._clients_max = clients_max
        self._client_silence_ns = client_silence_ns
        self._peers: Dict[bytes, _Peer] = {}
        self._files: Dict[int, bytes] = {}  # connection -> the client on it
        self._open: Dict[int, bool] = {}  # connections that are open -> on this host (not TCP)
        self._dead: Deque[bytes] = deque(maxlen=DEAD_IDENTITIES_MAX)
        self._news: List[News] = []
        self._paths: Dict[str, int] = {}  # socket files of ours, by their inode
        self._in_flight = 0
        self._looked_ns = clock_ns()  # when it was last known which connections are open
        self._stirred = False  # something happened to a connection
        self._quiet = False
        self._look_busy_ns = max(NS_PER_MS, min(LOOK_BUSY_NS, client_silence_ns // 4))
        self._check_ns = max(NS_PER_MS, min(LOOK_IDLE_NS, client_silence_ns // 4))  # who is silent
        self._check_at_ns = self._looked_ns + self._check_ns
        self._numbers: Dict[int, int] = {}  # connection that is open -> which one it is since start
        self._connections = itertools.count(1)
        allowed = AllowedKeys(client_keys, clock_ns) if client_keys else None
        self._credentials = Credentials(allowed, control_keys)
        self._own_context = context is None
        self._context: zmq.Context[Any] = zmq.Context() if context is None else context
        self._authenticator = Authenticator(self._context, allowed) if allowed is not None else None
        self.socket: zmq.Socket[Any] = self._context.socket(zmq.ROUTER)
        self._here = [(self.socket, _POLLIN)]
        self._monitor = watch_socket(self.socket, self._context, _WATCHED)
        self._monitor_file = int(self._monitor.getsockopt(zmq.FD))
        self._pack = msgpack.Packer().pack
        self._recv = self.socket.recv
        # The method without the wrapper around it, which is for options that are not used here: 15 % of an answer.
        self._send_frame = partial(zmq.backend.Socket.send, self.socket)
        try:
            self._set_up()
            self.endpoints = [self._bind(endpoint, curve_secret_key_file) for endpoint in endpoints]
            self._file = self.fileno()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        socket = self.socket
        socket.linger = 0
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an answer that cannot go out is an error here, not silence
        socket.setsockopt(zmq.RCVHWM, RECEIVE_MESSAGES_MAX)
        socket.setsockopt(zmq.SNDHWM, SEND_MESSAGES_MAX)
        # Somewhat over the bound still gets a typed error; far over, libzmq closes the connection unread.
        socket.setsockopt(zmq.MAXMSGSIZE, 2 * self._message_bytes_max + wire.HEADER_BYTES_MAX)

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
            use_heartbeats(self.socket)
            self.socket.setsockopt(zmq.IPV6, int(has_ipv6(endpoint)))
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            taken = " (another server listens there already)" if error.errno == errno.EADDRINUSE else ""
            raise ConfigError(f"[server] endpoint = {endpoint!r} cannot be bound: {error.strerror}{taken}; "
                              "give another endpoint") from None
        if transport == "ipc":
            os.chmod(address, 0o600)
            self._paths[address] = os.stat(address).st_ino
        return last_endpoint(self.socket) if transport == "tcp" else endpoint

    # --- what comes in ------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """For ``select`` and ``poll``. Edge-triggered as libzmq's is: ask :meth:`has_more` before sleeping on it."""
        return int(self.socket.getsockopt(zmq.FD))

    def has_more(self) -> bool:
        """Something waits for :meth:`receive`."""
        return bool(self._news or self._stirred or zmq.zmq_poll(self._here, 0)) \
            or self._clock_ns() >= self._check_at_ns

    def wait(self, file: int, now_ns: int, until_ns: int) -> Tuple[bool, bool]:
        """Sleep until ``file`` can be read, :meth:`receive` wants to be called, or ``until_ns``; whether the first,
        whether the second. Unlike a wait on :meth:`fileno` it overlooks no message that came before."""
        timeout_ns = min(self._check_at_ns, until_ns) - now_ns
        if self._news or self._stirred or timeout_ns <= 0:
            return False, True
        socket = self.socket
        if timeout_ns < POLL_NS_MIN:
            if readable(socket):
                return False, True
            found = _wait_readable((file, self._file), timeout_ns)
            return file in found, self._file in found or not found
        rang = came = False
        ready = zmq.zmq_poll([(socket, _POLLIN), (file, _POLLIN), (self._monitor_file, _POLLIN)],
                             timeout_ns // NS_PER_MS)
        for found_one, _ in ready:
            if found_one is socket:
                came = True
            elif found_one == file:
                rang = True
            else:
                self._stirred = came = True
        self._quiet = not self._stirred
        return rang, came or not ready

    def next_due_ns(self) -> int:
        """When :meth:`receive` wants to be called although nothing arrived, by those who do not :meth:`wait`."""
        if self._news:
            return self._looked_ns
        return self._looked_ns + (self._look_busy_ns if self._in_flight else LOOK_IDLE_NS)

    def receive(self, count_max: int = 64) -> List[News]:
        """What waits, at most about ``count_max`` at a time; never blocks."""
        now_ns = self._clock_ns()
        if self._quiet:  # the last wait heard nothing of connections
            self._quiet = False
            self._looked_ns = now_ns
        if self._stirred or now_ns - self._looked_ns >= self._look_busy_ns or now_ns >= self._check_at_ns:
            self._look_around(now_ns)
        news = self._news
        recv, poll, here = self._recv, zmq.zmq_poll, self._here
        read = 0
        while len(news) < count_max:
            if read < PROBE_MESSAGES_MAX and not poll(here, 0):
                break
            try:
                client = recv(_NOBLOCK)
            except zmq.Again:
                break
            read += 1
            self._receive_one(client, now_ns, news)
        self._news = []
        return news

    def _receive_one(self, client: bytes, now_ns: int, news: List[News]) -> None:
        """The rest of a message, of which ``client`` was the first frame, to a record in ``news``."""
        recv: Any = self._recv
        frame = recv(_NOBLOCK, False)  # a Frame says whether more follows; asking the socket costs more
        peer = self._peers.get(client)
        refusal = None
        if peer is None:
            peer, refusal = self._meet(client, frame)
        peer.seen_ns = now_ns
        more = frame.more
        is_req = more and len(frame) == 0
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
            if len(buffers) <= TENSORS_MAX:
                buffers.append(frame.bytes if size < LARGE_BYTES else frame.buffer)
        if refusal is _DEAD:
            return
        key: Any = None  # of a request that shall be answered, also with an error
        try:
            fields = wire.unpack_header(header)
            kind = fields.pop("kind", None)
            if kind != "infer":
                kind = wire.take_kind({"kind": kind})
                named = None if kind in ("beat", "bye") else wire.take_key(fields)
                key = None if kind == "cancel" else named
                self._read_other(peer, kind, named, fields, buffers, is_req, news, refusal)
                return
            named = fields.pop("id", None)
            key = named if type(named) is int and 0 <= named < 2**63 else wire.check_key(named)
            if refusal is not None:
                raise refusal
            if total > self._message_bytes_max:
                raise TooLarge(f"the message has {total} bytes, at most {self._message_bytes_max} are allowed; raise "
                               "[server] message_max")
            if key in peer.open or len(peer.open) >= REQUESTS_PER_CLIENT_MAX:
                raise _not_new(peer, key)
            ask = self._ask_type()
            _read_ask(ask, fields, buffers, self._message_bytes_max, is_req)
        except RequestError as error:
            self._send(client, is_req, (wire.encode_error(key, error),))
            return
        ask.peer, ask.key, ask.is_req = peer, key, is_req
        if not ask.client:
            ask.client = peer.name
        if ask.sent_ns is not None and (not peer.same_host or ask.sent_ns > now_ns + STAMP_AHEAD_NS_MAX):
            ask.sent_ns = None
        peer.open[key] = ask
        if is_req:
            peer.patient = True
        self._in_flight += 1
        news.append(ask)

    def _read_other(self, peer: _Peer, kind: str, key: Any, fields: Dict[str, Any], buffers: List[Any], is_req: bool,
                    news: List[News], refusal: RequestError | None) -> None:
        """Everything but requests to infer: ``beat`` and ``bye`` end here, the others become news."""
        number = wire.take_request_id(fields) if kind == "story" else wire.take_after(fields) if kind == "trace" else 0
        name = wire.take_model(fields) if kind == "reload" else ""
        wire.refuse_rest(fields, ("kind", "id"), f"a {kind} header")
        if buffers:
            raise Malformed(f"a {kind} message has {len(buffers)} frames after its header, expected none")
        if refusal is not None:
            raise refusal
        if kind == "beat":
            self._send(peer.client, is_req, (wire.pack_header({
                "kind": "beat", "silence_ms": ns_to_ms(self._client_silence_ns),
                "message_bytes_max": self._message_bytes_max}),))
        elif kind == "bye":
            self._part(peer.client, "it said goodbye")
        elif kind == "cancel":
            ask = peer.open.get(key)
            if isinstance(ask, Ask):
                news.append(Cancel(ask))
        else:
            if key in peer.open or len(peer.open) >= REQUESTS_PER_CLIENT_MAX:
                raise _not_new(peer, key)
            control = peer.open[key] = Control(peer, key, is_req, kind, number, name)
            self._in_flight += 1
            news.append(control)

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
        try:
            frames = wire.encode_answer(key, outputs, self._message_bytes_max, reason, late, finished_ns, total_ns,
                                        breakdown, ask.id, self._pack, quality, branches)
        except RequestError as error:
            error.id = ask.id
            frames = [wire.encode_error(key, error)]
        self._send(peer.client, ask.is_req, frames)

    def piece(self, ask: Ask, outputs: Mapping[str, Any]) -> str:
        """Send a piece of the answer to a request that asked for pieces, ahead of its one reply. Why no piece can be
        sent, or ``""``."""
        if ask.key in ask.peer.open:
            try:
                frames = wire.encode_piece(ask.key, outputs, self._message_bytes_max, self._pack)
            except RequestError as error:
                return str(error)
            self._send(ask.peer.client, False, frames)
        return ""

    def refuse(self, ask: Union[Ask, Control], error: RequestError) -> None:
        """The one reply to a request that ended without an answer, or to a question that is not answered."""
        if ask.peer.open.pop(ask.key, None) is not None:
            self._in_flight -= 1
            self._send(ask.peer.client, ask.is_req, (wire.encode_error(ask.key, error),))

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
        self._send(control.peer.client, control.is_req, (header,))

    def _send(self, client: bytes, is_req: bool, frames: Sequence[Any]) -> bool:
        send = self._send_frame
        try:
            send(client, _MORE)
        except zmq.Again:
            self._part(client, f"it left {SEND_MESSAGES_MAX} answers unread")
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._part(client, "its connection closed")
            return False
        if is_req:
            send(b"", _MORE)
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            send(frame, _MORE if index < last else _NOBLOCK, type(frame) is bytes)
        return True

    # --- who is there -------------------------------------------------------------------------------------------------

    def _meet(self, client: bytes, frame: Any) -> Tuple[_Peer, RequestError | None]:
        """The first message of a connection (or of a forgotten one)."""
        self._watch()  # what happened to an earlier connection of the same number is known before this one is noted
        if client in self._dead:
            return _Peer(client, None, False), _DEAD
        try:
            file: int | None = int(frame.get(zmq.SRCFD))
        except zmq.ZMQError:  # inproc has no file
            file = None
        number = (self._numbers.get(file) if file is not None else None) or next(self._connections)
        peer = _Peer(client, file, file is None or self._open.get(file, False),
                     self._credentials.of(frame, f"connection {number}", in_process=file is None))
        if len(self._peers) >= self._clients_max and not self._forget_idle():
            return peer, Rejected(f"the server remembers {self._clients_max} clients and each has requests in flight; "
                                  "raise [server] clients_max", "too many clients")
        self._peers[client] = peer
        if file is not None:
            self._stirred = self._stirred or file not in self._open  # it closed before its first message was read
            before = self._files.get(file)
            if before is not None:
                self._part(before, "its connection closed")
            self._files[file] = client
        return peer, None

    def _forget_idle(self) -> bool:
        """Make room: forget the client without requests in flight that was silent longest."""
        idle = [(peer.seen_ns, client) for client, peer in self._peers.items() if not peer.open]
        if idle:
            self._part(min(idle)[1], "forgotten")
        return bool(idle)

    def _look_around(self, now_ns: int) -> None:
        self._looked_ns = now_ns
        self._check_at_ns = now_ns + self._check_ns
        self._stirred = False
        self._watch()
        # A connection may have closed before its first message was read, so before it had a name here.
        for client, peer in list(self._peers.items()):
            if peer.file is not None and peer.file not in self._open:
                self._closed(client)
            elif peer.open and not peer.patient and now_ns - peer.seen_ns > self._client_silence_ns:
                self._give_up(client, peer)

    def _give_up(self, client: bytes, peer: _Peer) -> None:
        """The client is connected but silent; if it wakes up it shall know what became of its requests."""
        keys = list(peer.open)
        silence = f"it sent nothing for {ns_to_ms(self._client_silence_ns):g} ms"
        self._part(client, silence)
        for key in keys:
            self._send(client, False, (wire.encode_error(key, Cancelled(f"the client counts as gone: {silence}")),))

    def _watch(self) -> None:
        """Note which connections opened and closed, as libzmq's monitor tells."""
        monitor = self._monitor
        while readable(monitor):
            event, endpoint = monitor.recv_multipart(_NOBLOCK)
            kind, file = _EVENT.unpack(event)
            if kind == zmq.EVENT_ACCEPTED:
                self._open[file] = not endpoint.startswith(b"tcp")
                self._numbers[file] = next(self._connections)
            else:
                self._open.pop(file, None)
                self._numbers.pop(file, None)
                client = self._files.get(file)
                if client is not None:
                    self._closed(client)

    def _closed(self, client: bytes) -> None:
        if client[:1] == b"\0":  # libzmq's own names are never used twice
            self._dead.append(client)
        self._part(client, "its connection closed")

    def _part(self, client: bytes, reason: str) -> None:
        """Forget a client; news when it had requests in flight."""
        peer = self._peers.pop(client, None)
        if peer is None:
            return
        if peer.file is not None and self._files.get(peer.file) == client:
            del self._files[peer.file]
        self._in_flight -= len(peer.open)
        asks = [entry for entry in peer.open.values() if isinstance(entry, Ask)]
        peer.open.clear()
        if asks:
            self._news.append(ClientGone(client, asks, reason))

    def close(self) -> None:
        """Stop listening; answers already given still go out within a short bound. Idempotent."""
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self._monitor.close(0)
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


def _read_ask(ask: Ask, fields: Dict[str, Any], buffers: Sequence[Any], message_bytes_max: int, is_req: bool) -> None:
    wire.decode_infer(ask, fields, buffers, message_bytes_max)
    if ask.pieces and is_req:
        raise BadInput("pieces = true: a REQ socket takes one reply to a request; ask over a DEALER socket")


def _not_new(peer: _Peer, key: Key) -> RequestError:
    """Why another request of this id, or another request at all, is refused."""
    if key in peer.open:
        return Malformed(f"id = {key!r} is in flight already; every request needs an id of its own")
    return Rejected(f"this client has {REQUESTS_PER_CLIENT_MAX} requests in flight, the most one may have; wait for "
                    "answers", "too many in flight")


_DEAD = RequestError("the connection is closed")
