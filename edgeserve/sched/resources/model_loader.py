"""The memory of all devices: demand for models, and the loads and evictions that follow from it.

Which model to load and which to give up is decided per device in ``sched/resources/model_cache.py``; here the decisions
become works on the copy lanes. Knows no request and no policy."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Dict, List, Mapping, Sequence, Tuple

from edgeserve.priority_class import RANKS
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS, Action, EvictModel, LoadModel
from edgeserve.sched.protocol.events import WorkFinished
from edgeserve.sched.requests.states import Job
from edgeserve.sched.requests.worth import worth_ns
from edgeserve.sched.resources.lanes import EVICT, LOAD, Lane, Work, Works
from edgeserve.sched.resources.model_cache import LOAD_FAILURES_MAX, Device
from edgeserve.sched.resources.model_worth import ModelWorth
from edgeserve.sched.resources.placement import ABSENT, RESIDENT, Placement


class Memory:
    """Devices, their copy lanes and who wants what. ``alone_ns`` gives the time of one job of a model.

    ``tracked`` is False when every model is resident for good (no budget anywhere): then there is nothing to manage,
    and demand is not counted.
    """

    def __init__(
        self,
        devices: Mapping[str, Device],
        copy_lanes: Mapping[str, Lane],
        lanes: Mapping[str, Lane],
        works: Works,
        models: Sequence[str],
        worth: ModelWorth,
    ) -> None:
        self.devices = devices
        self.copy_lanes = copy_lanes
        self.placements: Dict[str, Tuple[Placement, ...]] = {
            model: tuple(device.placements[model] for device in devices.values() if model in device.placements)
            for model in models
        }
        self.tracked = any(
            device.budget_bytes
            or device.headroom_bytes
            or any(item.state != RESIDENT for item in device.placements.values())
            for device in devices.values()
        )
        self._lanes = lanes
        self._works = works
        self._worth = worth
        for device in devices.values():
            device.worth = worth

    # --- demand -------------------------------------------------------------------------------------------------------

    def want(self, job: Job, alone_ns: int, part: float) -> None:
        """A job is ready and waits for its model, without which this part of its worth is lost."""
        request = job.request
        job.demand_ns = alone_ns
        worth = part * worth_ns(request)
        job.demand_worth = round(worth / (request.rank * max(1, len(request.jobs))))
        rank = RANKS[request.priority_class]
        for placement in self._places(job, job.model):
            placement.demand_ns += alone_ns
            placement.waiting[rank] += job.demand_worth
            if request.on_late == "answer":
                insort(placement.late, (request.deadline_ns, job.seq))
            if job.lane:
                placement.bound_ns += alone_ns

    def unwant(self, job: Job) -> None:
        """The job was launched or is gone."""
        if job.demand_ns:
            request = job.request
            rank = RANKS[request.priority_class]
            for placement in self._places(job, job.model):
                placement.demand_ns -= job.demand_ns
                placement.waiting[rank] -= job.demand_worth
                if request.on_late == "answer":
                    del placement.late[bisect_left(placement.late, (request.deadline_ns, job.seq))]
                if job.lane:
                    placement.bound_ns -= job.demand_ns
            job.demand_ns = 0

    def is_hopeless(self, job: Job) -> bool:
        """True if the loads of a job's model failed ``LOAD_FAILURES_MAX`` times in a row wherever it could run, and it
        is not there."""
        return all(
            item.state != RESIDENT and item.failures >= LOAD_FAILURES_MAX
            for model in job.node.models
            if job.may_run(model)
            for item in self._places(job, model)
        )

    def _places(self, job: Job, model: str) -> Tuple[Placement, ...]:
        """The placements at which a model could serve a job: on one device only when a lane of it holds the job's
        state."""
        if job.lane:
            return (self.devices[self._lanes[job.lane].device].placements[model],)
        return self.placements[model]

    # --- decisions ----------------------------------------------------------------------------------------------------

    def manage(self, now_ns: int) -> List[Action]:
        """Evict under pressure; load the most wanted models while a copy lane accepts."""
        actions: List[Action] = []
        self._worth.refresh(now_ns)
        for device in self.devices.values():
            copy_lane = self.copy_lanes[device.name]
            device.calm(now_ns)
            while copy_lane.accepts(now_ns):
                surplus = device.under_pressure(now_ns)
                if surplus is not None:
                    actions.append(self._evict(now_ns, device, surplus))
                if surplus is None or not device.headroom_bytes:
                    break  # without a headroom one in a step: the next report may say that it was enough
            while copy_lane.accepts(now_ns):
                found = device.next_load(now_ns, self.devices.values())
                if found is None:
                    break
                placement, victims = found
                actions.extend(self._evict(now_ns, device, victim) for victim in victims)
                work = self._works.put(now_ns, LOAD, copy_lane, placement.model, placement.load_ns)
                device.load_started(placement, work.starts_ns + placement.load_ns)
                actions.append(
                    LoadModel(work.id, copy_lane.name, placement.model, START_ANY_TIME_NS, placement.load_ns)
                )
        return actions

    def retry_at_ns(self, now_ns: int) -> int | None:
        """The time at which a failed load may be tried again for waiting jobs, or a load that waits for memory may take
        others': models at work until then, or more wanted than it; None where no load waits."""
        found: int | None = None
        for device in self.devices.values():
            for item in device.placements.values():
                if item.demand_ns and item.state == ABSENT:
                    times = [item.retry_at_ns] if item.failures else []
                    for at_ns in [*times, *[due_ns for due_ns, _ in item.late[:1]]]:
                        if at_ns > now_ns and (found is None or at_ns < found):
                            found = at_ns
            roomier_ns = device.roomier_at_ns(now_ns) if device.headroom_bytes else None
            if roomier_ns is not None and (found is None or roomier_ns < found):
                found = roomier_ns
        return found

    # --- answers of the copy lanes ------------------------------------------------------------------------------------

    def finished(self, work: Work, event: WorkFinished, now_ns: int) -> str:
        """A load or an eviction ended. Returns why those jobs of its model must fail that are hopeless now
        (:meth:`is_hopeless`), or ``""``."""
        device = self.devices[work.lane.device]
        placement = device.placements[work.model]
        if work.kind == EVICT:
            device.evict_ended(placement, refused=bool(event.failed))
            return ""
        device.load_ended(placement, now_ns, event.finished_ns - event.started_ns, bool(event.failed))
        return f"model {work.model!r} could not be loaded: {event.failed}" if event.failed else ""

    def refused(self, work: Work, now_ns: int) -> None:
        """A copy lane would not do it, or went down."""
        device = self.devices[work.lane.device]
        if work.kind == EVICT:
            device.evict_ended(device.placements[work.model], refused=True)
        else:
            device.load_ended(device.placements[work.model], now_ns, 0, failed=True)

    def _evict(self, now_ns: int, device: Device, placement: Placement) -> Action:
        work = self._works.put(now_ns, EVICT, self.copy_lanes[device.name], placement.model, 0)
        device.evict_started(placement)
        return EvictModel(work.id, work.lane.name, placement.model)
