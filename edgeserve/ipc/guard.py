"""The defence of the bus: it hears of connections that open and close, and ends those whose clients harm the server.

A client is cut off when it floods the server, sends a message without end or with too many frames, or when its key is
not allowed any more; its owner may not connect for a while then. ``flood.py`` and ``unfinished.py`` judge by numbers;
this module asks them and acts. It reads and writes no message.
"""

from __future__ import annotations

import select
import struct
from typing import Any, Callable, FrozenSet

import zmq

from edgeserve.ipc.client_registry import ClientRegistry
from edgeserve.ipc.connections import Connection, culprit, offender, received_bytes
from edgeserve.ipc.endpoints import readable, watch_socket
from edgeserve.ipc.flood import Flood, KeptOut
from edgeserve.ipc.memory import own_bytes
from edgeserve.ipc.other_end import sockets_of
from edgeserve.ipc.peer import Peer
from edgeserve.ipc.unfinished import ConnectionLook, Unfinished
from edgeserve.owners import pid_of
from edgeserve.units import NS_PER_S

PENALTY_NS = 2 * NS_PER_S
"""The time for which an owner that flooded may not connect: its messages must be dropped first."""

DROP_SHARE = 30
"""The same, besides, for a message with too many frames: so many times as long as it took to drop it, so that an owner
that comes again at once takes a thirtieth of the loop's time."""

STUCK_PENALTY_NS = 600 * NS_PER_S
"""The time for which an owner of connections that libzmq does not close may not connect: each holds a descriptor until
the server ends, and four in ten minutes are few."""

_FAST = "it sends faster than the server reads"
_ENDLESS = "a message of it does not end"
_NOBLOCK = int(zmq.NOBLOCK)
_POLLIN = int(select.POLLIN)
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=HI")


