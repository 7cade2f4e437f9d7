"""Lets connections in, before libzmq takes a message of theirs (ZAP, RFC 27).

libzmq reads what a new connection sends at a gigabyte a second, before the loop's thread can end it. But where there is
a handler libzmq asks it at each handshake, and ends a connection that sends messages before the verdict. So a thread of
its own keeps those out that may not connect, and lets no user have many new connections at once. It sees no message.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Tuple

import zmq

from edgeserve.ipc.credentials import peer_owner
from edgeserve.owners import user_of
from edgeserve.units import NS_PER_MS, NS_PER_S
from edgeserve.waits import readable_files

log = logging.getLogger("edgeserve")

HANDLER = "inproc://zeromq.zap.01"
YES = b"200"

BURST = 2
"""New connections of a user that are let in before the server has read all that waits."""

NEXT_NS = NS_PER_S
"""The time after which one more each may come in: others wait, in the order in which they came."""

WAITING_MAX = 1024
"""Handshakes of a user that wait; of more the oldest are forgotten."""

LOOK_MS = 5
"""Milliseconds between two looks at whether a waiting client may come in."""

USERS_MAX = 1024
"""Users whose connections are counted; they are forgotten beyond that, all together."""

BATCH = 16
PAUSE_NS = NS_PER_MS
"""So many handshakes are answered before the thread pauses: others need the processor, too."""


class Gate:
    """A thread that libzmq asks at each handshake of a context. ``is_out(owner)``: whether this owner may not connect;
    ``mark()``: another number after all that waited was read. Both are called from the thread. Raises
    :class:`zmq.ZMQError` where the context has a handler already."""

    def __init__(
        self,
        context: zmq.Context[Any],
        is_out: Callable[[str], bool],
        mark: Callable[[], int],
        clock_ns: Callable[[], int],
    ) -> None:
        self._is_out = is_out
        self._mark = mark
        self._clock_ns = clock_ns
        self._socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        try:
            self._socket.bind(HANDLER)
        except zmq.ZMQError:
            self._socket.close()
            raise
        self._stop_read, self._stop_write = os.pipe()
        self._rooms: Dict[str, Tuple[int, int, int]] = {}  # user -> at which mark, how many may come, when one more
        self._waiting: Dict[str, Deque[List[bytes]]] = {}  # by user
        self._thread = threading.Thread(target=self._run, name="edgeserve-gate", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Idempotent."""
        if self._thread.is_alive():
            os.write(self._stop_write, b".")
            self._thread.join()
            os.close(self._stop_read)
            os.close(self._stop_write)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stop_read, zmq.POLLIN)
        with contextlib.closing(self._socket):
            while self._stop_read not in dict(poller.poll(LOOK_MS if self._waiting else None)):
                try:
                    if self._answer_some():
                        readable_files((self._stop_read,), PAUSE_NS)
                except Exception:
                    log.exception("a connection could not be let in")

    def _answer_some(self) -> bool:
        """Answer those whose turn it is, and some that are new; whether more may be there."""
        for user in list(self._waiting):
            waiting = self._waiting[user]
            while waiting and self._has_turn(user):
                self._answer(waiting.popleft())
            if not waiting:
                del self._waiting[user]
        for _ in range(BATCH):
            try:
                request = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            user = user_of(_owner_of(request))
            if user not in self._waiting and self._has_turn(user):
                self._answer(request)
            else:
                self._waiting.setdefault(user, deque(maxlen=WAITING_MAX)).append(request)
        return True

    def _answer(self, request: List[bytes]) -> None:
        """Let it in, or say nothing: then libzmq ends it after its time for a handshake, and its client tries again. A
        refusal would leave some clients waiting for ever."""
        if not self._is_out(_owner_of(request)):
            self._socket.send_multipart([*request[:4], YES, b"", b"", b""])

    def _has_turn(self, user: str) -> bool:
        mark, now_ns = self._mark(), self._clock_ns()
        seen, left, due_ns = self._rooms.get(user, (mark, BURST, now_ns))
        if seen != mark:
            left = BURST
        elif not left and now_ns >= due_ns:
            left = 1
        if len(self._rooms) >= USERS_MAX:
            self._rooms.clear()
        if left == 1:  # the last: the next comes a while after it
            due_ns = now_ns + NEXT_NS
        self._rooms[user] = (mark, max(0, left - 1), due_ns)
        return left > 0


def _owner_of(request: List[bytes]) -> str:
    """The owner that a request names: routing id, empty, version, request id, domain, address, ..."""
    return peer_owner(request[5].decode("latin-1"))
