"""Messages that wait for the simulated loop: it reads them when a live one would, several at once while lanes are busy.

The rule is the live loop's own (:mod:`edgeserve.loop.coalescing`); this module counts what lanes have, as
the live world does, and the world lets time pass. What is mail (works that are over, timers) never waits here.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from edgeserve.config.schema import Config
from edgeserve.loop.coalescing import ReceiveCoalescing, lane_threads
from edgeserve.sched.protocol.actions import EvictModel, LoadModel, RunBatch
from edgeserve.sched.protocol.events import Event, LaneChanged, WorkFinished, WorkRefused


class Messages:
    """What came over the bus and was not read. ``cores``: those that the server may use; 0 where nobody knows: the loop
    then counts as having one of its own. Belongs to one world."""

    def __init__(self, config: Config, cores: int) -> None:
        self.waiting: List[Event] = []
        self._since_ns = 0  # when the first of them came
        self.looks_ahead = any(lane.ahead_ns for lane in config.lanes.values())
        self._rule = ReceiveCoalescing(shares_cores=0 < cores <= lane_threads(config))
        self._rooms = {name: 1 if lane.ahead_ns else lane.depth for name, lane in config.lanes.items()}
        self._given = dict.fromkeys(config.lanes, 0)  # works that a lane has, as far as the loop knows
        self._lanes: Dict[int, str] = {}  # work -> its lane

    @property
    def is_busy(self) -> bool:
        """Whether no lane could start what comes."""
        return all(self._given[name] >= room for name, room in self._rooms.items())

    def given(self, action: Any, now_ns: int, expected_ns: int) -> None:
        """A lane was given a work. ``expected_ns``: after which something else could start there."""
        if isinstance(action, RunBatch):
            self._rule.launched(now_ns, expected_ns)
        if isinstance(action, (RunBatch, LoadModel, EvictModel)) and action.lane in self._given:
            self._given[action.lane] += 1
            self._lanes[action.work_id] = action.lane

    def told(self, mail: Sequence[Event]) -> None:
        """The loop looks at its mail."""
        for event in mail:
            if isinstance(event, (WorkFinished, WorkRefused)):
                lane = self._lanes.pop(event.work_id, "")
                if lane:
                    self._given[lane] -= 1
            elif isinstance(event, LaneChanged) and event.up is False and event.lane in self._given:
                self._given[event.lane] = 0  # what it had is answered by nobody
                self._lanes = {work: lane for work, lane in self._lanes.items() if lane != event.lane}

    def held_until_ns(self, now_ns: int) -> Optional[int]:
        """Until when the loop does not look for messages; ``None``: it looks."""
        return self._rule.receive_at_ns(now_ns) if self.is_busy else None

    def lets_more_come(self, now_ns: int) -> bool:
        """Something came for a loop that had found nothing: whether it waits for more, since nothing can start."""
        if not self.is_busy or not self._rule.hold_ns:
            return False
        self._rule.hold_from(now_ns)
        return self._rule.receive_at_ns(now_ns) is not None

    def came(self, message: Event, now_ns: int) -> None:
        """One more waits."""
        if not self.waiting:
            self._since_ns = now_ns
        self.waiting.append(message)

    def wanted_ns(self, ready_ns: int, due_ns: Optional[int]) -> int:
        """When the loop would have gone on, which does at ``ready_ns``, had it not let messages and the timer wait."""
        times = [ready_ns] + [self._since_ns] * bool(self.waiting) + [due_ns] * (due_ns is not None)
        return min(item for item in times if item is not None)

    def read(self) -> List[Event]:
        """All that waits."""
        read, self.waiting = self.waiting, []
        return read

    def were_read(self, now_ns: int, count: int) -> None:
        """So many were read; the next look may wait again."""
        if self.is_busy:
            self._rule.received(now_ns, count)

    def expects_more(self, now_ns: int, count: int) -> bool:
        """Whether an idle lane waits a moment for those who were just answered, ``count`` events having come."""
        return not self.is_busy and self._rule.answers > 1 and self._rule.expects_more(now_ns, count)

    def answered(self, now_ns: int, count: int) -> None:
        """So many answers were sent together."""
        self._rule.answered(now_ns, count, self.is_busy)
