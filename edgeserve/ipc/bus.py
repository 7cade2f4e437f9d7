"""The server's side of the bus: one ROUTER socket that the loop's thread owns.

It turns messages into plain records and answers into messages; an unreadable message it answers itself with a typed
error. It wires what keeps its state: who is connected (``client_registry.py``), the requests in flight
(``in_flight.py``), who counts as gone (``liveness.py``), the defence (``guard.py``) and the wait (``waiter.py``). It
does not know apps, deadlines or the scheduler, has no thread, and is handed its clock.
"""

from __future__ import annotations

import errno
import logging
import os
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

import zmq

from edgeserve.errors import (
    BadInput,
    Cancelled,
    ConfigError,
    Failed,
    Malformed,
    NotAllowed,
    RequestError,
    TooLarge,
    told,
)
from edgeserve.ipc import wire
from edgeserve.ipc.bounds import NO_KEYS, BusBounds, BusKeys
from edgeserve.ipc.client_registry import DEAD, ClientRegistry, seed_routing_ids
from edgeserve.ipc.connections import connections_max
from edgeserve.ipc.costs import Account
from edgeserve.ipc.credentials import AllowedKeys, Authenticator, Credentials, refuse_old_greetings, require_keys
from edgeserve.ipc.endpoints import (
    default_endpoint,
    has_ipv6,
    last_endpoint,
    notice_gone_peers,
    prepare_endpoint,
    read_server_keys,
    remove_socket,
    socket_mode,
    split_endpoint,
)
from edgeserve.ipc.flood import KeptOut
from edgeserve.ipc.gate import Gate
from edgeserve.ipc.guard import Guard
from edgeserve.ipc.in_flight import InFlight
from edgeserve.ipc.liveness import Liveness
from edgeserve.ipc.memory import GiveBack
from edgeserve.ipc.peer import MARK_BYTES, Peer, Unread
from edgeserve.ipc.segments import Offers, check_room, offers_for
from edgeserve.ipc.tensors import LARGE_BYTES, TENSORS_MAX
from edgeserve.ipc.unfinished import LATE_NS, Unfinished
from edgeserve.ipc.waiter import Waiter
from edgeserve.ipc.wire import Ask, Key
from edgeserve.units import NS_PER_S, ns_to_ms

log = logging.getLogger("edgeserve")

__all__ = ["Ask", "Bus", "Cancel", "ClientLost", "Control", "default_endpoint"]

READ_MAX = 256
"""Messages that one receive reads, also if none of them is news, some milliseconds: the loop has others to serve."""

SEND_MESSAGES_MAX = 4096
"""Answers of a client that it has not read, as many as it may have requests in flight; with one more it counts as
gone, never a silent drop."""

CLOSE_LINGER_MS = 250
"""The time in which answers given just before closing still go out; clients on this host read them in a millisecond."""

HANDSHAKE_MS = 5000
"""Milliseconds that a handshake may take, on a slow line too; then the connection ends, and the client's library tries
again."""

SLICE_FRAMES = 2048
"""Frames of an oversized message that are dropped at a time, one to two milliseconds: the loop has others to serve."""

SURPLUS_FRAMES_MAX = 8192
"""A message with more frames than that ends the connections of its owner: no mistake makes so many, and libzmq gives no
other client's message before its last frame."""

DROP_MAX = 256
"""Messages of connections that are over which one receive drops, about a millisecond."""

STAMP_AHEAD_NS_MAX = NS_PER_S
"""The most that a send stamp may be in the future; one beyond is of another clock and ignored."""

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


class Cancel(NamedTuple):
    """A client no longer wants the answer to one request in flight, or (``keeps``) only its partial answer. The
    request still gets its one reply."""

    ask: Ask
    keeps: bool = False


