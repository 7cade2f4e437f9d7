"""The batches that lanes have not answered, the lanes that hang for good, and the threads that replace them.

A lane whose work does not return within its bound is hung to the scheduler; it may still come back by itself, or abort.
After a grace it counts as lost, and another thread takes its place. The server's own pauses (a debugger, SIGSTOP, a
machine that slept) count for nothing: a lane must be overdue at two looks that came in time. Knows no request.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, MutableMapping, Optional, Set

from edgeserve.config.schema import Config
from edgeserve.live.stats import LaneCounts
from edgeserve.offload.lane_thread import LaneThread
from edgeserve.sched.core.build import copy_lane_name, model_lanes
from edgeserve.units import NS_PER_MS, NS_PER_S

log = logging.getLogger("edgeserve")

LOOK_NS = 500 * NS_PER_MS
"""Between two looks, while works are on lanes."""

LATE_NS_MAX = 2 * LOOK_NS
"""A look that came later than this tells that the server itself stood still."""

GRACE_NS = NS_PER_S
"""Beyond the bound at which the scheduler gives a lane's jobs up: for works that abort or return after all."""

HUNG_THREADS_MAX = 8
"""Threads that hang and were replaced: each keeps its model's memory until it returns."""


class LaneWorks:
    """The lanes by name, copy lanes included. ``counts``: what each did; the works that it has not answered stand there
    alone. ``devices`` says on which device a lane is. ``idle``: lanes that could start what comes; copy lanes do not
    count. ``free_ns``: when the last work on each was over. ``due_ns``: when to :meth:`look`, ``None`` while nothing
    is on any lane. ``make_lane`` makes another lane of a name, for one that hangs."""

    def __init__(
        self, config: Config, lanes: MutableMapping[str, LaneThread], make_lane: Callable[[str], LaneThread]
    ) -> None:
        self.lanes = lanes
        self.counts = {name: LaneCounts(room=0) for name in lanes}
        for name, lane in config.lanes.items():
            self.counts[name].room = 1 if lane.ahead_ns else lane.depth
        self.devices = {name: lane.device for name, lane in config.lanes.items()}
        self.devices.update({copy_lane_name(name): name for name in config.devices})
        self.idle = len(config.lanes)
        self.free_ns = dict.fromkeys(lanes, 0)
        self.due_ns: Optional[int] = None
        self._in_flight = 0  # works on all lanes
        self._config = config
        self._make_lane = make_lane
        self._hang_ns = {name: lane.hang_ns for name, lane in config.lanes.items()}
        self._looked_ns = 0
        self._overdue: Dict[str, int] = {}  # lane -> the work that was overdue at the last look
        self._coming_back: Set[str] = set()  # lanes with a new thread, whose model is being reloaded
        self._replaced: List[LaneThread] = []

    def take_over(self, other: LaneWorks) -> None:
        """Go on counting where another configuration's works stopped."""
        self.counts, self.free_ns, self._in_flight = other.counts, other.free_ns, other._in_flight

    def gave(self, action: Any, now_ns: int) -> None:
        """Note that a lane was given a work."""
        counts = self.counts[action.lane]
        if len(counts.in_flight) == counts.room - 1:
            self.idle -= 1
        counts.in_flight[action.work_id] = (now_ns, action)
        self._in_flight += 1
        if self.due_ns is None:
            self.due_ns = now_ns + LOOK_NS
            self._looked_ns = now_ns

    def answered(self, action: Any) -> Optional[int]:
        """A lane answered a work: when it was given; ``None`` where it was taken from the lane before."""
        counts = self.counts[action.lane]
        given = counts.in_flight.pop(action.work_id, None)
        if given is None:
            return None
        if len(counts.in_flight) == counts.room - 1:
            self.idle += 1
        self._in_flight -= 1
        if not self._in_flight:
            self.due_ns = None  # nothing to look at: the loop need not wake up for it
        return given[0]

    def usable(self, device: str, model: str, now_ns: int) -> List[str]:
        """The lanes of a device that could run a model now, or could once its engine is there."""
        return [
            name
            for name in self.of_model(model, device)
            if name in self._coming_back or not self.counts[name].is_stuck(now_ns, self._hang_ns[name])
        ]

    def of_model(self, model: str, device: str) -> List[str]:
        """The lanes of a device that may run a model."""
        return [name for name in model_lanes(self._config, self._config.models[model]) if self.devices[name] == device]

    # --- lanes that hang ----------------------------------------------------------------------------------------------

    def look(self, now_ns: int) -> List[str]:
        """The lanes that hang for good."""
        in_time = now_ns - self._looked_ns <= LATE_NS_MAX
        self._looked_ns = now_ns
        found, overdue = [], {}
        for lane, hang_ns in self._hang_ns.items():
            works = self.counts[lane].in_flight
            if not works:
                continue
            work_id, (given_ns, action) = next(iter(works.items()))
            began_ns = max(given_ns, self.free_ns[lane], action.start_after_ns)
            if now_ns > began_ns + action.expected_ns + hang_ns + GRACE_NS:
                overdue[lane] = work_id
                if in_time and self._overdue.get(lane) == work_id:
                    found.append(lane)
        self._overdue = overdue
        self.due_ns = now_ns + LOOK_NS if self._in_flight else None
        return found

    def replace(self, name: str) -> List[Any]:
        """Put another thread in the place of a lane that hangs; the actions that it had not answered: its later answers
        to them are ignored. A thread that hangs cannot be ended, so their number is bounded: no actions where the bound
        is reached."""
        self._replaced = [lane for lane in self._replaced if not lane.join(0.0)]
        counts = self.counts[name]
        if len(self._replaced) >= HUNG_THREADS_MAX:
            if counts.up:
                log.error(
                    "lane %s hangs, and so do %d threads that were replaced: it stays as it is; restart the "
                    "server, or set options.process = true for the models that hang",
                    name,
                    HUNG_THREADS_MAX,
                )
            return []
        lane = self._make_lane(name)
        try:
            lane.start()
        except RuntimeError as error:  # no more threads: the next look tries again
            log.error("lane %s hangs, and no other thread can take its place: %s", name, error)
            return []
        taken = [action for _, action in counts.in_flight.values()]
        log.error(
            "lane %s hangs in model %s: another thread takes its place, and the model is made anew",
            name,
            taken[0].model,
        )
        if len(taken) >= counts.room:
            self.idle += 1
        self._in_flight -= len(taken)
        counts.in_flight.clear()
        counts.up = False
        counts.replaced += 1
        old = self.lanes[name]
        old.abandon()
        self._replaced.append(old)
        self.lanes[name] = lane
        self._coming_back.add(name)
        return taken

    def back(self, name: str, now_ns: int) -> bool:
        """A lane whose thread was replaced may be used again; ``False`` where the new thread is down, too."""
        self._coming_back.discard(name)
        self.free_ns[name] = now_ns
        self.counts[name].up = not self.lanes[name].is_down
        return self.counts[name].up
