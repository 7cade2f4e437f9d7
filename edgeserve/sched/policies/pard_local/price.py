"""The shadow price of lane time: what a request must be worth to be served while others are lost (``pard_local``).

Section 9.3 of PARD's specification: over the last seconds let phi be the share of requests lost, R the value delivered
per busy nanosecond; the price is ``scale * min(1, phi / 0.1) * R``, and zero while nothing is lost. Refusing dear
requests is unfair, so a class may lose only a bounded share of its requests to the price; critical ones lose none.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, NamedTuple

from edgeserve.units import NS_PER_MS

WINDOW_NS = 3000 * NS_PER_MS
"""What the price looks back on (section 9.3: the last 3 s)."""

PHI_FULL = 0.1
"""The share of lost requests from which on the full price is asked (section 9.3)."""


class _End(NamedTuple):
    at_ns: int
    klass: str
    value: float  # delivered; 0.0 when lost
    lost: bool
    priced: bool


class Price:
    """Ends of requests and busy times of the last seconds. :meth:`ended` and :meth:`ran` alone change it, and
    :meth:`forget`, which lets go of what is older."""

    __slots__ = ("_scale", "_share_max", "_ends", "_busy", "_busy_ns", "_lost", "_counts")

    def __init__(self, scale: float, share_max: float) -> None:
        self._scale = scale
        self._share_max = share_max
        self._ends: Deque[_End] = deque()
        self._busy: Deque[List[int]] = deque()
        self._busy_ns = 0
        self._lost = 0
        self._counts: Dict[str, List[int]] = {}  # class -> [ended, of them lost to the price]

    def ended(self, at_ns: int, klass: str, value: float, lost: bool, priced: bool) -> None:
        """A request was answered in time (its value counts), or lost; ``priced`` when the price kept it waiting."""
        self._ends.append(_End(at_ns, klass, 0.0 if lost else value, lost, priced and lost))
        counts = self._counts.setdefault(klass, [0, 0])
        counts[0] += 1
        counts[1] += priced and lost
        self._lost += lost

    def ran(self, at_ns: int, took_ns: int) -> None:
        """A lane was busy with our work."""
        self._busy.append([at_ns, took_ns])
        self._busy_ns += took_ns

    def forget(self, now_ns: int) -> None:
        """Let go of what is older than the window."""
        while self._ends and now_ns - self._ends[0].at_ns > WINDOW_NS:
            old = self._ends.popleft()
            counts = self._counts[old.klass]
            counts[0] -= 1
            counts[1] -= old.priced
            self._lost -= old.lost
        while self._busy and now_ns - self._busy[0][0] > WINDOW_NS:
            self._busy_ns -= self._busy.popleft()[1]

    def now(self) -> float:
        """Value that a nanosecond of lane time must bring."""
        if not self._lost or not self._busy_ns:
            return 0.0
        delivered = 0.0
        for end in self._ends:
            delivered += end.value
        phi = self._lost / len(self._ends)
        return self._scale * min(1.0, phi / PHI_FULL) * delivered / self._busy_ns

    def may_refuse(self, klass: str) -> bool:
        """Whether the price may still keep requests of this class waiting."""
        ended, priced = self._counts.get(klass, (0, 0))
        return klass != "critical" and self._share_max > 0 and priced <= self._share_max * ended
