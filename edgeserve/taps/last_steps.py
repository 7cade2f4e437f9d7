"""The last steps of a running scheduler, kept in memory while a client asks for them."""

from __future__ import annotations

from collections import deque
from typing import Callable, Deque, List, NamedTuple, Sequence, Tuple

from edgeserve.sched.protocol.actions import Action
from edgeserve.sched.protocol.events import Event
from edgeserve.taps.trace import step_line
from edgeserve.units import NS_PER_S

PAGE_BYTES_MAX = 256 * 1024
"""Bytes of one page, a step more at most: a quarter of what a header of the bus may have, and below 10 ms of the loop's
time."""


ASKED_STEPS_MAX = 65_536
"""The most steps kept while a client asks, about a kilobyte each."""

ASKED_NS = 5 * NS_PER_S
"""A client that asks again within this time misses no step."""

KEPT_NS = 4 * ASKED_NS
"""The greatest age of kept steps: a client that asks has older ones, or is further behind than it can read."""


class Page(NamedTuple):
    """Steps as lines of a recording. ``first`` is the number of the first one, ``after`` what to ask for next; steps
    between what was asked for and ``first`` are forgotten."""

    first: int
    after: int
    lines: List[str]


Taps = List[Callable[[int, Sequence[Event], Sequence[Action]], None]]
"""The functions that the loop calls with every step (``loop/drive.py``)."""


class LastSteps:
    """Keeps steps, numbered from 1, for some time after each question: for as long it is one of the loop's ``taps``."""

    def __init__(self, taps: Taps) -> None:
        self._steps: Deque[Tuple[int, Sequence[Event], Sequence[Action]]] = deque(maxlen=ASKED_STEPS_MAX)
        self._count = 0
        self._taps = taps
        self._until_ns = 0

    def _add(self, now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """One step of the scheduler. Its events and actions are never changed."""
        if now_ns >= self._until_ns:
            self._taps.remove(self._add)
            self._steps.clear()
            return
        self._steps.append((now_ns, events, actions))
        self._count += 1
        while self._steps[0][0] < now_ns - KEPT_NS:
            self._steps.popleft()

    def page(self, after: int, now_ns: int) -> Page:
        """The steps that follow step ``after``, oldest first, as many as one answer may hold. Later ones are kept
        from now on; after a step that has not been, nothing is wanted, and they are kept no longer."""
        if after > self._count:
            self._until_ns = now_ns
            return Page(self._count + 1, self._count, [])
        self._until_ns = now_ns + ASKED_NS
        if self._add not in self._taps:
            self._taps.append(self._add)
        first = max(after, self._count - len(self._steps)) + 1
        lines: List[str] = []
        size = 0
        for place in range(first - 1 - (self._count - len(self._steps)), len(self._steps)):
            lines.append(step_line(*self._steps[place]))
            size += len(lines[-1])
            if size >= PAGE_BYTES_MAX:
                break
        return Page(first, first - 1 + len(lines), lines)
