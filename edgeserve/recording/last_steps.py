"""The last steps of a running scheduler, kept in memory while somebody asks for them, or always."""

from __future__ import annotations

from collections import deque
from typing import Deque, List, NamedTuple, Sequence, Tuple

from edgeserve.recording.trace import step_line
from edgeserve.sched.protocol.actions import Action
from edgeserve.sched.protocol.events import Event
from edgeserve.units import NS_PER_S

PAGE_BYTES_MAX = 256 * 1024
"""Bytes of one page, a step more at most: a quarter of what a header of the bus may have, and below 10 ms of the loop's
time."""


ASKED_STEPS_MAX = 65_536
"""Steps kept while somebody asks."""

ASKED_NS = 5 * NS_PER_S
"""A client that asks again within this time misses no step."""


class Page(NamedTuple):
    """Steps as lines of a recording. ``first`` is the number of the first one, ``after`` what to ask for next; steps
    between what was asked for and ``first`` are forgotten."""

    first: int
    after: int
    lines: List[str]


class LastSteps:
    """Keeps steps, numbered from 1, for some time after each question; with ``always`` the last so many at any time,
    which costs a small request a sixth of its processor time. ``add`` has the signature of ``loop.OnStep``."""

    def __init__(self, always: int = 0) -> None:
        self._steps: Deque[Tuple[int, Sequence[Event], Sequence[Action]]] = deque(maxlen=always or ASKED_STEPS_MAX)
        self._count = 0
        self._always = always > 0
        self._until_ns = 0

    def add(self, now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """One step of the scheduler. Its events and actions are never changed."""
        if self._always or now_ns < self._until_ns:
            self._steps.append((now_ns, events, actions))
            self._count += 1
        elif self._steps:
            self._steps.clear()

    def page(self, after: int, now_ns: int) -> Page:
        """The steps that follow step ``after``, oldest first, as many as one answer may hold. Those that come are kept
        from now on."""
        self._until_ns = now_ns + ASKED_NS
        first = max(after, self._count - len(self._steps)) + 1
        lines: List[str] = []
        size = 0
        for place in range(first - 1 - (self._count - len(self._steps)), len(self._steps)):
            lines.append(step_line(*self._steps[place]))
            size += len(lines[-1])
            if size >= PAGE_BYTES_MAX:
                break
        return Page(first, first - 1 + len(lines), lines)
