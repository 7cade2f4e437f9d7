"""The connections of the front's HTTP: how many may be open, how long one may take to say what it wants, and how much
of it is read at a time.

uvicorn bounds requests, not connections that send none, nor the bytes of a head, nor what it parses in one turn of the
event loop. Knows no request beyond whether one is being served.
"""

from __future__ import annotations

import resource
from typing import Any, Dict, Set

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.flow_control import FlowControl

from edgeserve.front import user_at

HEAD_S = 10.0
"""Seconds that the head of a request may take to arrive, and a new connection to begin one."""

HEAD_BYTES_MAX = 64 * 1024
"""The most bytes of a head, of trailers or of a chunk's extensions, as h11 has it."""

PIECE_BYTES, PIECE_BYTES_MAX = 4096, 32 * 1024
"""Bytes that are parsed before it is asked whether others have waited long enough: twice as many after each piece that
was a part of a body alone."""

EVENTS_AT_ONCE = 128
"""Headers, heads and parts of bodies after which others have a turn: less than a millisecond."""

HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s"
)

IN_PIECES = hasattr(AutoHTTPProtocol, "on_body")
"""Whether httptools parses, which has no bounds of its own. h11 has them, and is there where httptools is not."""

FILES_KEPT = 128
"""Descriptors that connections leave to everything else."""


class HttpConnections:
    """The open connections. At their greatest number, a new one takes the place of the oldest: first among the
    ones without a request yet, then among idle ones and ones whose request is still coming; where each is answered, the
    new one is ended. For the event loop's thread."""

    def __init__(self, count_max: int) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._count_max = count_max if files < 0 else max(1, min(count_max, files - FILES_KEPT))
        self._open: Set[Any] = set()
        self._silent: Dict[Any, None] = {}  # that have asked nothing yet, in the order in which they came
        self._waiting: Dict[Any, bool] = {}  # in the order in which they began to; whether a request is coming

    def enter(self, protocol: Any) -> bool:
        """A connection was accepted; whether it may stay."""
        if len(self._open) >= self._count_max:
            oldest = next(iter(self._silent or self._waiting), None)
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

    def busy(self, protocol: Any, is_coming: bool = False) -> None:
        """It serves a request, of which more ``is_coming``."""
        self._silent.pop(protocol, None)
        if is_coming and self._waiting.get(protocol):
            return
        self._waiting.pop(protocol, None)
        if is_coming:
            self._waiting[protocol] = True

    def idle(self, protocol: Any) -> None:
        """It serves none any more."""
        self._waiting.pop(protocol, None)
        if protocol in self._open:
            self._waiting[protocol] = False


class _Endless:
    """The length of a body that ends with its connection: HTTP 1.0 has no chunks."""

    def __lt__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def __sub__(self, other: object) -> _Endless:
        return self


class _Reading(FlowControl):
    """Reading that does not go on while bytes or requests of ``connection`` wait: uvicorn has it go on after each
    answer, also where a thousand requests wait behind that."""

    def __init__(self, transport: Any, connection: Any) -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        """See uvicorn."""
        if not self._connection.rest and not self._connection.pipeline:
            super().resume_reading()


class _Bounded(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # one of two classes
    """One connection of the ``open`` ones. ``waits``: what ends it when no head of a request comes; ``rest``:
    bytes that are not parsed yet, and ``turn`` when they will be; ``events``: what the parser found in this turn;
    ``unused_bytes``: parsed since a head was complete or a part of a body came."""

    open: HttpConnections
    waits: Any = None
    turn: Any = None
    is_refused = False
    events = unused_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """See :class:`asyncio.Protocol`."""
        self.is_refused = not self.open.enter(self)
        if self.is_refused:
            transport.abort()
            return
        super().connection_made(transport)
        self.rest = bytearray()
        if IN_PIECES:
            self.flow = _Reading(transport, self)
        # What ASGI calls the client's address: a process of this machine may use many, and has one user.
        self.client = (user_at(transport), 0)
        self.waits = self.loop.call_later(HEAD_S, transport.abort)

    def connection_lost(self, exc: Any) -> None:
        """See :class:`asyncio.Protocol`."""
        if not self.is_refused:
            self._wait_no_more()
            self.rest.clear()
            self.open.leave(self)
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        if not IN_PIECES:
            return self._parse(data)
        self.rest += data
        if self.turn is None:
            self._parse_some()

    def _parse_some(self) -> None:
        """Parse what others may wait for, up to the first request that waits behind another."""
        self.turn, self.events, size = None, 0, PIECE_BYTES
        while self.rest and not self.pipeline and self.events < EVENTS_AT_ONCE and not self.transport.is_closing():
            piece, events = bytes(self.rest[:size]), self.events
            del self.rest[:size]
            self.unused_bytes += len(piece)
            self._parse(piece)
            size = min(2 * size, PIECE_BYTES_MAX) if self.events <= events + 1 else PIECE_BYTES
            if self.unused_bytes > HEAD_BYTES_MAX:
                self._refuse_head()
        if self.transport.is_closing():
            self.rest.clear()
        elif not self.rest:
            self.flow.resume_reading()
        else:
            self.flow.pause_reading()
            self.turn = None if self.pipeline else self.loop.call_soon(self._parse_some)

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
            self.open.busy(self, self.cycle.more_body)
        elif self.waits is None:  # a part of a head
            self.waits = self.loop.call_later(HEAD_S, self.transport.abort)

    def _refuse_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            told = b"the head of a request has at most %d bytes\n" % HEAD_BYTES_MAX
            self.transport.write(HEAD_TOO_LARGE % (len(told), told))
        self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        self.events += 1
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self.events += 1
        self.unused_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """See httptools; h11 knows by itself what HTTP 1.0 has not."""
        self.events += 1
        self.unused_bytes = 0
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope["http_version"] == "1.0":
            self.cycle.chunked_encoding, self.cycle.expected_content_length = False, _Endless()

    def on_response_complete(self) -> None:
        """See uvicorn."""
        super().on_response_complete()
        if self.rest and self.turn is None:
            self.turn = self.loop.call_soon(self._parse_some)
        else:
            self.flow.resume_reading()  # of what waited this was the last
        if self.cycle is None or self.cycle.response_complete:  # else a request waited behind this one
            self.open.idle(self)

    def _wait_no_more(self) -> None:
        if self.waits is not None:
            self.waits.cancel()
            self.waits = None


def protocol_of(connections: HttpConnections) -> Any:
    """uvicorn's protocol of a connection, within the bounds of ``connections``."""
    return type("Bounded", (_Bounded,), {"open": connections})
