"""Who sends faster than the server reads.

libzmq's bound on the messages that wait per client is not used: where it stops reading from a client that then closes
its connection, it may abort the process (docs/develop/libzmq.md). So what waits is watched from here. While messages
come faster than they are read the server's memory grows; when it has grown by :data:`GROWTH_BYTES_MAX` the connections
that sent most are ended, if they sent more than a client of ours may have in flight. libzmq reads its clients in turn,
so those that always have a message waiting have sent equally much, and more than anybody else. Knows no socket.
"""

from __future__ import annotations

from typing import Any, Dict, List

from edgeserve.ipc.memory import resident_bytes

LOOK_NS = 10_000_000
GROWTH_BYTES_MAX = 64 * 1024**2
"""Of the process, while messages are always waiting."""

CLIENT_MESSAGES_MIN = 8192
"""Read of one client meanwhile: twice the requests that a connection may have in flight. Fewer may be a burst."""

BURST_BYTES_MAX = 512 * 1024**2
"""Growth at which a burst counts as a flood, too, from :data:`MESSAGES_MIN` on."""

MESSAGES_MIN = 1024
"""Read of all meanwhile: fewer are no flood, and the memory is something else's."""

MOST_SHARE = 0.9
"""Of the messages of whoever sent most: who has as many is meant, too."""

PENALTY_NS = 2_000_000_000
"""How long an owner who flooded may not connect: what it had sent must be dropped first."""


class Flood:
    """A time in which messages always waited. ``counts``: how many of each client were read; ``refused``: who sent and
    is no client. The bus adds to both."""

    __slots__ = ("counts", "refused", "_memory_bytes", "_look_ns")

    def __init__(self, now_ns: int) -> None:
        self.counts: Dict[bytes, int] = {}
        self.refused: Dict[bytes, Any] = {}
        self._memory_bytes = resident_bytes()
        self._look_ns = now_ns + LOOK_NS

    def culprits(self, now_ns: int) -> List[bytes]:
        """The clients that are to be cut off, mostly none."""
        if now_ns < self._look_ns:
            return []
        self._look_ns = now_ns + LOOK_NS
        memory_bytes = resident_bytes()
        growth_bytes = memory_bytes - self._memory_bytes
        if growth_bytes < GROWTH_BYTES_MAX or sum(self.counts.values()) < MESSAGES_MIN:
            return []
        if growth_bytes < BURST_BYTES_MAX and max(self.counts.values()) < CLIENT_MESSAGES_MIN:
            return []
        self._memory_bytes = memory_bytes
        counts, self.counts = self.counts, {}
        least = MOST_SHARE * max(counts.values())
        return [client for client, count in counts.items() if count >= least]
