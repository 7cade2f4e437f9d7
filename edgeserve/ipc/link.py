"""The client's side of the bus: one DEALER socket, one connection, and whether the server behind it is alive.

Belongs to one thread and never blocks; a connection that was lost is not mended but replaced by a new link, so that no
message of the old one can reach a restarted server. It does not know requests, only messages.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any, Callable, List, Optional, Sequence

import zmq

from edgeserve.errors import RequestError, TooLarge
from edgeserve.ipc import wire
from edgeserve.ipc.endpoints import (
    check_server_place,
    has_ipv6,
    notice_gone_peers,
    read_client_keys,
    read_public_key,
    readable,
    watch_socket,
    why_nobody_answers,
)
from edgeserve.ipc.slab import Slab, Wish, may_share
from edgeserve.ipc.tensors import LARGE_BYTES, TENSORS_MAX
from edgeserve.ipc.wire import Reply
from edgeserve.units import NS_PER_MS, NS_PER_S, format_duration, ms_to_ns

BEAT_NS_MAX = NS_PER_S  # a heartbeat this often while requests are in flight
BEATS_PER_SILENCE = 4  # or four times within what the server tolerates, if that is more often
REPLY_BYTES_MAX = 1024**3  # until the server has said its own bound
RECONNECT_MS = 20  # while the server is still starting
CLOSE_LINGER_MS = 100  # the goodbye still goes out
MEMORY_LOOK_NS = 2 * NS_PER_MS  # how often to see whether shared memory has come, while it is wished for
MEMORY_NS_MAX = 2 * NS_PER_S  # how long to wait for it; frames do until then, and afterwards
_MEMORY_KEY = b"memory"  # the id of the claim: no request's, those are numbers
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENT = struct.Struct("=HI")


class Link:
    """One connection. ``lost`` is the reason once it is over; the owner then closes it and refuses what waits.

    ``client_key`` is the file of this client's own keys, where the server lets only some in.
    ``connect_ns`` bounds the time until the server's first sign of life, ``silence_ns`` the time without one later.
    ``memory`` is what it shares with the server for large tensors, once :meth:`wish_for_memory` was granted;
    ``shared_memory`` says whether it may.
    """

    def __init__(
        self,
        endpoint: str,
        context: zmq.Context[Any],
        clock_ns: Callable[[], int],
        *,
        connect_ns: int,
        silence_ns: int,
        server_key: str = "",
        client_key: str = "",
        shared_memory: bool = False,
    ) -> None:
        self._clock_ns = clock_ns
        self._endpoint = endpoint
        self._connect_ns = connect_ns
        self._silence_ns = silence_ns
        self.message_bytes_max = REPLY_BYTES_MAX
        self.lost = ""
        self.due_ns = 0  # when to look after it
        self._beat_ns = BEAT_NS_MAX
        self._connected = False
        self._waiting = False
        self.memory: Optional[Slab] = None
        self._may_wish = shared_memory and may_share(endpoint)
        self._wish: Optional[Wish] = None
        self._wish_until_ns = 0
        self._heard_ns = self._said_ns = self._since_ns = clock_ns()
        check_server_place(endpoint)
        self.socket: zmq.Socket[Any] = context.socket(zmq.DEALER)
        self._monitor = watch_socket(self.socket, context, _WATCHED)
        try:
            self._set_up(server_key, client_key)
        except BaseException:
            self.close()
            raise
        self.send((wire.encode_plain("beat"),))

    def _set_up(self, server_key: str, client_key: str) -> None:
        socket = self.socket
        socket.linger = 0
        # The owner bounds its requests in flight; a bound here would block or drop.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        if server_key:
            socket.curve_publickey, socket.curve_secretkey = read_client_keys(client_key)
            socket.curve_serverkey = read_public_key(server_key)
        if self._endpoint.startswith("tcp://"):
            notice_gone_peers(socket)
            socket.setsockopt(zmq.IPV6, int(has_ipv6(self._endpoint)))
        socket.connect(self._endpoint)
        self.monitor_fileno = int(self._monitor.getsockopt(zmq.FD))

    def filenos(self) -> List[int]:
        """The file descriptors to wait on. Edge-triggered, as libzmq's are: call :meth:`receive` until it returns
        nothing, then wait."""
        return [int(self.socket.getsockopt(zmq.FD)), self.monitor_fileno]

    def send(self, frames: Sequence[Any]) -> None:
        """Queue one message. Buffers that are no ``bytes`` are not copied: they must not change until the reply. Where
        libzmq has no queue for it any more, because the handshake failed, the link is lost."""
        send = self.socket.send
        last = len(frames) - 1
        try:
            for index, frame in enumerate(frames):
                send(frame, _MORE if index < last else _NOBLOCK, type(frame) is bytes)
        except zmq.Again:
            self._lose()

    def check_size(self, frames: Sequence[Any]) -> int:
        """The number of bytes of a message. Raises :class:`TooLarge` for one that the server would refuse unread."""
        total = sum(frame.nbytes if type(frame) is memoryview else len(frame) for frame in frames)
        if total > self.message_bytes_max:
            raise TooLarge(
                f"the request has {total} bytes, the server takes {self.message_bytes_max}; raise [server] memory"
            )
        return total

    def receive(self, count_max: int = 64) -> List[Reply]:
        """Replies that wait, without heartbeats; sets ``lost`` when the server sent what cannot be understood."""
        replies: List[Reply] = []
        socket = self.socket
        while len(replies) < count_max and readable(socket):
            frames = self._receive_frames()
            self._heard_ns = self._clock_ns()
            self._connected = True
            try:
                reply = wire.decode_reply(
                    frames, self.message_bytes_max, wire.NO_WINDOWS if self.memory is None else self.memory.lent
                )
            except RequestError as error:
                # Not one request's fault: nothing that follows on this connection can be trusted.
                self.lost = f"it answered with something that is no reply: {error}"
                break
            if reply.kind == "beat":
                self._learn(reply)
            elif type(reply.key) is bytes and reply.key == _MEMORY_KEY:
                self._take_memory(reply)
            else:
                replies.append(reply)
        return replies

    @property
    def connected(self) -> bool:
        """True if the server has said something."""
        return self._connected

    # --- shared memory ------------------------------------------------------------------------------------------------

    def wish_for_memory(self) -> None:
        """Large tensors travel here: ask the server for shared memory, once. Until it is there they go in frames."""
        if self._may_wish:
            self._may_wish = False
            with contextlib.suppress(OSError):  # no memory is offered there: an older server, or one that has it off
                self._wish = Wish(self._endpoint)
                self.due_ns = self._clock_ns()
                self._wish_until_ns = self.due_ns + MEMORY_NS_MAX

    @property
    def waits_for_memory(self) -> bool:
        """True if shared memory may still come."""
        return self._wish is not None

    def _look_for_memory(self, wish: Wish, now_ns: int) -> None:
        try:
            if not wish.token and wish.look():
                self.send((wire.encode_plain("memory", _MEMORY_KEY, token=wish.token),))
        except (OSError, ValueError):  # refused, or this process may not map so much
            now_ns = self._wish_until_ns
        if now_ns >= self._wish_until_ns:
            self._end_wish()

    def _take_memory(self, reply: Reply) -> None:
        if self._wish is not None and reply.error is None:
            self.memory = self._wish.slab
        self._end_wish()

    def _end_wish(self) -> None:
        if self._wish is not None:
            self._wish.close()
            self._wish = None

    # --- whether the server is there ----------------------------------------------------------------------------------

    def _receive_frames(self) -> List[Any]:
        frames: List[Any] = []
        more = True
        while more:
            frame: Any = self.socket.recv(_NOBLOCK, False)
            more = frame.more
            if len(frames) <= TENSORS_MAX + 1:
                frames.append(frame.bytes if len(frame) < LARGE_BYTES else frame.buffer)
        return frames

    def _learn(self, beat: Reply) -> None:
        bytes_max = beat.info.get("message_bytes_max")
        silence_ms = beat.info.get("silence_ms")
        if isinstance(bytes_max, int) and isinstance(silence_ms, (int, float)):
            self.message_bytes_max = bytes_max
            self._beat_ns = min(BEAT_NS_MAX, max(NS_PER_MS, ms_to_ns(silence_ms) // BEATS_PER_SILENCE))
            self.due_ns = min(self.due_ns, self._heard_ns + self._beat_ns)

    def look_after(self, waiting: bool) -> None:
        """Send a heartbeat if one is due, note a lost connection. To be called at ``due_ns``, and when the monitor's
        file is readable. ``waiting``: there are requests in flight."""
        now_ns = self._clock_ns()
        self._watch()
        if self._wish is not None:
            self._look_for_memory(self._wish, now_ns)
        self._look_at_server(waiting, now_ns)
        if self._wish is not None:
            self.due_ns = min(self.due_ns, now_ns + MEMORY_LOOK_NS)

    def _look_at_server(self, waiting: bool, now_ns: int) -> None:
        if waiting and not self._waiting:
            self._since_ns = self._said_ns = now_ns
        self._waiting = waiting
        self.due_ns = now_ns + self._beat_ns
        if not waiting or self.lost:
            return
        bound_ns = self._silence_ns if self._connected else self._connect_ns
        if now_ns - max(self._heard_ns, self._since_ns) > bound_ns:
            self.lost = (
                f"it said nothing for {format_duration(bound_ns)}" if self._connected else self._unheard(bound_ns)
            )
        elif now_ns - self._said_ns >= self._beat_ns:
            self._said_ns = now_ns
            self.send((wire.encode_plain("beat"),))
        self.due_ns = now_ns + min(self._beat_ns, bound_ns)

    def _unheard(self, bound_ns: int) -> str:
        why = why_nobody_answers(self._endpoint)
        return (
            why
            if why.startswith("permission")
            else (f"{why} (waited {format_duration(bound_ns)}); start it with: edgeserve serve")
        )

    def _watch(self) -> None:
        """Follow the connection's state by libzmq's monitor."""
        monitor = self._monitor
        while readable(monitor):
            kind = _EVENT.unpack(monitor.recv_multipart(_NOBLOCK)[0])[0]
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected = True
                self._heard_ns = self._clock_ns()
            else:
                self._lose()

    def _lose(self) -> None:
        self.lost = self.lost or (
            "it closed the connection"
            if self._connected
            else "the handshake failed; a server with CURVE keys needs server_key = its public key, one "
            "without needs none; one with a list of clients needs client_key, too"
        )

    def close(self, goodbye: bool = False) -> None:
        """Give the socket back; with ``goodbye`` the server is told. Idempotent."""
        if self.socket.closed:
            return
        if goodbye and not self.lost:
            self.send((wire.encode_plain("bye"),))
        self._end_wish()
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(CLOSE_LINGER_MS if goodbye else 0)