class Control(NamedTuple):
    """A question about the server (``kind`` of ``wire.CONTROL_KINDS``), to be answered by ``Bus.control_reply``.
    ``word``: the number of the request that a ``story`` is asked of, the step behind which a ``trace`` begins, the name
    of the model that a ``reload`` is about (``""``: the configuration), else None."""

    peer: Peer
    key: Key
    is_req: bool
    kind: str
    word: Any = None


class ClientLost(NamedTuple):
    """A client vanished with requests in flight: ``asks``. Replies to them are ignored."""

    client: bytes
    asks: List[Ask]
    reason: str


News = Union[Ask, Cancel, Control, ClientLost]


class Bus:
    """The socket and the clients on it. Every method is for the one thread that made it, and none blocks. ``ask_type``
    is the class of the records of requests: :class:`Ask`, or one that extends it."""

    def __init__(
        self,
        endpoints: Sequence[str],
        bounds: BusBounds,
        keys: BusKeys = NO_KEYS,
        *,
        clock_ns: Callable[[], int],
        ask_type: Callable[[], Ask] = Ask,
        context: zmq.Context[Any] | None = None,
    ) -> None:
        transports = {split_endpoint(endpoint)[0] for endpoint in endpoints}  # raises before anything is open
        self._clock_ns = clock_ns
        self._ask_type = ask_type
        self._message_bytes_max = bounds.message_bytes_max
        self._client_silence_ns = bounds.client_silence_ns
        self._surplus: Peer | None = None  # whose message's rest is being dropped
        self._surplus_frames = self._surplus_since_ns = 0
        self._received_ns = clock_ns()  # when it read last
        self._news: List[News] = []  # what the next receive tells, in order
        self._paths: Dict[str, int] = {}  # socket files of ours, by their inode
        self.refused: Callable[[RequestError, str], None] = lambda error, owner: None  # a refusal and its owner
        self.costly: List[Account] = []  # whose messages were refused, or are questions, since the last receive began
        self._read_unlooked = 0  # messages read since unfinished ones were looked for, while others waited
        self._read_count = 0  # messages that it read
        self._empty_count = 0  # how often nothing more waited then
        self._unexpected_count = 0  # messages at which something was raised that no client should be told
        self._give_back = GiveBack(clock_ns())
        self._own_context = context is None
        self._context: zmq.Context[Any] = zmq.Context() if context is None else context
        self._gate: Gate | None = None
        self._authenticator: Authenticator | None = None
        self._offers: Offers | None = None
        seed_routing_ids()
        self.socket: zmq.Socket[Any] = self._context.socket(zmq.ROUTER)
        self._recv = self.socket.recv
        # The method without the wrapper around it, which is for options that are not used here: 15 % of an answer.
        self._send_frame = partial(zmq.backend.Socket.send, self.socket)
        bounds = bounds._replace(pending_bytes_max=max(bounds.pending_bytes_max, bounds.message_bytes_max))
        try:
            self._hold_to(bounds, keys, transports)
        except BaseException:
            self._close_sockets(0)
            raise
        try:
            self._set_up()
            self._gate = self._open_gate(transports, bool(keys.secret_key_file))
            self.endpoints = [self._bind(endpoint, keys.secret_key_file) for endpoint in endpoints]
            readable = partial(zmq.zmq_poll, [(self.socket, int(zmq.POLLIN))], 0)
            self._waiter = Waiter(readable, int(self.socket.getsockopt(zmq.FD)), self._guard.monitor_file)
            self._offers = offers_for(endpoints, bounds.shared_memory_bytes, bounds.pending_bytes_max, clock_ns)
        except BaseException:
            self.close()
            raise

    def _hold_to(self, bounds: BusBounds, keys: BusKeys, transports: Set[str]) -> None:
        """Make what knows the clients and ends the ones beyond the bounds."""
        clock_ns, most, message_bytes_max = self._clock_ns, bounds.pending_bytes_max, bounds.message_bytes_max
        allowed = AllowedKeys(keys.client_keys, clock_ns) if keys.client_keys else None
        if allowed is not None and "tcp" in transports:
            self._authenticator = Authenticator(self._context, allowed)
        self._kept_out = KeptOut(clock_ns)
        self._in_flight = InFlight(message_bytes_max, bounds.client_bytes_max, most)
        unread_bytes_max = max(bounds.unread_bytes_max, 2 * message_bytes_max)
        self._liveness = Liveness(self._received_ns, bounds.client_silence_ns, unread_bytes_max, most)
        self._unfinished = Unfinished(message_bytes_max, most)
        self._registry = ClientRegistry(
            Credentials(allowed, keys.control),
            clock_ns=clock_ns,
            count_max=bounds.clients_max,
            connections_max=connections_max(bounds.clients_max),
            has_inproc="inproc" in transports,
            is_out=self._kept_out.has,
            on_part=self._on_part,
        )
        self._guard = Guard(
            self.socket, self._context, self._registry, self._kept_out, self._unfinished, clock_ns, "tcp" in transports
        )

    def _set_up(self) -> None:
        socket = self.socket
        socket.linger = 0
        refuse_old_greetings(socket)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an answer that cannot go out is an error here, not silence
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.RCVHWM, 0)  # see flood.Flood
        # A client that chooses a routing id is not served. But without this libzmq keeps all that a second connection
        # of one id sends, for ever (docs/develop/libzmq.md).
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.SNDHWM, SEND_MESSAGES_MAX)
        # Somewhat over the bound still gets a typed error; far over, libzmq closes the connection unread.
        socket.setsockopt(zmq.MAXMSGSIZE, 2 * self._message_bytes_max + wire.HEADER_BYTES_MAX)
        self._registry.learn_first_id(socket, self._context)

    def _open_gate(self, transports: Set[str], has_key: bool) -> Gate | None:
        """``None`` where there is CURVE: its handshake must not wait (docs/develop/libzmq.md)."""
        if transports <= {"inproc"} or ("tcp" in transports and has_key):
            return None
        try:
            return Gate(self._context, self._kept_out.has, lambda: self._empty_count, self._clock_ns)
        except zmq.ZMQError:  # another bus of this context has it
            return None

    def _bind(self, endpoint: str, secret_key_file: str) -> str:
        transport, address = split_endpoint(endpoint)
        prepare_endpoint(endpoint, bool(secret_key_file))
        secure = transport == "tcp" and bool(secret_key_file)
        if transport == "tcp" and self._authenticator is not None and not secure:
            raise ConfigError(
                f"[server] endpoint = {endpoint!r}: curve_client_keys is set, and without "
                "curve_secret_key_file no client has to prove its key; set [server] "
                "curve_secret_key_file, or leave curve_client_keys out"
            )
        if secure:
            self.socket.curve_publickey, self.socket.curve_secretkey = read_server_keys(secret_key_file)
        if zmq.has("curve"):
            self.socket.setsockopt(zmq.CURVE_SERVER, int(secure))  # counts for the binds that follow
        if secure and self._authenticator is not None:
            require_keys(self.socket)
        if transport == "tcp":
            notice_gone_peers(self.socket)
            self.socket.setsockopt(zmq.IPV6, int(has_ipv6(endpoint)))
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            taken = " (another server listens there already)" if error.errno == errno.EADDRINUSE else ""
            raise ConfigError(
                f"[server] endpoint = {endpoint!r} cannot be bound: {error.strerror}{taken}; give another endpoint"
            ) from None
        if transport == "ipc":
            os.chmod(address, socket_mode(address))
            self._paths[address] = os.stat(address).st_ino
        return last_endpoint(self.socket) if transport == "tcp" else endpoint

    # --- what comes in ------------------------------------------------------------------------------------------------

    def has_more(self) -> bool:
        """Something waits for :meth:`receive`."""
        return bool(self._news or self._liveness.stirred or self._waiter.readable()) or self._clock_ns() >= min(
            self._liveness.check_at_ns, self._unfinished.look_at_ns
        )

    def wait(self, file: int, now_ns: int, until_ns: int) -> Tuple[bool, bool]:
        """Sleep until ``file`` can be read, :meth:`receive` wants to be called, or ``until_ns``. Returns whether
        ``file`` can be read, and whether :meth:`receive` wants a call. A message that came before ends it at once."""
        liveness, unfinished = self._liveness, self._unfinished
        timeout_ns = min(liveness.check_at_ns, unfinished.look_at_ns, until_ns) - now_ns
        if self._news or liveness.stirred or timeout_ns <= 0:
            return False, True
        rang, came, stirred = self._waiter.wait(file, timeout_ns)
        if stirred is not None:
            if stirred:
                liveness.stir()
            is_over = not (rang or came or stirred)
            if is_over and unfinished.look_at_ns < min(liveness.check_at_ns, until_ns):
                self._guard.look_for_unfinished(self._clock_ns())  # without a turn of the loop: nothing came
                return False, False
        return rang, came or bool(stirred) or not rang

    def receive(self, count_max: int = 64) -> List[News]:
        """The waiting messages, at most about ``count_max`` at a time; never blocks."""
        now_ns, liveness, guard, waiter = self._clock_ns(), self._liveness, self._guard, self._waiter
        known, asked, is_quiet = waiter.begin()
        if now_ns - self._received_ns > liveness.away_ns:
            liveness.was_away(now_ns)
            self._unfinished.forget()
        self._received_ns = now_ns
        if (liveness.stirred or now_ns >= liveness.look_at_ns) and liveness.must_look(now_ns, is_quiet):
            guard.look_around()
        news, dead, flood = self._news, self._registry.dead, guard.flood
        recv, poll = self._recv, waiter.readable
        read = dropped = 0
        self.costly.clear()
        all_read = False
        if self._surplus is not None:
            self._drop_surplus(self._surplus)
        if flood is not None:
            guard.watch()  # who was cut off comes again at once
        while len(news) < count_max and read < READ_MAX and self._surplus is None:
            if known <= read < asked and not poll():
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
            if flood is not None:
                flood.count(client)
            try:
                self._receive_one(client, now_ns, news)
            except Exception as raised:  # noqa: BLE001 one message must not end the server
                self._give_up(client, raised)
        waiter.end(read, all_read)
        self._read_count = read
        if all_read:
            self._empty_count += 1
            if flood is not None:
                guard.end_flood()
            if now_ns >= self._unfinished.look_at_ns:
                guard.look_for_unfinished(now_ns)
            if now_ns >= liveness.check_at_ns:
                self._check(now_ns)
        else:
            guard.look_for_flood(now_ns)
            # Small messages must be no shield for a large one. libzmq gives a message of each connection in turn: of
            # every one that finished any, one has been read.
            self._read_unlooked += read + dropped
            is_round = self._read_unlooked > 2 * (len(self._registry.connections.by_file) + len(dead))
            if now_ns > self._unfinished.look_at_ns + (0 if is_round else LATE_NS):
                self._read_unlooked = 0
                guard.look_for_unfinished(now_ns)
        self._news = []
        return news

    def _check(self, now_ns: int) -> None:
        """End the clients that were silent for too long. Called when no message waits: what a client sent counts
        first."""
        liveness, registry = self._liveness, self._registry
        self._give_back.look(now_ns, registry.ended_count)
        self._guard.check(now_ns)
        for peer in liveness.silent(now_ns, registry.by_id.values()):
            keys = list(peer.open)
            registry.part(peer, liveness.silence)
            for key in keys:  # it is still connected
                error = Cancelled(f"the client counts as gone: {liveness.silence}")
                self._send(peer, False, (wire.encode_error(key, error),))

    def _on_part(self, peer: Peer, reason: str) -> None:
        """Forget a client's requests; the ones in flight are news."""
        peer.memory = None  # what its connection shares lasts as long as that
        asks = self._in_flight.end_all(peer)
        if asks:
            self._news.append(ClientLost(peer.client, asks, reason))

    def _receive_one(self, client: bytes, now_ns: int, news: List[News]) -> None:
        """Read the rest of a message, whose first frame was ``client``, and append its record to ``news``."""
        recv: Any = self._recv
        frame = recv(_NOBLOCK, False)  # it says whether more follows; asking the socket costs more
        peer, refusal = self._registry.by_id.get(client), None
        if peer is None:
            self._guard.watch()  # what happened to an earlier connection of the same number is known before
            peer, refusal = self._registry.meet(client, frame)
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
        if refusal is not None:
            if self._guard.flood is not None:
                self._guard.flood.refused[client] = peer
            if refusal is DEAD:
                return
        key: Any = None  # of a request that shall be answered, also with an error
        try:
            fields: Any = wire.read_infer(header)
            if fields is not None:
                named = fields.id
            else:
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
            if peer.memory is not None and type(fields) is dict:  # the other form has no places
                total += peer.memory.find(fields, buffers)
            if self._surplus is not None:
                raise _too_many_frames()
            self._in_flight.check(peer, key, total)
            ask = self._ask_type()
            _read_ask(ask, fields, buffers, self._message_bytes_max, is_req, peer)
            if ask.sent_ns is not None and (not peer.same_host or ask.sent_ns > now_ns + STAMP_AHEAD_NS_MAX):
                ask.sent_ns = None
            self._in_flight.enter(peer, ask, key, total, is_req)
            if ask.client or ask.origin:
                self._registry.take_name(peer, ask)
            else:
                ask.client = peer.name
        except Exception as error:  # noqa: BLE001 such as no more memory
            return self._refuse(peer, is_req, key, error)
        news.append(ask)

    def expected(self, error: Exception) -> RequestError:
        """``error`` if a client may be told it; else the log is told, not each time, and the client that it failed."""
        if isinstance(error, RequestError):
            return error
        self._unexpected_count += 1
        if self._unexpected_count & (self._unexpected_count - 1) == 0:  # at 1, 2, 4, 8, ...
            log.error("a message could not be dealt with (%d so far)", self._unexpected_count, exc_info=error)
        return Failed(f"the server could not deal with this message: {told(error)}")

    def _give_up(self, client: bytes, error: Exception) -> None:
        """End the connection of a message that could not be read to its end."""
        if isinstance(error, zmq.ZMQError):
            raise error
        reason = str(self.expected(error))
        while self.socket.getsockopt(zmq.RCVMORE):
            self._recv(_NOBLOCK)
        peer = self._registry.by_id.get(client)
        if peer is not None:
            self._registry.cut(peer, reason)

    def _refuse(self, peer: Peer, is_req: bool, key: Any, raised: Exception) -> None:
        error = self.expected(raised)
        self.note_cost(peer, self._received_ns, error)
        if key is not None:
            self.refused(error, peer.credential.owner)
        self._send(peer, is_req, (wire.encode_error(key, error),))

    def note_cost(self, peer: Peer, now_ns: int, error: RequestError | None = None) -> bool:
        """A message is refused with ``error``, or is a question: its owner is charged for it. Whether the owner has had
        more than its share, so that it gets the cheapest answer."""
        self.costly.append(peer.account)
        is_over = peer.account.is_over(now_ns)
        if error is not None and is_over:
            error.ending = None
        return is_over

    def charge(self, now_ns: int) -> None:
        """Charge the owners of the messages that the last :meth:`receive` read; call it when they are dealt with."""
        cost_ns = (now_ns - self._received_ns) // max(self._read_count, len(self.costly), 1)
        for account in self.costly:
            account.charge(cost_ns, now_ns)
        self.costly.clear()

    def _drop_surplus(self, peer: Peer) -> None:
        """Drop some more surplus frames: of a message with too many, or of a connection that is over."""
        recv: Any = self._recv
        if not self._surplus_frames:
            self._surplus_since_ns = self._clock_ns()
        for _ in range(SLICE_FRAMES):
            if not recv(_NOBLOCK, False).more:
                self._surplus, self._surplus_frames = None, 0
                return
        self._surplus_frames += SLICE_FRAMES
        if self._surplus_frames >= SURPLUS_FRAMES_MAX:
            spent_ns = self._clock_ns() - self._surplus_since_ns
            self._guard.penalise(peer, spent_ns, f"a message of it has over {SURPLUS_FRAMES_MAX} frames")

    def _drop_message(self, client: bytes) -> None:
        """Read and drop the rest of a message of a connection that is over."""
        peer = self._surplus = Peer(client, None)
        peer.owner = self._registry.dead[client][1]
        self._drop_surplus(peer)

    def _read_other(
        self,
        peer: Peer,
        kind: str,
        key: Any,
        fields: Dict[str, Any],
        buffers: List[Any],
        is_req: bool,
        news: List[News],
        refusal: RequestError | None,
    ) -> None:
        """Everything but requests to infer: ``beat`` and ``bye`` end here, the others become news."""
        word = wire.take_word(kind, fields)
        wire.refuse_rest(fields, ("kind", "id"), f"a {kind} header")
        if self._surplus is not None:
            raise _too_many_frames()
        if buffers:
            raise Malformed(f"a {kind} message has {len(buffers)} frames after its header, expected none")
        if refusal is not None:
            raise refusal
        if kind == "beat":
            self._send(
                peer,
                is_req,
                (
                    wire.pack_header(
                        {
                            "kind": "beat",
                            "silence_ms": ns_to_ms(self._client_silence_ns),
                            "message_bytes_max": self._message_bytes_max,
                        }
                    ),
                ),
            )
        elif kind == "bye":
            self._registry.part(peer, "it said goodbye")
        elif kind == "cancel":
            ask = peer.open.get(key)
            if isinstance(ask, Ask):
                news.append(Cancel(ask, word))
        elif kind == "memory":
            self._send(peer, is_req, (wire.encode_info(key, wire.pack_info({"bytes": self._claim(peer, word)})),))
        else:
            control = Control(peer, key, is_req, kind, word)
            self._in_flight.enter_question(peer, key, control)
            news.append(control)

    def _claim(self, peer: Peer, token: bytes) -> int:
        """Shared memory for a connection, as it was passed to its process; how many bytes it has."""
        connection = self._registry.connections.by_file.get(peer.file) if peer.file is not None else None
        if self._offers is None or connection is None:
            raise NotAllowed("token: this server gives no shared memory to this connection; send frames")
        if connection.memory is not None:
            raise Malformed("token: this connection has its shared memory already")
        peer.memory = connection.memory = self._offers.claim(token, connection.owner)
        return peer.memory.bytes

    # --- what goes out ------------------------------------------------------------------------------------------------

    def answer(
        self,
        ask: Ask,
        outputs: Mapping[str, Any],
        reason: str = "",
        late: bool = False,
        finished_ns: int = 0,
        total_ns: int = 0,
        breakdown: Sequence[int] = (0, 0, 0, 0),
        quality: Optional[float] = None,
        branches: Sequence[str] = (),
        variant: str = "",
    ) -> None:
        """Send the one reply to a request that completed. Large arrays are not copied: they must not change afterwards.

        An output that cannot travel is answered with ``failed`` instead; a client that is gone meanwhile gets nothing.
        """
        if not self._in_flight.leave(ask):
            return
        peer, key = ask.peer, ask.key
        try:
            room = None if ask.room is None or peer.memory is None else peer.memory.room(ask.room)
            frames = wire.encode_answer(
                key,
                outputs,
                self._message_bytes_max,
                reason,
                late,
                finished_ns,
                total_ns,
                breakdown,
                ask.id,
                quality,
                branches,
                room,
                variant,
            )
        except Exception as raised:  # noqa: BLE001 such as no more memory
            error = self.expected(raised)
            error.id = ask.id
            frames = [wire.encode_error(key, error)]
        self._send(peer, ask.is_req, frames)

    def piece(self, ask: Ask, outputs: Mapping[str, Any]) -> str:
        """Send a piece of the answer to a request that asked for pieces, ahead of its one reply. Why no piece can be
        sent, or ``""``."""
        if ask.peer.open.get(ask.key) is ask:
            try:
                frames = wire.encode_piece(ask.key, outputs, self._message_bytes_max)
            except RequestError as error:
                return str(error)
            self._send(ask.peer, False, frames)
        return ""

    def refuse(self, ask: Union[Ask, Control], error: RequestError) -> None:
        """Send the one reply to a request that ended without an answer, or to a question that is not answered."""
        if self._in_flight.leave(ask):
            self._send(ask.peer, ask.is_req, (wire.encode_error(ask.key, error),))

    def control_reply(self, control: Control, payload: Union[Mapping[str, Any], bytes]) -> None:
        """Send the one reply to a :class:`Control`: plain numbers, strings, lists and maps, or what ``wire.pack_info``
        made of them. What cannot travel is answered with ``failed``."""
        if not self._in_flight.leave(control):
            return
        try:
            packed = payload if isinstance(payload, bytes) else wire.pack_info(payload)
            header = wire.encode_info(control.key, packed)
        except RequestError as error:
            header = wire.encode_error(control.key, error)
        self._send(control.peer, control.is_req, (header,))

    def _send(self, peer: Peer, is_req: bool, frames: Sequence[Any]) -> bool:
        send, unread = self._send_frame, peer.unread
        if self._waiter.is_armed:
            self._waiter.used()
        if unread.total and not self._may_send(peer):
            return False
        try:
            send(peer.client, _MORE)
        except zmq.Again:
            self._registry.cut(peer, f"it left {SEND_MESSAGES_MAX} answers unread")
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._registry.part(peer, "its connection closed")
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

    def _may_send(self, peer: Peer) -> bool:
        """True if a client may get another answer; one that left too much unread is given up."""
        registry = self._registry
        found = self._liveness.reader_to_end(peer, registry.by_id.values())
        if found is not None:
            registry.cut(*found)
        return peer.client in registry.by_id

    def _lend(self, unread: Unread, frame: Any, flags: int) -> None:
        """Send a frame uncopied; where enough was sent since the last mark it is the next."""
        if unread.fresh < MARK_BYTES:
            self._send_frame(frame, flags, False)
            return
        lent = zmq.Frame(frame, track=True, copy=False, copy_threshold=0)
        unread.mark(lent.tracker)
        self._send_frame(lent, flags, False)

    def close(self) -> None:
        """Stop listening; answers already given still go out within a short bound. Idempotent."""
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self._guard.close()
        if self._offers is not None:
            self._offers.close()
        for path, inode in self._paths.items():
            remove_socket(path, inode)
        self._close_sockets(CLOSE_LINGER_MS)

    def _close_sockets(self, linger_ms: int) -> None:
        """A context that the collection of garbage ends waits for its open sockets for ever."""
        self.socket.close(linger_ms)
        if self._gate is not None:
            self._gate.stop()
        if self._authenticator is not None:
            self._authenticator.stop()
        if self._own_context:
            self._context.term()


def _read_ask(ask: Ask, fields: Any, buffers: List[Any], message_bytes_max: int, is_req: bool, peer: Peer) -> None:
    """Read the request in a message into ``ask``, with its tensors out of shared memory."""
    if peer.memory is not None:
        peer.memory.copy(buffers)
    wire.decode_infer(ask, fields, buffers, message_bytes_max)
    if ask.pieces and is_req:
        raise BadInput("pieces = true: a REQ socket takes one reply to a request; ask over a DEALER socket")
    if ask.room is not None:
        check_room(ask.room, peer.memory)


def _too_many_frames() -> TooLarge:
    return TooLarge(f"the message has more than {TENSORS_MAX} frames after its header; send fewer tensors")
