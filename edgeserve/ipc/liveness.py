"""The rules by which a client of the bus counts as gone although its connection is open: silence with requests in
flight, and answers left unread. Times are handed in; knows no socket."""

from __future__ import annotations

from typing import Collection, Iterable, List, Optional, Tuple

from edgeserve.ipc.peer import Peer
from edgeserve.units import NS_PER_MS, NS_PER_S, format_size, ns_to_ms

LOOK_BUSY_NS = 50 * NS_PER_MS
"""The longest time without a look at connections while messages come: so soon a killed client's work is given up."""

LOOK_IDLE_NS = NS_PER_S
"""The longest time between two checks for silence: an idle server wakes once a second for it."""

AWAY_CHECKS = 2
"""The number of intervals between checks without a read after which the server itself was away (stopped, or busy):
every client then has its full time again."""


class Liveness:
    """``silence_ns``: how long a client with requests in flight may say nothing; ``unread_bytes_max``: of the answers
    that one client has not read; ``all_unread_bytes_max``: that all have not read.

    ``away_ns``: without a read for longer the bus was away; ``look_at_ns``: when a look at the connections is due, at
    once where one is ``stirred``, which means that something happened to it; ``check_at_ns``: when :meth:`silent` is
    due."""

    def __init__(self, now_ns: int, silence_ns: int, unread_bytes_max: int, all_unread_bytes_max: int) -> None:
        self.silence = f"it sent nothing for {ns_to_ms(silence_ns):g} ms"
        self._silence_ns = silence_ns
        self._unread_bytes_max = unread_bytes_max
        self._all_unread_bytes_max = all_unread_bytes_max
        self._look_ns = max(NS_PER_MS, min(LOOK_BUSY_NS, silence_ns // 4))
        self._check_ns = max(NS_PER_MS, min(LOOK_IDLE_NS, silence_ns // 4))
        self.check_at_ns = now_ns + self._check_ns
        self.away_ns = AWAY_CHECKS * self._check_ns
        self.look_at_ns = now_ns + self._look_ns
        self.stirred = False
        self._awake_ns = now_ns

    def stir(self) -> None:
        """Have the connections looked at: something happened to one."""
        self.stirred = True

    def must_look(self, now_ns: int, is_quiet: bool) -> bool:
        """True if the connections must be looked at, which counts as done then: not where the last wait listened and
        heard nothing of them (``is_quiet``), unless a check is due."""
        must = self.stirred or not is_quiet or now_ns >= self.check_at_ns
        self.stirred = False
        self.look_at_ns = min(now_ns + self._look_ns, self.check_at_ns)
        return must

    def was_away(self, now_ns: int) -> None:
        """Give every client its full time again: the bus read nothing for :attr:`away_ns`."""
        self._awake_ns = now_ns

    def silent(self, now_ns: int, peers: Iterable[Peer]) -> List[Peer]:
        """The clients that were silent for too long, as far as the server listened."""
        self.check_at_ns = now_ns + self._check_ns
        self.look_at_ns = now_ns + self._look_ns  # a look comes before a check
        return [
            peer
            for peer in peers
            if peer.open and not peer.patient and now_ns - max(peer.seen_ns, self._awake_ns) > self._silence_ns
        ]

    def reader_to_end(self, peer: Peer, peers: Collection[Peer]) -> Optional[Tuple[Peer, str]]:
        """The client to be cut off, and why, before ``peer`` gets another answer: itself, or of all the one with the
        most to read. ``None`` for none."""
        waits = peer.unread.look()
        if waits > self._unread_bytes_max:
            return peer, f"it left answers of {format_size(waits)} unread"
        if sum([one.unread.total for one in peers]) <= self._all_unread_bytes_max:
            return None
        if sum([one.unread.look() for one in peers]) <= self._all_unread_bytes_max:
            return None
        most = max(peers, key=lambda one: one.unread.total)
        return most, f"of all clients it left the most unread, {format_size(most.unread.total)}"
