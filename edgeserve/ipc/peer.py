"""One client of the bus, as the objects see it that keep its state. Each field has one writer."""

from __future__ import annotations

import os
from collections import deque
from typing import Any, Deque, Dict, Tuple

from edgeserve.ipc.connections import Connection
from edgeserve.ipc.costs import Account
from edgeserve.ipc.credentials import NO_OWNER, Credential
from edgeserve.ipc.wire import Key
from edgeserve.owners import CONNECTION_MARK, process_owner

MARK_BYTES = 256 * 1024
"""Bytes of answers from one mark to the next: fewer are never counted, and lending costs more than copying."""


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
        """Count the bytes of a frame that was lent until ``tracker.done`` says that libzmq has let go of it."""
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
    """The state of one connection, by writer.

    * ``ClientRegistry``: ``owner``, its owner's name (:class:`Connection`); ``name``, what its requests carry as their
      client; ``credential``; ``key``, its public key where keys are allowed; ``account``, its owner's.
    * ``InFlight``: ``open``, its requests and control questions in flight; ``bytes``, what the requests' messages have
      together; ``patient``: one came from a REQ socket, which cannot send heartbeats while it waits.
    * ``Guard``: ``culprit``, the owner to keep out for its behaviour, once that was looked for.
    * ``Bus``: ``seen_ns``, when its last message was read; ``unread``; ``memory``, what its connection shares with this
      process."""

    def __init__(self, client: bytes, connection: Connection | None, credential: Credential = NO_OWNER) -> None:
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
