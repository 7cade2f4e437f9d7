"""Lanes of the simulated world: what each has launched, what its device runs, and how lanes of one device slow each
other.

This module only keeps the state of lanes and works out when works end; the world makes it happen.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, List, Optional, Sequence, Tuple

from edgeserve.sched.protocol.actions import EvictModel


class Running:
    """A work that a device runs. ``left_ns`` is what it needed alone as of ``since_ns``; it takes ``pace`` times as
    long while other lanes run beside it."""

    __slots__ = ("action", "started_ns", "left_ns", "since_ns", "pace")

    def __init__(self, action: Any, started_ns: int, duration_ns: int) -> None:
        self.action = action
        self.started_ns = started_ns
        self.left_ns = duration_ns
        self.since_ns = started_ns
        self.pace = 0.0  # not set yet


class SimLane:
    """One lane. Works go from ``inbox`` to ``launched`` (packed by the lane's thread, one at a time) to ``running``, in
    order; at most ``depth`` are launched or running. The world alone changes it."""

    __slots__ = ("name", "device", "copy", "hang_ns", "depth", "inbox", "launched", "running", "packed_ns", "due_ns",
                 "epoch", "up", "speed", "hangs", "poked_ns", "busy_ns", "works")

    def __init__(self, name: str, device: str, hang_ns: int, depth: int = 1, copy: bool = False) -> None:
        self.name = name
        self.device = device
        self.copy = copy
        self.hang_ns = hang_ns
        self.depth = depth
        self.inbox: Deque[Any] = deque()
        self.launched: Deque[Tuple[Any, int]] = deque()  # with the time when each is packed
        self.running: Optional[Running] = None
        self.packed_ns = 0  # when the thread has packed the latest
        self.due_ns = 0  # when what was launched is expected to be over
        self.epoch = 0  # an end that was foretold in an earlier one does not come
        self.up = True
        self.speed = 1.0
        self.hangs = 0.0  # the next work hangs, so much longer (0 = it does not)
        self.poked_ns = -1
        self.busy_ns = 0
        self.works = 0

    @property
    def launched_count(self) -> int:
        """Works that were launched and are not finished."""
        return len(self.launched) + (self.running is not None)

    def launch(self, action: Any, now_ns: int, pack_ns: int) -> None:
        """The thread takes a work, which is packed so much later."""
        begins_ns = max(now_ns, self.due_ns) if self.launched_count else now_ns
        self.due_ns = begins_ns + (0 if isinstance(action, EvictModel) else action.expected_ns)
        self.packed_ns = now_ns + pack_ns
        self.launched.append((action, self.packed_ns))

    def end(self, now_ns: int) -> None:
        """What runs is over."""
        if self.running is not None:
            self.busy_ns += now_ns - self.running.started_ns
        self.running = None

    def clear(self, now_ns: int) -> List[Any]:
        """The lane is lost: everything that it had, what ran first."""
        lost = ([self.running.action] if self.running is not None else []) + [action for action, _ in self.launched]
        lost += self.inbox
        self.end(now_ns)
        self.launched.clear()
        self.inbox.clear()
        return lost


def repaced(lanes: Sequence[SimLane], contention: float, now_ns: int) -> List[Tuple[SimLane, int]]:
    """The lanes of one device whose works end at another time than was known, and when. With n works at a time each
    takes ``1 + (n - 1) * (contention - 1)`` times as long as alone."""
    busy = [lane for lane in lanes if lane.running is not None]
    pace = 1.0 + (len(busy) - 1) * (contention - 1.0)
    found = []
    for lane in busy:
        running = lane.running
        if running is None or running.pace == pace:
            continue
        if running.pace:
            running.left_ns = max(0, running.left_ns - round((now_ns - running.since_ns) / running.pace))
            lane.epoch += 1
        running.since_ns, running.pace = now_ns, pace
        found.append((lane, now_ns + round(running.left_ns * pace)))
    return found
