"""Changes of lanes and devices, and what is stranded by them: what a lane loses goes elsewhere, fails, or ends.

Results of batches are ``returns.py``. Knows no clock (the time is ``board.now_ns``).
"""

from __future__ import annotations

from typing import List

from edgeserve.config.profile_record import Clocks
from edgeserve.sched.core.experiments import Probes
from edgeserve.sched.core.request_manager import RequestManager
from edgeserve.sched.core.returns import Returns
from edgeserve.sched.core.state import State
from edgeserve.sched.policy_api.policy import Change
from edgeserve.sched.protocol.events import DeviceChanged, DrainRequested, LaneChanged
from edgeserve.sched.requests.states import READY, Job
from edgeserve.sched.resources.lanes import RUN, Lane, Work

SPEED_TOLERANCE = 0.02
"""A lane's speed that differs from the known one by no more than this share is the same: clocks jitter, and another
speed makes every table of the lane anew."""


class Changes:
    """What lanes and devices report beside results, and what follows for the requests."""

    def __init__(self, state: State, manager: RequestManager, returns: Returns, probes: Probes) -> None:
        self._state = state
        self._board = state.board
        self._manager = manager
        self._returns = returns
        self._probes = probes

    def lane_changed(self, event: LaneChanged) -> None:
        """A lane went down, came back, or runs at another speed."""
        lane = self._state.lanes[event.lane]
        change = Change(lane=lane.name)
        clocks = lane.clocks
        if event.clock_mhz is not None:
            clocks = Clocks(event.clock_mhz, event.memory_clock_mhz or 0.0)
        speed = lane.speed if event.speed is None else event.speed
        if abs(speed - lane.speed) > SPEED_TOLERANCE * lane.speed or clocks != lane.clocks:
            change.speed, lane.speed, lane.clocks = speed, speed, clocks
            self._state.set_speeds(lane, event.since_ns)
        if event.up is not None and event.up != lane.up:
            change.up = lane.up = event.up
        if change.up or event.lost:  # it may have been down before it is lost
            lane.lost = event.lost
            self._state.has_lost = any(other.lost for other in self._state.lanes.values())
        works = lane.clear() if change.up is False else []
        self._board.ends_ns.clear()
        for index, work in enumerate(works):
            self._lose(
                work, running=index == 0, reason=f"lane {lane.name} went down: {event.reason or 'no reason given'}"
            )
        if change.up is False:
            self._returns.release_all(lane)
        if event.lost or change.up is False:
            self._fail_stranded()
        if change.up is not None or change.speed is not None:
            self._tell(change)

    def device_changed(self, event: DeviceChanged) -> None:
        """A monitor reports memory, heat, power or load of a device."""
        device = self._state.devices[event.device]
        change = Change(device=device.name)
        pressure = device.pressure
        if event.cpu_load is not None and event.cpu_cores:
            self._state.cpu_shares[device.name].reported(self._board.now_ns, event.cpu_load, event.cpu_cores)
        if event.memory_free_bytes is not None:
            device.reported_ns = self._board.now_ns
        if event.memory_free_bytes is not None and event.memory_free_bytes != device.free_bytes:
            change.memory_free_bytes = event.memory_free_bytes
            device.reported(event.memory_free_bytes, self._board.now_ns)
        if event.heat is not None and event.heat != device.heat:
            change.heat = device.heat = event.heat
        if event.power_w is not None and event.power_w != device.power_w:
            change.power_w = device.power_w = event.power_w
        if event.power_w is not None:
            self._state.energy[device.name].reported(self._board.now_ns, event.power_w)
        if event.memory_block_bytes is not None:
            device.block_bytes = event.memory_block_bytes
        device.limited(event.thermal, event.power)
        if device.pressure != pressure:
            change.pressure = device.pressure
        if any(value is not None for value in (change.memory_free_bytes, change.heat, change.power_w, change.pressure)):
            self._tell(change)

    def drain_requested(self, event: DrainRequested) -> None:
        """No more requests come: what no lane can serve now ends."""
        self._state.draining = True
        self._fail_stranded()

    def hang(self, lane: Lane) -> None:
        """A lane whose work is overdue by more than its bound: the requests of the works that it may have
        launched end, those behind them go elsewhere."""
        lane.hung = True
        self._board.ends_ns.clear()
        for index, work in enumerate(list(lane.works)):
            self._lose(
                work,
                running=index < lane.depth,
                forget=False,
                reason=f"lane {lane.name} hangs: work {work.id} ({work.model}) did not return within "
                f"[lane.{lane.name}] hang after its expected end",
            )
        self._returns.release_all(lane)
        self._fail_stranded()
        self._tell(Change(lane=lane.name, up=False))

    def _lose(self, work: Work, running: bool, reason: str, forget: bool = True) -> None:
        """A lane will not do this work. Jobs that were running fail; the others are ready again. ``forget``: the lane
        went down and will not answer; else it may still answer, and holds the model until then."""
        if forget:
            self._state.works.forget(work)
            if work.kind == RUN:
                self._state.devices[work.lane.device].placements[work.model].in_flight -= 1
                self._state.sequences.ended(work)
            else:
                self._state.memory.refused(work, self._board.now_ns)
        if work.kind != RUN or work.lost:
            return
        work.lost = True
        if not forget:
            self._state.sequences.hangs(work)
        work.policy.on_lost(work, self._board)
        if running and not (forget and work.model in self._state.sequences.models):
            self._returns.lost(work, reason)
        else:
            self._returns.give_back(work)

    def _fail_stranded(self) -> None:
        """End the requests with a job that no lane is left for."""
        for job in self._waiting():
            if job.state == READY:  # else the end of another has ended it
                self._manager.fail_if_stranded(job)
        self._probes.release_stranded()

    def fail_jobs_of(self, model: str, reason: str) -> None:
        """Fail the jobs of a model that could not be loaded again, where no device can serve them."""
        for job in self._waiting():
            if model in job.node.models and job.state == READY and self._state.memory.is_hopeless(job):
                self._manager.fail(job, reason)

    def _waiting(self) -> List[Job]:
        """The jobs that policies hold, and those of trials."""
        return [job for policy in (*self._state.policies, self._manager.ends.trials) for job in policy.queued()]

    def _tell(self, change: Change) -> None:
        for policy in self._state.policies:
            policy.is_idle = False
            policy.on_device(change, self._board)
