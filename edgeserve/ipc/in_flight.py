"""The requests in flight on the bus, bounded in bytes and in number. Knows no socket and no time."""

from __future__ import annotations

from typing import Any, List

from edgeserve.errors import Malformed, Rejected, RequestError, TooLarge
from edgeserve.ipc.peer import Peer
from edgeserve.ipc.wire import Ask, Key
from edgeserve.units import format_size

REQUESTS_PER_CLIENT_MAX = 4096
"""Requests in flight on one connection: far more than a client can wait for, and a bound on a client's table where its
messages are small. The runtime's own bounds are usually below."""


class InFlight:
    """Requests and control questions without a reply, in ``Peer.open``; it alone changes that, ``bytes`` and
    ``patient`` of a peer. A request's bytes count from :meth:`enter` until :meth:`leave` or :meth:`end_all` gives them
    back, whichever comes first, and once.

    Bounds in bytes: ``message_bytes_max`` of one message, ``client_bytes_max`` of one connection, ``all_bytes_max`` of
    all; none but the first refuses a message that would be alone. ``bytes``: of all requests in flight."""

    def __init__(self, message_bytes_max: int, client_bytes_max: int, all_bytes_max: int) -> None:
        self.bytes = 0
        self._message_bytes_max = message_bytes_max
        self._client_bytes_max = max(client_bytes_max, message_bytes_max)
        self._all_bytes_max = max(all_bytes_max, message_bytes_max)

    def check(self, peer: Peer, key: Key, total: int) -> None:
        """Refuse a request with so many bytes for which there is no room, before it is looked at."""
        if (
            total > self._message_bytes_max
            or peer.bytes + total > self._client_bytes_max
            or self.bytes + total > self._all_bytes_max
            or key in peer.open
            or len(peer.open) >= REQUESTS_PER_CLIENT_MAX
        ):
            raise self._why_not(peer, key, total)

    def _check_key(self, peer: Peer, key: Key) -> None:
        if key in peer.open:
            raise Malformed(f"id = {key!r} is in flight already; every request needs an id of its own")
        if len(peer.open) >= REQUESTS_PER_CLIENT_MAX:
            raise Rejected(
                f"this client has {REQUESTS_PER_CLIENT_MAX} requests in flight, the most one may have; "
                "wait for answers",
                "too many in flight",
            )

    def _why_not(self, peer: Peer, key: Key, total: int) -> RequestError:
        if total > self._message_bytes_max:
            return TooLarge(
                f"the message has {total} bytes, at most {self._message_bytes_max} are allowed; raise [server] memory"
            )
        self._check_key(peer, key)
        if peer.bytes + total > self._client_bytes_max:
            return Rejected(
                f"this client's requests in flight have {format_size(peer.bytes)}, this one "
                f"{format_size(total)}, together at most {format_size(self._client_bytes_max)}; wait for "
                "answers, or raise [server] memory",
                "client_bytes",
            )
        return Rejected(
            f"all requests in flight have {format_size(self.bytes)}, this one {format_size(total)}, "
            f"together at most {format_size(self._all_bytes_max)}; try later, or raise [server] "
            "memory",
            "server_bytes",
        )

    def enter(self, peer: Peer, ask: Ask, key: Key, total: int, is_req: bool) -> None:
        """Count a checked request as in flight."""
        ask.peer, ask.key, ask.is_req, ask.bytes = peer, key, is_req, total
        peer.bytes += total
        self.bytes += total
        peer.open[key] = ask
        peer.patient = peer.patient or is_req

    def enter_question(self, peer: Peer, key: Key, question: Any) -> None:
        """Count a control question as in flight, unless its id is in flight already or the client has too many."""
        self._check_key(peer, key)
        peer.open[key] = question

    def leave(self, entry: Any) -> bool:
        """A request or question gets its reply: its bytes count no more. Whether it was in flight still."""
        peer, key = entry.peer, entry.key
        if peer.open.get(key) is not entry:
            return False
        del peer.open[key]
        if isinstance(entry, Ask):
            peer.bytes -= entry.bytes
            self.bytes -= entry.bytes
        return True

    def end_all(self, peer: Peer) -> List[Ask]:
        """A client is gone: its requests, which are in flight no more."""
        entries = list(peer.open.values())
        for entry in entries:
            self.leave(entry)
        return [entry for entry in entries if isinstance(entry, Ask)]
