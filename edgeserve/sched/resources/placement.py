"""One model in one device's memory: its state, what waits for it, and when it ran."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Deque, List, Sequence, Tuple

from edgeserve.priority_class import CLASSES
from edgeserve.sched.resources.lanes import Lane
from edgeserve.units import FOREVER_NS, NS_PER_MS, format_size

WORKING_NS = 1_000 * NS_PER_MS
"""A model that ran within this time is at work, as is one that ran within twice its usual time between two runs."""

WORKING_NS_MAX = 5_000 * NS_PER_MS
"""No model counts as at work for longer after its last run: one that runs more rarely can be loaded again."""

NEVER_NS = 2**61
"""The time at which a model is there that will not be loaded; far enough that sums with it are later than any
deadline."""

ABSENT, LOADING, RESIDENT, EVICTING = "absent", "loading", "resident", "evicting"


@dataclass(eq=False)
class Placement:
    """One model on one device. ``bytes`` counts its weights and the working memory of its largest batch; ``lanes`` are
    those of the device that may run it."""

    model: str
    device: str
    bytes: int
    load_ns: int
    pinned: bool = False
    state: str = ABSENT
    since_ns: int = 0  # resident since
    due_ns: int = 0  # loading: expected to be resident at
    in_flight: int = 0  # batches launched and not answered
    demand_ns: int = 0  # estimated execution time of the ready jobs that could run here
    bound_ns: int = 0  # of that, of jobs that can run nowhere else: a lane of this device holds their state
    waiting: List[int] = field(default_factory=lambda: [0] * len(CLASSES))  # what these jobs are worth, by class
    late: List[Tuple[int, int]] = field(default_factory=list)  # (deadline, job) of those answered however late, sorted
    used: bool = True  # has run since it was loaded
    failures: int = 0
    retry_at_ns: int = 0
    loads_ns: Deque[int] = field(default_factory=lambda: deque(maxlen=10))
    used_ns: int = -FOREVER_NS  # when it was launched last
    gap_ns: int = 0  # a usual time between two launches, of the longer ones
    lanes: Sequence[Lane] = field(default=(), repr=False)

    def can_serve(self) -> bool:
        """True if it is resident and a lane that may run it is not lost for good."""
        return self.state == RESIDENT and not (self.lanes and all(lane.lost for lane in self.lanes))

    def is_working(self, now_ns: int) -> bool:
        """True if it ran lately, or is about to run again as it usually does."""
        return now_ns < self.idle_at_ns()

    def is_overdue(self, now_ns: int) -> bool:
        """True if a request waits for it that must be answered and is late already."""
        return bool(self.late) and self.late[0][0] <= now_ns

    def idle_at_ns(self) -> int:
        """When it counts as idle, unless it runs again before."""
        return self.used_ns + min(WORKING_NS_MAX, max(WORKING_NS, 2 * self.gap_ns))

    def __repr__(self) -> str:
        return f"Placement({self.model} on {self.device}: {self.state}, {format_size(self.bytes)})"