class Guard:
    """Watches the connections of ``socket``, whose clients ``registry`` knows. ``flood``: the time since the socket was
    empty last, if messages always waited. ``monitor_file`` can be read when something happened to a connection.
    ``has_tcp``: connections from elsewhere are counted by bytes."""

    def __init__(
        self,
        socket: zmq.Socket[Any],
        context: zmq.Context[Any],
        registry: ClientRegistry,
        kept_out: KeptOut,
        unfinished: Unfinished,
        clock_ns: Callable[[], int],
        has_tcp: bool,
    ) -> None:
        self.flood: Flood | None = None
        self._registry = registry
        self._connections = registry.connections
        self._credentials = registry.credentials
        self._kept_out = kept_out
        self._unfinished = unfinished
        self._clock_ns = clock_ns
        self._has_tcp = has_tcp
        self._monitor = watch_socket(socket, context, _WATCHED)
        self.monitor_file = int(self._monitor.getsockopt(zmq.FD))

    def close(self) -> None:
        """Hear of no connection any more."""
        self._monitor.close(0)

    # --- connections that come and go ---------------------------------------------------------------------------------

    def watch(self) -> None:
        """Note which connections opened and closed, as libzmq's monitor tells."""
        monitor = self._monitor
        while readable(monitor):
            event, endpoint = monitor.recv_multipart(_NOBLOCK)
            kind, file = _EVENT.unpack(event)
            if kind == zmq.EVENT_ACCEPTED:
                ended = self._connections.opened(file, not endpoint.startswith(b"tcp"))
                if ended is not None:
                    self._file_closed(ended)
                self._unfinished.connected(self._clock_ns())
                connection, kept_out = self._connections.by_file.get(file), self._kept_out.now()
                if connection is not None and any(self._is_of(connection, whose) for whose in kept_out):
                    self._registry.hang_up(connection)
            else:
                self._file_closed(file)

    def look_around(self) -> None:
        """Note which clients' connections closed."""
        self.watch()
        # A connection may have closed before its first message was read, so before it had a name here.
        for peer in list(self._registry.by_id.values()):
            if peer.file is not None and peer.file not in self._connections.by_file:
                self._registry.closed(peer)

    def check(self, now_ns: int) -> None:
        """Call it about once a second, when no message waits."""
        self._registry.forget_dead(now_ns)
        for owner in self._connections.look_for_stuck():
            self._kept_out.add(owner, STUCK_PENALTY_NS, "libzmq cannot close connections of it")
        if self._credentials.have_changed():
            for peer in list(self._registry.by_id.values()):
                if peer.key and not self._credentials.is_allowed(peer.key):
                    self._registry.cut(peer, "its key is not allowed any more")

    @staticmethod
    def _is_of(connection: Connection, whose: str, sockets: FrozenSet[int] | None = None) -> bool:
        """True if it is a connection of an offender, whose process, where it is one, has these ``sockets``."""
        return offender(connection.owner) == whose or connection.is_among(
            sockets_of(pid_of(whose)) if sockets is None else sockets
        )

    def _file_closed(self, file: int) -> None:
        self._connections.closed(file)
        peer = self._registry.of_file(file)
        if peer is not None:
            self._registry.closed(peer)

    # --- clients that ask too much of the server ----------------------------------------------------------------------

    def look_for_flood(self, now_ns: int) -> None:
        """There was more to read than was read."""
        if self.flood is None:
            self.flood = Flood(now_ns)
            return
        for client in self.flood.culprits(now_ns):
            peer = self._registry.by_id.get(client) or self.flood.refused.get(client)
            if peer is not None:
                self._kept_out.add(self._culprit(peer), PENALTY_NS, _FAST)
                self._registry.bury(client, peer.owner)
                self._registry.cut(peer, _FAST)

    def end_flood(self) -> None:
        """End the count of a flood: no message waits any more."""
        self.flood = None

    def _culprit(self, peer: Peer) -> str:
        """The owner to keep out for a client's behaviour; ``""`` where no owner can be identified."""
        if peer.culprit is None:
            connection = self._connections.by_file.get(peer.file) if peer.file is not None else None
            peer.culprit = culprit(offender(peer.owner), connection)
        return peer.culprit

    def penalise(self, peer: Peer, spent_ns: int, reason: str) -> None:
        """End all connections of the sender of a message with too many frames, which took ``spent_ns`` to drop, and let
        no new one in for a while: each could hold up the others as long. Where no owner can be identified, the
        connection ends alone."""
        registry, whose = self._registry, self._culprit(peer)
        self._kept_out.add(whose, PENALTY_NS + DROP_SHARE * spent_ns, reason)
        registry.cut(peer, reason)
        if not whose:
            return
        for other in [other for other in registry.by_id.values() if offender(other.owner) == whose]:
            registry.cut(other, reason)
        sockets = sockets_of(pid_of(whose))
        for connection in [one for one in self._connections.by_file.values() if self._is_of(one, whose, sockets)]:
            self._end(connection, reason)

    def _end(self, connection: Connection, reason: str) -> None:
        client = self._registry.of_file(connection.file)
        if client is None:  # no message of it was read yet
            self._registry.hang_up(connection)
        else:
            self._registry.cut(client, reason)

    def look_for_unfinished(self, now_ns: int) -> None:
        """End the connections that send without end and finish no message."""
        connections, unfinished = self._connections, self._unfinished
        found = connections.waiting(0)
        if connections.by_file and not found and not unfinished.watches and not self._has_tcp:
            return unfinished.put_off(now_ns)
        arriving = {file for file, event in found if event & _POLLIN}
        samples = []
        for file, one in connections.by_file.items():
            peer = self._registry.of_file(file)
            mark = (one.number, one.met_ns if peer is None else peer.seen_ns)
            samples.append(ConnectionLook(file, mark, file in arriving, received_bytes(one), offender(one.owner)))
        for file in unfinished.look(now_ns, own_bytes(), samples):
            one = connections.by_file[file]
            self._kept_out.add(culprit(offender(one.owner), one), PENALTY_NS, _ENDLESS)
            self._end(one, _ENDLESS)
