"""How often an app was asked lately, and what its requests count: what a policy may know of another policy's apps.

A request that its policy refuses counts too: it is what a lane in use could not serve. One for which there is no place,
or beyond its client's part, does not: no flood of those says anything of what the lanes are asked for.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Final

from edgeserve.sched.requests.states import RequestRecord

REMEMBERED: Final = 32
"""Requests over which the rate is taken, and after which a request counts a third of what it did in the means."""

KNOWN_FROM: Final = 3
"""Requests that tell a rate."""


class RecentArrivals:
    """The last requests of one app. ``worth`` is the mean of what they count in the auction, ``lane_ns`` that at value
    1, ``allowed_ns`` the mean time from arrival to deadline."""

    __slots__ = ("worth", "lane_ns", "allowed_ns", "_times_ns")

    def __init__(self) -> None:
        self.worth = 0.0
        self.lane_ns = 0.0
        self.allowed_ns = 0.0
        self._times_ns: Deque[int] = deque(maxlen=REMEMBERED)

    def came(self, now_ns: int, request: RequestRecord) -> None:
        """A request arrived that may be served, if its policy takes it. O(1)."""
        step = 1.0 / min(REMEMBERED, len(self._times_ns) + 1)
        cost_ns = float(request.cost_share_ns)
        self.worth += (cost_ns * request.value - self.worth) * step
        self.lane_ns += (cost_ns - self.lane_ns) * step
        self.allowed_ns += (request.deadline_ns - request.arrival_ns - self.allowed_ns) * step
        self._times_ns.append(now_ns)

    @property
    def is_known(self) -> bool:
        """Whether enough came to tell a rate."""
        return len(self._times_ns) >= KNOWN_FROM

    def per_ns(self, now_ns: int) -> float:
        """Requests per nanosecond, from the first that is remembered until now; 0 while that is not known."""
        if not self.is_known or now_ns <= self._times_ns[0]:
            return 0.0
        return (len(self._times_ns) - 1) / (now_ns - self._times_ns[0])
