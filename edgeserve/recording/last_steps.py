"""The last steps of a running scheduler, kept in memory: what happened just now can be asked for afterwards."""

from __future__ import annotations

from collections import deque
from typing import Deque, List, NamedTuple, Sequence, Tuple

from edgeserve.recording.trace import step_line
from edgeserve.sched.protocol.actions import Action
from edgeserve.sched.protocol.events import Event

PAGE_BYTES_MAX = 256 * 1024
"""Bytes of one page, a step more at most: a quarter of what a header of the bus may have, and below 10 ms of the loop's
time."""


class Page(NamedTuple):
    """Steps as lines of a recording. ``first`` is the number of the first one, ``after`` what to ask for next; steps
    between what was asked for and ``first`` are forgotten."""

    first: int
    after: int
    lines: List[str]


class LastSteps:
    """Keeps the last ``steps_max`` steps, numbered from 1. ``add`` has the signature of ``loop.OnStep``."""

    def __init__(self, steps_max: int) -> None:
        self._steps: Deque[Tuple[int, Sequence[Event], Sequence[Action]]] = deque(maxlen=steps_max)
        self._count = 0

    def add(self, now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """One step of the scheduler. Its events and actions are records that nobody changes."""
        self._steps.append((now_ns, events, actions))
        self._count += 1

    def page(self, after: int) -> Page:
        """The steps that follow step ``after``, oldest first, as many as one answer may hold."""
        first = max(after, self._count - len(self._steps)) + 1
        lines: List[str] = []
        size = 0
        for place in range(first - 1 - (self._count - len(self._steps)), len(self._steps)):
            lines.append(step_line(*self._steps[place]))
            size += len(lines[-1])
            if size >= PAGE_BYTES_MAX:
                break
        return Page(first, first - 1 + len(lines), lines)
