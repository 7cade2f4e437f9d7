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
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Tuple

import zmq

from edgeserve.ipc.credentials import peer_owner
from edgeserve.owners import user_of

log = logging.getLogger("edgeserve")

HANDLER = "inproc://zeromq.zap.01"
YES, NO = b"200", b"300"
"""``NO`` ends the connection; libzmq's clients try again."""

BURST = 8
"""New connections of a user that are let in at once."""

PER_S = 200
"""And so many a second after that: others wait in the order in which they came."""

USERS_MAX = 1024
"""Users whose connections are counted; they are forgotten beyond that, all together."""

BATCH = 16
"""Handshakes that are answered before the thread sleeps for a millisecond: others need the processor, too."""


class Gate:
    """A thread that libzmq asks at each handshake of a context. ``is_out(owner)``: whether this owner may not connect;
    called from the thread. Raises :class:`zmq.ZMQError` where the context has a handler already."""

    def __init__(self, context: zmq.Context[Any], is_out: Callable[[str], bool]) -> None:
        self._is_out = is_out
        self._socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        try:
            self._socket.bind(HANDLER)
        except zmq.ZMQError:
            self._socket.close()
            raise
        self._stop_read, self._stop_write = os.pipe()
        self._buckets: Dict[str, Tuple[float, float]] = {}  # user -> connections that it may have, as of when
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
            while self._stop_read not in dict(poller.poll(1000 // PER_S if self._waiting else None)):
                try:
                    if self._answer_some():
                        time.sleep(0.001)
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
                self._waiting.setdefault(user, deque()).append(request)
        return True

    def _answer(self, request: List[bytes]) -> None:
        verdict = NO if self._is_out(_owner_of(request)) else YES
        self._socket.send_multipart([*request[:4], verdict, b"", b"", b""])

    def _has_turn(self, user: str) -> bool:
        now_s = time.monotonic()
        left, since_s = self._buckets.get(user, (float(BURST), now_s))
        left = min(float(BURST), left + (now_s - since_s) * PER_S)
        if len(self._buckets) >= USERS_MAX:
            self._buckets.clear()
        self._buckets[user] = (left - 1 if left >= 1 else left, now_s)
        return left >= 1


def _owner_of(request: List[bytes]) -> str:
    """Of routing id, empty, version, request id, domain, address, ..."""
    return peer_owner(request[5].decode("latin-1"))
