"""How often an app was asked lately, and what its requests count: what a policy may know of another policy's apps.

A request that its policy refuses counts too: it is what a lane in use could not serve. One for which there is no place,
or beyond its client's part, does not: no flood of those says anything of what the lanes are asked for.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Final, List, Tuple

REMEMBERED: Final = 32
"""Requests over which the rate is taken, and after which a request counts a third of what it did in the means."""

KNOWN_FROM: Final = 3
"""Requests that tell a rate."""

UNREAD_MAX: Final = 64
"""Requests that wait to be counted: nobody asks about most apps, so arrivals are counted many at a time."""


class RecentArrivals:
    """The last requests of one app. ``unread`` takes each arrival: when, what it counts at value 1, its value, the time
    to its deadline; who adds to it calls :meth:`count` at :data:`UNREAD_MAX`. The other methods count first."""

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
        """The mean of what the requests count in the auction."""
        self.count()
        return self._worth

    @property
    def lane_ns(self) -> float:
        """The same at value 1."""
        self.count()
        return self._lane_ns

    @property
    def allowed_ns(self) -> float:
        """The mean time from arrival to deadline."""
        self.count()
        return self._allowed_ns

    @property
    def is_known(self) -> bool:
        """Whether enough came to tell a rate."""
        self.count()
        return len(self._times_ns) >= KNOWN_FROM

    def per_ns(self, now_ns: int) -> float:
        """Requests per nanosecond, from the first that is remembered until now; 0 while that is not known."""
        if not self.is_known or now_ns <= self._times_ns[0]:
            return 0.0
        return (len(self._times_ns) - 1) / (now_ns - self._times_ns[0])
