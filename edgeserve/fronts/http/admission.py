"""The bounds of one front at a time, over HTTP and gRPC alike: bytes of requests and of answers that are not read,
calls, and messages on their way, each shared among origins.

HTTP is read in pieces, so that its bytes count as they come. A message of gRPC is read whole: so few are on their way
at a time that they fit, and one counts when it is there. For the event loop's thread.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import AsyncIterator
from weakref import WeakValueDictionary

from edgeserve.front import Places
from edgeserve.fronts.http.settings import HttpConfig

LARGE_BYTES = 1024**2
"""A message from here on waits where its origin has much with the server already."""

QUESTIONS_AT_ONCE_MAX = 4
"""Messages received at a time of verbs that do not infer. They are small, and do not wait behind large ones."""


class BodyTurns:
    """So many at a time, three quarters of them of one origin; others wait, in the order in which they came."""

    def __init__(self, count_max: int) -> None:
        self._of_one_max = max(1, count_max * 3 // 4)
        self._all = asyncio.Semaphore(count_max)
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, origin: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it."""
        of_one = self._of.get(origin)
        if of_one is None:
            of_one = self._of[origin] = asyncio.Semaphore(self._of_one_max)
        async with of_one, self._all:
            yield


class AtOnce:
    """Bytes of large messages that are with the server, ``bytes_max`` of one origin at a time, and one message where
    that has more: they share one connection with every other client's. Others wait in order. What the event loop does
    with them it does one in a turn (:meth:`step`)."""

    def __init__(self, bytes_max: int) -> None:
        self._count_max = max(1, bytes_max // LARGE_BYTES)
        self._one = asyncio.Lock()
        self._of: WeakValueDictionary[str, _OfOrigin] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, origin: str, nbytes: int) -> AsyncIterator[None]:
        """Wait until there is room, and have it. A small message has it at once."""
        count = min(nbytes // LARGE_BYTES, self._count_max)
        of_one = self._of.get(origin)
        if of_one is None:
            of_one = self._of[origin] = _OfOrigin(self._count_max)
        taken = 0
        try:
            if count:
                async with of_one.order:
                    for _ in range(count):
                        await of_one.room.acquire()
                        taken += 1
            await self.step(nbytes)
            yield
        finally:
            for _ in range(taken):
                of_one.room.release()

    async def step(self, nbytes: int) -> None:
        """Wait, before work on so many bytes, for a turn of the event loop without another large message."""
        if nbytes >= LARGE_BYTES:
            async with self._one:
                await asyncio.sleep(0)


class _OfOrigin:
    def __init__(self, count: int) -> None:
        self.order = asyncio.Lock()
        self.room = asyncio.Semaphore(count)


class HttpAdmission:
    """The bounds of one front. ``bodies``: bytes, of JSON eight times as many; ``calls``: plain calls of gRPC,
    ``streams`` its calls of many requests; ``requests``, ``questions``: turns to receive a message; ``at_once``: large
    messages that are with the server."""

    def __init__(self, config: HttpConfig) -> None:
        bodies, streams = "bytes of requests and unread answers", "calls of ModelStreamInfer"
        self.bodies = Places(config.bodies_bytes_max, bodies, config.where("bodies_max"), lasting=True)
        self.calls = Places(config.connections_max, "calls over gRPC", config.where("connections_max"), lasting=True)
        self.streams = Places(config.grpc_receive_max, streams, config.where("grpc_receive_max"), lasting=True)
        fitting = max(2, config.bodies_bytes_max // config.grpc_message_max)
        self.requests = BodyTurns(min(config.grpc_receive_max, fitting))
        self.questions = BodyTurns(QUESTIONS_AT_ONCE_MAX)
        self.at_once = AtOnce(config.grpc_message_max)
