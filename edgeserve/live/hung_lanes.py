"""Which lanes hang for good, so that another thread takes their place.

A lane whose work does not return within its bound is hung to the scheduler; it may still come back by itself, or abort.
After a grace it counts as lost. The server's own pauses (a debugger, SIGSTOP, a machine that slept) count for nothing:
a lane must be overdue at two looks that came in time. Knows no engine and no thread.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from edgeserve.units import NS_PER_MS, NS_PER_S

LOOK_NS = 500 * NS_PER_MS
"""Between two looks, while works are on lanes."""

LATE_NS_MAX = 2 * LOOK_NS
"""A look that came later than this tells that the server itself stood still."""

GRACE_NS = NS_PER_S
"""Beyond the bound at which the scheduler gives a lane's jobs up: for works that abort or return after all."""


class HungLanes:
    """``given`` holds the actions that lanes have not answered, by the id of their work. ``due_ns`` is when to look,
    ``None`` while nothing is on any lane. ``hang_ns`` is by lane, of those that are looked at."""

    __slots__ = ("given", "due_ns", "_hang_ns", "_looked_ns", "_overdue")

    def __init__(self, hang_ns: Mapping[str, int]) -> None:
        self.given: Dict[int, Any] = {}
        self.due_ns: Optional[int] = None
        self._hang_ns = hang_ns
        self._looked_ns = 0
        self._overdue: Dict[str, int] = {}  # lane -> the work that was overdue at the last look

    def gave(self, action: Any, now_ns: int) -> None:
        """A lane was given a work."""
        self.given[action.work_id] = action
        if self.due_ns is None:
            self.due_ns = now_ns + LOOK_NS
            self._looked_ns = now_ns

    def answered(self, work_id: int) -> bool:
        """A lane answered; ``False`` for a work that was taken from it before."""
        return self.given.pop(work_id, None) is not None

    def look(self, now_ns: int, since_ns: Mapping[str, Mapping[int, int]], free_ns: Mapping[str, int]) -> List[str]:
        """The lanes that hang for good. ``since_ns``: lane -> work -> when it was given; ``free_ns``: when the last
        work of each lane ended."""
        in_time = now_ns - self._looked_ns <= LATE_NS_MAX
        self._looked_ns = now_ns
        found, overdue = [], {}
        for lane, hang_ns in self._hang_ns.items():
            works = since_ns[lane]
            if not works:
                continue
            work_id, given_ns = next(iter(works.items()))
            began_ns = max(given_ns, free_ns[lane], self.given[work_id].start_after_ns)
            if now_ns > began_ns + self.given[work_id].expected_ns + hang_ns + GRACE_NS:
                overdue[lane] = work_id
                if in_time and self._overdue.get(lane) == work_id:
                    found.append(lane)
        self._overdue = overdue
        self.due_ns = now_ns + LOOK_NS if self.given else None
        return found

    def take(self, lane: str) -> List[Any]:
        """Everything that a lane was given and has not answered: its answers will be ignored."""
        taken = [action for action in self.given.values() if action.lane == lane]
        for action in taken:
            del self.given[action.work_id]
        return taken
