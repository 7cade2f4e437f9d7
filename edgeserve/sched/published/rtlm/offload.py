"""Which tasks go to a slower lane, such as a group of CPU threads, and the quantile of lengths that counts as long.

The paper sends every task above ``tau`` there. A tenth of the tasks has a fifth of the tokens: unless the lane is
nearly as fast as the main one, its queue grows without bound. The conditional rule looks at both ends, and at what the
task would cost the others on the main lane. Where others use the processor of the slower lane, its end is later:
:func:`slowed_ns`. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Deque, List, NamedTuple


class MainLane(NamedTuple):
    """The main lane as a task sees it: when it could begin there, nanoseconds per step of a full batch, the prefill,
    how many tasks wait and how many fit, and the mean length of what is served."""

    begins_ns: float
    step_ns: float
    prefill_ns: float
    waiting: int
    batch: int
    mean_steps: float


class Crowd(NamedTuple):
    """The main lanes as the first task that waits sees them, how many sequences run at once on all of them
    (``slots``), and how long a batch takes."""

    main: MainLane
    slots: int
    took_ns: float

    def main_of(self, place: int) -> MainLane:
        """The same as a task sees them that has so many before it."""
        main = self.main
        begins_ns = main.begins_ns + place // self.slots * self.took_ns
        return MainLane(begins_ns, main.step_ns, main.prefill_ns, main.waiting, main.batch, main.mean_steps)


class Side(NamedTuple):
    """A side lane as a task sees it: when it could begin there, the prefill, and a step beside what runs there, as
    slow as the lane's threads are now."""

    begins_ns: float
    prefill_ns: float
    step_ns: float

    def ends_ns(self, steps: float) -> float:
        """When a task of so many steps would end."""
        return self.begins_ns + self.prefill_ns + steps * self.step_ns


def main_ends_ns(steps: float, main: MainLane) -> float:
    """When a task would end on the main lane."""
    return main.begins_ns + main.prefill_ns + steps * main.step_ns


def spared_ns(steps: float, main: MainLane) -> float:
    """The delay that a task longer than usual inflicts on each task that shares its batch on the main lane."""
    crowd = min(main.waiting, main.batch) / max(1, main.batch)
    return main.step_ns * max(0.0, steps - main.mean_steps) * crowd


def slowed_ns(own_ns: float, share: float, measured_share: float) -> float:
    """The time of work that takes ``own_ns`` by the times that were measured while a lane's threads got
    ``measured_share`` of the processor, now that they would get ``share``. Never less than measured: that the processor
    is less busy than it was shows in the times soon enough."""
    return own_ns * max(1.0, measured_share / share)


def goes_off(steps: float, tau: float, side_ends_ns: float, main: MainLane) -> bool:
    """True if a task should run on the side lane, where it would end at ``side_ends_ns``: it is long, and it ends
    there before it would on the main lane, plus what the others there are spared."""
    return steps > tau and side_ends_ns < main_ends_ns(steps, main) + spared_ns(steps, main)


class RankWindow:
    """The last ``len_max`` numbers, and any quantile of them. O(log n) comparisons per number."""

    __slots__ = ("_len_max", "_last", "_sorted")

    def __init__(self, len_max: int) -> None:
        self._len_max = len_max
        self._last: Deque[float] = deque()
        self._sorted: List[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        """One more number; the oldest leaves when the window is full."""
        self._last.append(value)
        insort(self._sorted, value)
        if len(self._last) > self._len_max:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]

    def quantile(self, share: float) -> float:
        """The number that ``share`` of them do not exceed; 0 where there is none."""
        known = self._sorted
        return known[min(len(known) - 1, int(share * len(known)))] if known else 0.0

    def mean(self) -> float:
        """The mean of the numbers; 0 where there is none. O(n)."""
        return sum(self._sorted, 0.0) / len(self._sorted) if self._sorted else 0.0
