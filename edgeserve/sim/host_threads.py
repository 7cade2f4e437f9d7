"""Threads of a simulated server that get in each other's way: who holds the interpreter lock, who shares cores.

The machine (:mod:`edgeserve.sim.machine`) draws how long one of them waits; this module knows which of them run.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

from edgeserve.config.schema import Config
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sim.lanes import SimLane
from edgeserve.sim.machine import RETURN_TAKES, Function, Machine, slowed_by_lock


class HostThreads:
    """The loop's thread and those of the lanes of one world. Times are virtual, in nanoseconds."""

    def __init__(self, machine: Machine, lanes: Mapping[str, SimLane], config: Config) -> None:
        self._machine = machine
        self._lanes = lanes
        self._contended = {
            name for name, device in config.devices.items() if device.kind == "cpu" and device.contention == 1.0
        }
        self._starting: List[Tuple[str, str, int]] = []  # functions of the present step: lane, model, expected time

    def begin_step(self) -> None:
        """The loop decides anew."""
        self._starting.clear()

    def give(self, action: RunBatch) -> None:
        """The present step gives a lane a batch. Of all threads that a step wakes, that with a host function gets the
        interpreter lock first (measured: in two cases of three, and others wait as long as it takes in the mean)."""
        lane = self._lanes[action.lane]
        if lane.up and not lane.inbox and not lane.launched_count and self._machine.share(action.model):
            self._starting.append((action.lane, action.model, action.expected_ns))

    def functions(self, at_ns: int) -> List[Function]:
        """The host functions that still run then, as far as is known."""
        return [
            (lane.running.action.model, lane.running.ends_ns() - at_ns)
            for lane in self._lanes.values()
            if lane.running is not None and lane.running.share and lane.running.ends_ns() > at_ns
        ]

    def _starting_beside(self, lane: str, at_ns: int, acts_ns: int) -> List[Function]:
        """Functions of the present step, whose actions take effect at ``acts_ns``, on other lanes; and how much of them
        is left."""
        return [
            (model, acts_ns + expected_ns - at_ns)
            for other, model, expected_ns in self._starting
            if other != lane and acts_ns + expected_ns > at_ns
        ]

    def start_ns(self, lane: SimLane, action: Any, now_ns: int, acts_ns: int) -> int:
        """From giving an idle lane a work until its thread starts it."""
        lag_ns = self._machine.start_ns(self.functions(now_ns)) + self._machine.start_lag_ns(lane.name)
        if not self._machine.share(getattr(action, "model", "")):
            lag_ns += self._machine.behind_ns(self._starting_beside(lane.name, now_ns, acts_ns))
        return lag_ns

    def answer_ns(self, at_ns: int, acts_ns: int) -> int:
        """The loop's time to send one answer, and what it waits for the lock before."""
        behind_ns = self._machine.behind_ns(self._starting_beside("", at_ns, acts_ns))
        return behind_ns + self._machine.answer_ns(self.functions(at_ns + behind_ns))

    def return_wait_ns(self, now_ns: int) -> int:
        """How long a thread waits that comes back from its device."""
        return self._machine.lock_wait_ns(self.functions(now_ns), RETURN_TAKES)

    def shares_cores(self, lane: SimLane, is_measured: bool) -> bool:
        """Whether a batch is slower beside others on cores: it was measured alone, and its device does not say how much
        its lanes slow each other."""
        return is_measured and lane.device in self._contended

    def pace(self, lane: SimLane) -> float:
        """How many times longer what a lane runs takes for the lock and the cores that it shares."""
        here = lane.running
        assert here is not None
        others = [other.running for other in self._lanes.values() if other is not lane and other.running is not None]
        pace = 1.0
        if here.share:
            pace = slowed_by_lock(here.share, [other.share for other in others], self._machine.costs.lock_factor)
        if here.shares_cores:
            pace *= self._machine.beside(
                here.share > 0.0, [other.share > 0.0 for other in others if other.shares_cores]
            )
        return pace
