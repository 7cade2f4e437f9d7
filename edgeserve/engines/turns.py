"""Turns of processes on one GPU. CUDA gives each process slices of time that no plan knows, so works of different
processes run one after the other; those of one process may overlap, as its streams have it.

First come, first served: a side that waits lets in no more works of the side that runs.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Deque, Dict, Hashable, List, Optional

from edgeserve.engines.base import WAIT_S_MAX
from edgeserve.engines.hold import Hold


class Turns:
    """The turns on one GPU; a side is a process. Asked from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holds: List[Hold] = []
        self._waiting: Deque[object] = deque()

    def enter(self, side: Hashable, owner: str, wait_s: float = 0.0) -> Optional[Hold]:
        """A hold for a work of ``side``, after a wait of so long at most; ``None`` where others are at work still."""
        with self._changed:
            ticket = object()
            self._waiting.append(ticket)
            try:
                if not self._changed.wait_for(lambda: self._waiting[0] is ticket and self._is_free_for(side), wait_s):
                    return None
                hold = Hold(side, owner, self.left)
                self._holds.append(hold)
                return hold
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def wait(self, side: Hashable, owner: str) -> Hold:
        """A hold for a work of ``side``, when its turn comes."""
        hold = None
        while hold is None:
            hold = self.enter(side, owner, WAIT_S_MAX)
        return hold

    def left(self, hold: Hold) -> None:
        """A hold has ended: :meth:`Hold.leave` says so."""
        with self._changed:
            self._holds = [other for other in self._holds if other is not hold]
            self._changed.notify_all()

    def forget(self, owner: str) -> None:
        """An owner hangs, and another takes its place: its holds count no more."""
        with self._changed:
            self._holds = [hold for hold in self._holds if hold.owner != owner]
            self._changed.notify_all()

    def _is_free_for(self, side: Hashable) -> bool:
        return not self._holds or self._holds[0].side == side


_of_gpu: Dict[int, Turns] = {}


def turns_on(index: int) -> Turns:
    """The turns on a GPU, by its index: one for all runtimes of this process."""
    return _of_gpu.setdefault(index, Turns())
