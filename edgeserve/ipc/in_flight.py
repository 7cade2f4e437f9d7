"""The requests in flight on the bus: how many there are, how many bytes their messages have, whether another has room.

The totals of all clients; what one client has in flight stands in its own record (``edgeserve/ipc/peer.py``). Knows no
socket and no clock.
"""

from __future__ import annotations

from typing import Mapping

from edgeserve.errors import Malformed, Rejected, RequestError, TooLarge
from edgeserve.ipc.peer import Peer
from edgeserve.ipc.wire import Ask, Key
from edgeserve.units import format_size

REQUESTS_PER_CLIENT_MAX = 4096  # in flight on one connection; the runtime's own bounds are usually below


class InFlight:
    """``count``: requests and control questions, ``bytes``: of the requests' messages, ``app_bytes``: the same by app,
    where the app has a bound. The bus itself counts an answered request out, without a call."""

    __slots__ = (
        "count",
        "bytes",
        "app_bytes",
        "_message_bytes_max",
        "_bytes_max",
        "_client_bytes_max",
        "_app_bytes_max",
    )

    def __init__(
        self, message_bytes_max: int, bytes_max: int, client_bytes_max: int, app_bytes_max: Mapping[str, int]
    ) -> None:
        self.count = 0
        self.bytes = 0
        self.app_bytes = dict.fromkeys(app_bytes_max, 0)
        self._message_bytes_max = message_bytes_max
        self._bytes_max = max(bytes_max, message_bytes_max)
        self._client_bytes_max = max(client_bytes_max, message_bytes_max)
        self._app_bytes_max = app_bytes_max

    def check(self, peer: Peer, key: Key, total: int) -> None:
        """Refuse a request with so many bytes for which there is no room, before it is looked at."""
        if (
            total > self._message_bytes_max
            or peer.bytes + total > self._client_bytes_max
            or self.bytes + total > self._bytes_max
            or key in peer.open
            or len(peer.open) >= REQUESTS_PER_CLIENT_MAX
        ):
            raise self._why_not(peer, key, total)

    def check_new(self, peer: Peer, key: Key) -> None:
        """Refuse another message that is answered: its id is in flight already, or the client has too many."""
        if key in peer.open:
            raise Malformed(f"id = {key!r} is in flight already; every request needs an id of its own")
        if len(peer.open) >= REQUESTS_PER_CLIENT_MAX:
            raise Rejected(
                f"this client has {REQUESTS_PER_CLIENT_MAX} requests in flight, the most one may have; "
                "wait for answers",
                "too many in flight",
            )

    def _why_not(self, peer: Peer, key: Key, total: int) -> RequestError:
        """Why a request with so many bytes is refused before its header is looked at."""
        if total > self._message_bytes_max:
            return TooLarge(
                f"the message has {total} bytes, at most {self._message_bytes_max} are allowed; raise "
                "[server] message_max"
            )
        self.check_new(peer, key)
        if peer.bytes + total > self._client_bytes_max:
            return Rejected(
                f"this client's requests in flight have {format_size(peer.bytes)}, this one "
                f"{format_size(total)}, together at most {format_size(self._client_bytes_max)}; wait for "
                "answers, or raise [server] client_bytes_max",
                "client_bytes",
            )
        return Rejected(
            f"all requests in flight have {format_size(self.bytes)}, this one {format_size(total)}, "
            f"together at most {format_size(self._bytes_max)}; try later, or raise [server] "
            "pending_bytes_max",
            "server_bytes",
        )

    def enter_app(self, app: str, total: int) -> None:
        """Count a request's bytes with its app, or refuse it."""
        bytes_max = max(self._app_bytes_max[app], self._message_bytes_max)
        if self.app_bytes[app] + total > bytes_max:
            raise Rejected(
                f"the requests in flight of app {app!r} have {format_size(self.app_bytes[app])}, this one "
                f"{format_size(total)}, together at most {format_size(bytes_max)}; try later, or raise "
                f"[app.{app}] pending_bytes_max",
                "app_bytes",
            )
        self.app_bytes[app] += total

    def leave(self, peer: Peer, ask: Ask) -> None:
        """A request ended: its bytes count no more."""
        peer.bytes -= ask.bytes
        self.bytes -= ask.bytes
        if ask.app in self.app_bytes:
            self.app_bytes[ask.app] -= ask.bytes
