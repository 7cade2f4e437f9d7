"""Clients that send faster than the server reads, and the owners that may not connect for a while. Knows no socket."""

from __future__ import annotations

import logging
from typing import Callable, Dict, List

from edgeserve.ipc.connections import offender
from edgeserve.ipc.memory import resident_bytes
from edgeserve.ipc.peer import Peer
from edgeserve.units import NS_PER_MS, format_duration

log = logging.getLogger("edgeserve")

FLOOD_LOOK_NS = 10 * NS_PER_MS
"""Time between two looks at the memory: a client of this host sends 10 MiB meanwhile, far below the bound."""

GROWTH_BYTES_MAX = 64 * 1024**2
"""The growth of the process, in bytes, while messages are always waiting, from which a flood is ended."""

CLIENT_MESSAGES_MIN = 8192
"""Read of one client meanwhile: twice the requests that a connection may have in flight. Fewer may be a burst."""

BURST_BYTES_MAX = 512 * 1024**2
"""Growth at which a burst counts as a flood, too, from :data:`MESSAGES_MIN` on."""

MESSAGES_MIN = 1024
"""Read of all meanwhile: fewer are no flood, and the memory is something else's."""

MOST_SHARE = 0.9
"""The share of the most messages sent by one client from which a client is ended with it."""


class Flood:
    """A period in which messages always waited; it finds the clients that send faster than the server reads.

    libzmq's bound on the messages that wait per client is not used: where it stops reading from a client that then
    closes its connection, it may abort the process (docs/develop/libzmq.md). While messages come faster than they are
    read, the server's memory grows. When it has grown by :data:`GROWTH_BYTES_MAX`, the connections that sent most are
    ended, if they sent more than a client of ours may have in flight: libzmq reads its clients in turn, so clients that
    always have a message waiting have sent equally much, and more than any other. ``refused``: senders that are no
    clients."""

    def __init__(self, now_ns: int) -> None:
        self.refused: Dict[bytes, Peer] = {}
        self._counts: Dict[bytes, int] = {}
        self._memory_bytes = resident_bytes()
        self._look_ns = now_ns + FLOOD_LOOK_NS

    def count(self, client: bytes, messages: int = 1) -> None:
        """Count messages of a client that were read."""
        self._counts[client] = self._counts.get(client, 0) + messages

    def culprits(self, now_ns: int) -> List[bytes]:
        """The clients that are to be cut off, mostly none."""
        counts = self._counts
        if now_ns < self._look_ns:
            return []
        self._look_ns = now_ns + FLOOD_LOOK_NS
        memory_bytes = resident_bytes()
        growth_bytes = memory_bytes - self._memory_bytes
        if growth_bytes < GROWTH_BYTES_MAX or sum(counts.values()) < MESSAGES_MIN:
            return []
        if growth_bytes < BURST_BYTES_MAX and max(counts.values()) < CLIENT_MESSAGES_MIN:
            return []
        self._memory_bytes = memory_bytes
        self._counts = {}
        least = MOST_SHARE * max(counts.values())
        return [client for client, count in counts.items() if count >= least]


class KeptOut:
    """The offenders (:func:`offender`) that may not connect, and until when."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._until_ns: Dict[str, int] = {}
        self._count = 0

    def add(self, whose: str, for_ns: int, reason: str) -> None:
        """Let no connection of an offender in for so long; an empty ``whose`` does nothing."""
        if not whose:
            return
        if whose not in self._until_ns:
            self._count += 1
            if self._count & (self._count - 1) == 0:  # at 1, 2, 4, 8, ...
                log.warning(
                    "%s may not connect for %s: %s (%d so far)", whose, format_duration(for_ns), reason, self._count
                )
        self._until_ns[whose] = max(self._until_ns.get(whose, 0), self._clock_ns() + for_ns)

    def now(self) -> List[str]:
        """The addresses that may not connect now; the others are forgotten."""
        if self._until_ns:
            now_ns = self._clock_ns()
            self._until_ns = {whose: until_ns for whose, until_ns in self._until_ns.items() if until_ns > now_ns}
        return list(self._until_ns)

    def has(self, owner: str) -> bool:
        """True if this owner may not connect now. For any thread."""
        return self._until_ns.get(offender(owner), 0) > self._clock_ns()
