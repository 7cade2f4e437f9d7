"""The server's side of the bus: one ROUTER socket that the loop's thread owns.

It turns messages into plain records and answers into messages; what cannot be read it answers itself with a typed
error. It knows which requests of which client are in flight, so that a client that vanishes can be reported. It does
not know apps, deadlines or the scheduler, has no thread, and is handed its clock.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import deque
from functools import partial
from typing import Any, Callable, Deque, Dict, List, Mapping, Sequence, Tuple, Union

import zmq

from edgeserve.errors import Cancelled, ConfigError, Malformed, Rejected, RequestError, TooLarge
from edgeserve.ipc import wire
from edgeserve.ipc.endpoints import (
    default_endpoint,
    last_endpoint,
    prepare_endpoint,
    read_server_keys,
    readable,
    remove_socket,
    split_endpoint,
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

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=HI")


class Cancel:
    """A client no longer wants the answer to one request in flight. The request still gets its one reply."""

    __slots__ = ("client", "key")

    def __init__(self, client: bytes, key: Key) -> None:
        self.client = client
        self.key = key


class Control:
    """A question about the server (``kind`` of ``wire.CONTROL_KINDS``), to be answered by ``Bus.control_reply``."""

    __slots__ = ("client", "key", "kind")

    def __init__(self, client: bytes, key: Key, kind: str) -> None:
        self.client = client
        self.key = key
        self.kind = kind


class ClientGone:
    """A client vanished with requests in flight: ``keys``. Nobody waits for them; replies to them are ignored."""

    __slots__ = ("client", "keys", "reason")

    def __init__(self, client: bytes, keys: List[Key], reason: str) -> None:
        self.client = client
        self.keys = keys
        self.reason = reason


News = Union[Ask, Cancel, Control, ClientGone]


class _Peer:
    """What is known of one connection. ``keys``: request in flight -> it came from a REQ socket (which needs the
    empty delimiter back, and cannot send heartbeats while it waits)."""

    __slots__ = ("name", "keys", "asked", "seen_ns", "file", "same_host", "patient")

    def __init__(self, client: bytes, file: int | None, same_host: bool) -> None:
        self.name = client.hex()
        self.keys: Dict[Key, bool] = {}
        self.asked: Dict[Key, bool] = {}  # control questions in flight
        self.seen_ns = 0
        self.file = file
        self.same_host = same_host
        self.patient = False


class Bus:
    """The socket and the clients on it. Every method is for the one thread that made it, and none blocks.

    ``message_bytes_max`` bounds a whole message both ways, ``clients_max`` the connections remembered at a time,
    ``client_silence_ns`` how long a client with requests in flight may say nothing. With ``curve_secret_key_file``
    every TCP endpoint is encrypted and clients need the server's public key.
    """

    def __init__(self, endpoints: Sequence[str], *, clock_ns: Callable[[], int], message_bytes_max: int,
                 clients_max: int, client_silence_ns: int, curve_secret_key_file: str = "",
                 context: zmq.Context[Any] | None = None) -> None:
        self._clock_ns = clock_ns
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
        self._looked_ns = clock_ns()
        self._look_busy_ns = max(NS_PER_MS, min(LOOK_BUSY_NS, client_silence_ns // 4))
        self._own_context = context is None
        self._context: zmq.Context[Any] = zmq.Context() if context is None else context
        self.socket: zmq.Socket[Any] = self._context.socket(zmq.ROUTER)
        self._monitor = watch_socket(self.socket, self._context, _WATCHED)
        self._recv = self.socket.recv
        # The method without the wrapper around it, which is for options that are not used here: 15 % of an answer.
        self._send_frame = partial(zmq.backend.Socket.send, self.socket)
        try:
            self._set_up()
            self.endpoints = [self._bind(endpoint, curve_secret_key_file) for endpoint in endpoints]
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
        return bool(self._news) or readable(self.socket)

    def next_due_ns(self) -> int | None:
        """When :meth:`receive` wants to be called although nothing arrived."""
        if self._news:
            return self._looked_ns
        return self._looked_ns + (self._look_busy_ns if self._in_flight else LOOK_IDLE_NS)

    def receive(self, count_max: int = 64) -> List[News]:
        """What waits, at most about ``count_max`` at a time; never blocks."""
        now_ns = self._clock_ns()
        if now_ns - self._looked_ns >= self._look_busy_ns:
            self._look_around(now_ns)
        news = self._news
        recv = self._recv
        while len(news) < count_max:
            try:
                client = recv(_NOBLOCK)
            except zmq.Again:  # asking the socket before each message costs as much as half of reading one
                break
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
        key: Key | None = None  # of a request that shall be answered, also with an error
        try:
            fields = wire.unpack_header(header)
            kind = fields.pop("kind", None)
            if kind != "infer":
                kind = wire.take_kind({"kind": kind})
                named = None if kind in ("beat", "bye") else wire.take_key(fields)
                key = None if kind == "cancel" else named
                self._read_other(client, peer, kind, named, fields, buffers, is_req, news, refusal)
                return
            key = wire.take_key(fields)
            if refusal is not None:
                raise refusal
            if total > self._message_bytes_max:
                raise TooLarge(f"the message has {total} bytes, at most {self._message_bytes_max} are allowed; raise "
                               "[server] message_max")
            if key in peer.keys or peer.asked or len(peer.keys) >= REQUESTS_PER_CLIENT_MAX:
                self._check_new(peer, key)
            ask = wire.decode_infer(fields, buffers, self._message_bytes_max)
        except RequestError as error:
            self._send(client, is_req, (wire.encode_error(key, error),))
            return
        ask.client = client
        ask.key = key
        ask.name = ask.name or peer.name
        if ask.sent_ns is not None and (not peer.same_host or ask.sent_ns > now_ns + STAMP_AHEAD_NS_MAX):
            ask.sent_ns = None
        peer.keys[key] = is_req
        peer.patient = peer.patient or is_req
        self._in_flight += 1
        news.append(ask)

    def _read_other(self, client: bytes, peer: _Peer, kind: str, key: Any, fields: Dict[str, Any], buffers: List[Any],
                    is_req: bool, news: List[News], refusal: RequestError | None) -> None:
        """Everything but requests to infer: ``beat`` and ``bye`` end here, the others become news."""
        wire.refuse_rest(fields, ("kind", "id"), f"a {kind} header")
        if buffers:
            raise Malformed(f"a {kind} message has {len(buffers)} frames after its header, expected none")
        if refusal is not None:
            raise refusal
        if kind == "beat":
            self._send(client, is_req, (wire.pack_header({
                "kind": "beat", "silence_ms": ns_to_ms(self._client_silence_ns),
                "message_bytes_max": self._message_bytes_max}),))
        elif kind == "bye":
            self._part(client, "it said goodbye")
        elif kind == "cancel":
            if key in peer.keys:
                news.append(Cancel(client, key))
        else:
            self._check_new(peer, key)
            peer.asked[key] = is_req
            news.append(Control(client, key, kind))

    def _check_new(self, peer: _Peer, key: Key) -> None:
        if key in peer.keys or key in peer.asked:
            raise Malformed(f"id = {key!r} is in flight already; every request needs an id of its own")
        if len(peer.keys) + len(peer.asked) >= REQUESTS_PER_CLIENT_MAX:
            raise Rejected(f"this client has {REQUESTS_PER_CLIENT_MAX} requests in flight, the most one may have; wait "
                           "for answers", "too many in flight")

    # --- what goes out ------------------------------------------------------------------------------------------------

    def answer(self, client: bytes, key: Key, outputs: Mapping[str, Any], *, outcome: str = "completed",
               reason: str = "", late: bool = False, finished_ns: int = 0, total_ns: int = 0,
               breakdown: Sequence[int] = (0, 0, 0, 0)) -> bool:
        """The one reply to a request that completed. Large arrays are not copied: they must not change afterwards.

        ``True`` when it went out as given. An output that cannot travel is answered with ``failed`` instead; a client
        that is gone meanwhile gets nothing.
        """
        peer = self._peers.get(client)
        is_req = peer.keys.pop(key, None) if peer is not None else None
        if is_req is None:
            return False
        self._in_flight -= 1
        try:
            frames = wire.encode_answer(key, outputs, self._message_bytes_max, outcome, reason, late, finished_ns,
                                        total_ns, breakdown)
        except RequestError as error:
            self._send(client, is_req, (wire.encode_error(key, error),))
            return False
        return self._send(client, is_req, frames)

    def error(self, client: bytes, key: Key, error: RequestError) -> None:
        """The one reply to a request (or control question) that ended without an answer."""
        is_req = self._take(client, key)
        if is_req is not None:
            self._send(client, is_req, (wire.encode_error(key, error),))

    def control_reply(self, client: bytes, key: Key, payload: Mapping[str, Any]) -> None:
        """The one reply to a :class:`Control`: plain numbers, strings, lists and maps. What cannot travel is answered
        with ``failed``."""
        is_req = self._take(client, key)
        if is_req is None:
            return
        try:
            header = wire.encode_info(key, payload)
        except RequestError as error:
            header = wire.encode_error(key, error)
        self._send(client, is_req, (header,))

    def _take(self, client: bytes, key: Key) -> bool | None:
        """Forget a request in flight: whether it came from a REQ socket, ``None`` when nobody waits for it."""
        peer = self._peers.get(client)
        if peer is None:
            return None
        if key in peer.keys:
            self._in_flight -= 1
            return peer.keys.pop(key)
        return peer.asked.pop(key, None)

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
        peer = _Peer(client, file, file is None or self._open.get(file, False))
        if len(self._peers) >= self._clients_max and not self._forget_idle():
            return peer, Rejected(f"the server remembers {self._clients_max} clients and each has requests in flight; "
                                  "raise [server] clients_max", "too many clients")
        self._peers[client] = peer
        if file is not None:
            before = self._files.get(file)
            if before is not None:
                self._part(before, "its connection closed")
            self._files[file] = client
        return peer, None

    def _forget_idle(self) -> bool:
        """Make room: forget the client without requests in flight that was silent longest."""
        idle = [(peer.seen_ns, client) for client, peer in self._peers.items() if not peer.keys and not peer.asked]
        if idle:
            self._part(min(idle)[1], "forgotten")
        return bool(idle)

    def _look_around(self, now_ns: int) -> None:
        self._looked_ns = now_ns
        self._watch()
        # A connection may have closed before its first message was read, so before it had a name here.
        for client, peer in list(self._peers.items()):
            if peer.file is not None and peer.file not in self._open:
                self._closed(client)
            elif peer.keys and not peer.patient and now_ns - peer.seen_ns > self._client_silence_ns:
                self._abandon_branch(client, peer)

    def _abandon_branch(self, client: bytes, peer: _Peer) -> None:
        """The client is connected but silent; if it wakes up it shall know what became of its requests."""
        keys = list(peer.keys)
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
            else:
                self._open.pop(file, None)
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
        if peer.keys:
            self._in_flight -= len(peer.keys)
            self._news.append(ClientGone(client, list(peer.keys), reason))

    def close(self) -> None:
        """Stop listening; answers already given still go out within a short bound. Idempotent."""
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self._monitor.close(0)
        for path, inode in self._paths.items():
            remove_socket(path, inode)
        self.socket.close(CLOSE_LINGER_MS)
        if self._own_context:
            self._context.term()


_DEAD = RequestError("the connection is closed")
