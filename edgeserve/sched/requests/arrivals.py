"""When requests of a source came lately: how often, when the next one is expected, and what the requests count.

A source is an app, a stream of one (a camera's next frame ends the one before, so a frame must begin before the next
one comes), or a critical client (work may take a lane between two turns of a control loop). Of a source that comes
irregularly, or of which too little is known, nothing is expected. Pure arithmetic on nanoseconds; knows no clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Deque, Final, List, Tuple

from edgeserve.units import NS_PER_MS

REMEMBERED: Final = 32
"""Requests over which a rate is taken, and after which a request counts a third of what it did in the means."""

KNOWN_FROM: Final = 3
"""Requests that tell a rate."""

UNREAD_MAX: Final = 64
"""Requests of an app that wait to be counted: arrivals are counted many at a time."""

GAPS_LEN: Final = 16
"""Gaps that make a period: about a second of a camera, so that another frame rate is learnt within one."""

GAPS_MIN: Final = 4
"""Gaps before anything is expected."""

OUTLIERS: Final = 8
"""One of so many gaps, the shortest and the longest, counts as an exception: a frame lost on the way, or a pause."""

IRREGULAR: Final = 1.5
"""A source whose longest usual gap is more than this times its shortest is irregular."""

MARGIN: Final = 16
"""The earliest is a sixteenth of a gap before the shortest usual one: the work ahead may take longer than expected."""

SOURCES_MAX: Final = 4096
"""Sources remembered: a client that makes up stream ids must not fill the memory."""

SILENT_NS: Final = 60_000 * NS_PER_MS
"""A source that was silent for so long is forgotten: clients that come and go leave sources behind."""


Expectation = Tuple[int, int]
"""When something is expected, in nanoseconds: at the earliest, and at the latest."""


class Arrivals:
    """The last requests of one source. ``last_ns`` is when the last one came, -1 where none did."""

    __slots__ = ("last_ns", "gaps_ns")

    def __init__(self) -> None:
        self.last_ns = -1
        self.gaps_ns: Deque[int] = deque(maxlen=GAPS_LEN)

    def came(self, now_ns: int) -> None:
        """A request came."""
        if self.last_ns >= 0:
            self.gaps_ns.append(now_ns - self.last_ns)
        self.last_ns = now_ns

    def expected(self, exceptions: bool = True) -> Expectation | None:
        """When the next request is expected, or None. ``exceptions``: unusually short and long gaps are left out."""
        if len(self.gaps_ns) < GAPS_MIN:
            return None
        if exceptions:
            ordered = sorted(self.gaps_ns)
            apart = len(ordered) // OUTLIERS
            earliest_ns, latest_ns = ordered[apart], ordered[-1 - apart]
        else:
            earliest_ns, latest_ns = min(self.gaps_ns), max(self.gaps_ns)
        if earliest_ns <= 0 or latest_ns > IRREGULAR * earliest_ns:
            return None
        return self.last_ns + earliest_ns - earliest_ns // MARGIN, self.last_ns + latest_ns


class Sources:
    """The last requests of each source of one kind, least recently used sources first."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[Tuple[str, ...], Arrivals] = OrderedDict()

    def came(self, key: Tuple[str, ...], now_ns: int) -> Expectation | None:
        """A request of a source came: when its next one is expected, or None."""
        source = self._known.pop(key, None)
        if source is None or now_ns - source.last_ns > SILENT_NS:
            source = Arrivals()
        self._known[key] = source
        source.came(now_ns)
        if not source.gaps_ns:
            self._forget(now_ns)
        return source.expected()

    def _forget(self, now_ns: int) -> None:
        """A source was added: forget up to two that are silent, so that their number falls while sources come and go,
        or the oldest where there are too many."""
        for _ in range(2):
            key, oldest = next(iter(self._known.items()))
            if len(self._known) <= SOURCES_MAX and now_ns - oldest.last_ns <= SILENT_NS:
                break
            del self._known[key]


class AppArrivals:
    """The last requests of one app, also the ones that its policy refused: a lane in use could not serve them.
    (Those for which there was no place, or beyond their client's part, do not count: no flood of them says anything of
    what the lanes are asked for.)

    ``unread`` takes each arrival: when, what it counts at value 1, its value, the time to its deadline; who adds to it
    calls :meth:`count` at :data:`UNREAD_MAX`. The other methods count first.
    """

    __slots__ = ("unread", "_worth", "_lane_ns", "_allowed_ns", "_times_ns")

    def __init__(self) -> None:
        self.unread: List[Tuple[int, float, float, float]] = []
        self._worth = 0.0
        self._lane_ns = 0.0
        self._allowed_ns = 0.0
        self._times_ns: Deque[int] = deque(maxlen=REMEMBERED)

    def count(self) -> None:
        """Take what arrived into the means. O(1) per request."""
        for now_ns, cost_ns, value, allowed_ns in self.unread:
            step = 1.0 / min(REMEMBERED, len(self._times_ns) + 1)
            self._worth += (cost_ns * value - self._worth) * step
            self._lane_ns += (cost_ns - self._lane_ns) * step
            self._allowed_ns += (allowed_ns - self._allowed_ns) * step
            self._times_ns.append(now_ns)
        self.unread.clear()

    @property
    def worth(self) -> float:
        """The mean of what the requests count."""
        self.count()
        return self._worth

    @property
    def lane_ns(self) -> float:
        """The same at value 1."""
        self.count()
        return self._lane_ns

    def known_ns(self) -> float:
        """:attr:`lane_ns`; 0.0 while too few came."""
        if self.unread:
            self.count()
        return self._lane_ns if len(self._times_ns) >= KNOWN_FROM else 0.0

    @property
    def allowed_ns(self) -> float:
        """The mean time from arrival to deadline."""
        self.count()
        return self._allowed_ns

    def per_ns(self, now_ns: int) -> float:
        """Requests per nanosecond, from the first that is remembered until now; 0 while that is not known."""
        self.count()
        if len(self._times_ns) < KNOWN_FROM or now_ns <= self._times_ns[0]:
            return 0.0
        return (len(self._times_ns) - 1) / (now_ns - self._times_ns[0])
