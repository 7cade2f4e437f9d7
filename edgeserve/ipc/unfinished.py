"""Messages whose last frame does not come.

libzmq keeps the frames of a message until its last one, reports none of them, and bounds each of them alone
(docs/develop/libzmq.md). So it is looked at a few times a second at which connections bytes arrive while they finish no
message. The growth of the process is put down, in equal parts, to the connections at which bytes were seen to wait
since they finished a message. A Unix socket tells nothing more. Over TCP the system tells how many bytes came by a
connection: they are the least that it has, and their number as empty frames is the most. Knows no socket.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

from edgeserve.units import NS_PER_MS, NS_PER_S

LOOK_NS = 250 * NS_PER_MS
LATE_NS = LOOK_NS
"""The delay of a look where messages always wait and not every connection had one read."""

SOON_NS = 20 * NS_PER_MS
"""Time to the next look while bytes arrive: a message that is only large is finished by then, or soon."""

SLACK_BYTES = 64 * 1024**2
"""Bytes by which the process may grow meanwhile for other reasons: one message may take so much more than twice the
largest allowed one."""

SUSPECT_BYTES = 16 * 1024**2
"""The bytes of one message from which every look is soon."""

HITS_MIN = 3
"""Looks at which bytes waited, before a connection is ended whose bytes are not counted."""

UNFINISHED_NS_MAX = 30 * NS_PER_S
"""The longest time that a message may take to arrive on this host, where no line is slow."""

FORGET_NS = 300 * NS_PER_S
"""A message that did not arrive for so long counts as none: bytes that are no message, such as pings, are seen too."""

FRAME_COST = 32
"""Times the bytes on the wire that an empty frame takes: two bytes become a ``zmq_msg_t`` of 64."""

NEVER_NS = 2**62


class ConnectionLook(NamedTuple):
    """A connection at a look. ``mark`` is another one after each message that it finished; ``arrives``: bytes of it
    wait to be read; ``received``: the bytes that came by it so far, -1 where they are not known; ``whose``: the owner
    that is ended with all its connections where all have too much together."""

    file: int
    mark: Tuple[int, int]
    arrives: bool
    received: int
    whose: str = ""


class _Arrival:
    """The bytes of a connection since its last finished message. ``hits``: at so many looks bytes waited, first at
    ``since_ns``, last at ``last_ns``."""

    __slots__ = ("mark", "since_ns", "last_ns", "hits", "from_bytes", "grown_bytes", "bytes", "whose")

    def __init__(self, sample: ConnectionLook, now_ns: int) -> None:
        self.mark = sample.mark
        self.since_ns = self.last_ns = now_ns
        self.hits = 0
        self.from_bytes = sample.received
        self.whose = sample.whose
        self.grown_bytes = self.bytes = 0

    def goes_on(self, sample: ConnectionLook, now_ns: int) -> bool:
        """True if nothing was finished since."""
        return sample.mark == self.mark and (self.from_bytes >= 0 or now_ns - self.last_ns <= FORGET_NS)


class Unfinished:
    """``look_at_ns`` is when :meth:`look` wants to be called next, ``watches`` whether it must be although nothing
    arrives. ``message_bytes_max`` bounds a message, ``all_bytes_max`` what all that are not finished may have
    together."""

    def __init__(self, message_bytes_max: int, all_bytes_max: int) -> None:
        self.look_at_ns = NEVER_NS
        self.watches = False
        self._one_bytes_max = 2 * message_bytes_max + SLACK_BYTES
        self._all_bytes_max = max(all_bytes_max, self._one_bytes_max)
        self._arrivals: Dict[int, _Arrival] = {}  # by connection
        self._held_bytes = 0
        self._was_soon = False

    def connected(self, now_ns: int) -> None:
        """There is a connection again."""
        if self.look_at_ns == NEVER_NS:
            self.look_at_ns = now_ns + LOOK_NS

    def forget(self) -> None:
        """Drop all samples: they are too old after a while without a look."""
        self._arrivals.clear()
        self.watches = False

    def put_off(self, now_ns: int) -> None:
        """Put the next look off: nothing arrives and nothing is watched, so it would find nothing."""
        self.look_at_ns = now_ns + LOOK_NS

    def look(self, now_ns: int, held_bytes: int, samples: Sequence[ConnectionLook]) -> List[int]:
        """Find the connections that are to be ended, mostly none. Called when every finished message has been read, or
        some of each connection's; ``held_bytes`` is the memory of the process."""
        grown_bytes, self._held_bytes = held_bytes - self._held_bytes, held_bytes
        before, self._arrivals = self._arrivals, {}
        for sample in samples:
            one = before.get(sample.file)
            if one is None or not one.goes_on(sample, now_ns):
                one = _Arrival(sample, now_ns)
            self._arrivals[sample.file] = one
        arriving = [one for one in self._arrivals.values() if one.hits]
        for one in arriving:
            one.bytes = one.grown_bytes = max(0, one.grown_bytes + grown_bytes // len(arriving))
        for sample in samples:
            if sample.received >= 0:
                one = self._arrivals[sample.file]
                came = sample.received - one.from_bytes
                cost = min(one.grown_bytes, FRAME_COST * came) if one.hits >= HITS_MIN else 0
                one.bytes = max(came, cost)
        is_soon = self._count_hits(now_ns, samples)
        self.watches = any(one.hits or one.from_bytes >= 0 for one in self._arrivals.values())
        self.look_at_ns = NEVER_NS if not self._arrivals else now_ns + (SOON_NS if is_soon else LOOK_NS)
        return self._too_much(now_ns)

    def _count_hits(self, now_ns: int, samples: Sequence[ConnectionLook]) -> bool:
        """Note at which connections bytes wait. Whether the next look shall be soon: at a second look most messages are
        finished, and where one is not and the memory grows, looks go on until it is known whose it is."""
        is_soon = False
        was_soon = self._was_soon
        for sample in samples:
            one = self._arrivals[sample.file]
            if sample.arrives:
                one.since_ns = one.since_ns if one.hits else now_ns
                one.last_ns = now_ns
                one.hits += 1
                is_soon = is_soon or one.hits > 1 or not was_soon
            is_soon = is_soon or one.bytes > SUSPECT_BYTES
        self._was_soon = is_soon
        return is_soon

    def _too_much(self, now_ns: int) -> List[int]:
        """The connections that have sent more of one message than a message may have, or take too long; where all
        together have too much, all connections of the owner with the most."""
        sure = {file: one for file, one in self._arrivals.items() if one.from_bytes >= 0 or one.hits >= HITS_MIN}
        over = [
            file
            for file, one in sure.items()
            if one.bytes > self._one_bytes_max
            or (one.from_bytes < 0 and one.last_ns - one.since_ns > UNFINISHED_NS_MAX)
        ]
        if not over and sum([one.bytes for one in sure.values()]) > self._all_bytes_max:
            held: Dict[str, int] = {}
            for one in sure.values():
                held[one.whose] = held.get(one.whose, 0) + one.bytes
            most = max(held, key=lambda whose: held[whose])
            over = [file for file, one in sure.items() if one.whose == most and one.bytes]
        for file in over:
            del self._arrivals[file]
        return over
