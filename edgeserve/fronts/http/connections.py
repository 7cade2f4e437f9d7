"""The connections of the front's HTTP: how many may be open, and how long one may take to say what it wants.

uvicorn bounds requests, not connections that send none. Knows no request beyond whether one is being served.
"""

from __future__ import annotations

import resource
from typing import Any, Dict, Set

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from edgeserve.front import user_at

HEAD_S = 10.0
"""Seconds that the head of a request may take to arrive, and a new connection to begin one."""

FILES_KEPT = 128
"""Descriptors that connections leave to everything else."""


class HttpConnections:
    """The open connections. At their greatest number, a new one takes the place of the one that has been idle longest,
    first among connections without a request yet; where each serves a request, the new one is ended. For the event
    loop's thread."""

    def __init__(self, count_max: int) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._count_max = count_max if files < 0 else max(1, min(count_max, files - FILES_KEPT))
        self._open: Set[Any] = set()
        self._silent: Dict[Any, None] = {}  # that have asked nothing yet, in the order in which they came
        self._idle: Dict[Any, None] = {}  # in the order in which they became so

    def enter(self, protocol: Any) -> bool:
        """A connection was accepted; whether it may stay."""
        if len(self._open) >= self._count_max:
            oldest = next(iter(self._silent or self._idle), None)
            if oldest is None:
                return False
            self.leave(oldest)
            oldest.transport.abort()
        self._open.add(protocol)
        self._silent[protocol] = None
        return True

    def leave(self, protocol: Any) -> None:
        """It is over."""
        self._open.discard(protocol)
        self.busy(protocol)

    def end(self) -> None:
        """End them all: the front stops, and these clients neither sent nor read what they should."""
        for protocol in list(self._open):
            protocol.transport.abort()

    def busy(self, protocol: Any) -> None:
        """It serves a request."""
        self._silent.pop(protocol, None)
        self._idle.pop(protocol, None)

    def idle(self, protocol: Any) -> None:
        """It serves none any more."""
        if protocol in self._open:
            self._idle[protocol] = None


class _Endless:
    """The length of a body that ends with its connection: HTTP 1.0 has no chunks."""

    def __lt__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def __sub__(self, other: object) -> _Endless:
        return self


def protocol_of(connections: HttpConnections) -> Any:
    """uvicorn's protocol of a connection, within the bounds of ``connections``."""

    class Bounded(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # one of two classes
        """One connection. ``waits``: what ends it when no head of a request comes."""

        waits: Any = None
        is_refused = False

        def connection_made(self, transport: Any) -> None:
            """See :class:`asyncio.Protocol`."""
            self.is_refused = not connections.enter(self)
            if self.is_refused:
                transport.abort()
                return
            super().connection_made(transport)
            # What ASGI calls the client's address: a process of this machine may use many, and has one user.
            self.client = (user_at(transport), 0)
            self.waits = self.loop.call_later(HEAD_S, transport.abort)

        def connection_lost(self, exc: Any) -> None:
            """See :class:`asyncio.Protocol`."""
            if not self.is_refused:
                self._wait_no_more()
                connections.leave(self)
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            """See :class:`asyncio.Protocol`."""
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._wait_no_more()
                connections.busy(self)
            elif self.waits is None:  # a part of a head
                self.waits = self.loop.call_later(HEAD_S, self.transport.abort)

        def on_headers_complete(self) -> None:
            """See httptools; h11 knows by itself what HTTP 1.0 has not."""
            super().on_headers_complete()
            if self.cycle is not None and self.cycle.scope["http_version"] == "1.0":
                self.cycle.chunked_encoding, self.cycle.expected_content_length = False, _Endless()

        def on_response_complete(self) -> None:
            """See uvicorn."""
            super().on_response_complete()
            if self.cycle is None or self.cycle.response_complete:  # else a request waited behind this one
                connections.idle(self)

        def _wait_no_more(self) -> None:
            if self.waits is not None:
                self.waits.cancel()
                self.waits = None

    return Bounded
