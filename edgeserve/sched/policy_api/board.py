"""A policy's facts and moves. A thin view of the scheduler's tables: facts are read, moves are checked.

A move takes effect at once, so the next line of the policy sees it; an illegal move raises
:class:`~edgeserve.errors.PolicyError` with the request's story and changes nothing.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from edgeserve.errors import PolicyError
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.path_cost import AppCosts
from edgeserve.sched.policy_api.budget import Budget
from edgeserve.sched.protocol.events import Part
from edgeserve.sched.requests.arrivals import AppArrivals
from edgeserve.sched.requests.critical import NO_ROOMS, CriticalArrivals, Rooms, apps_on
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.joins import Branch, branches
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.cpu_share import CpuShare
from edgeserve.sched.resources.lanes import Lane
from edgeserve.sched.resources.model_cache import Device
from edgeserve.sched.resources.placement import LOADING, NEVER_NS, RESIDENT, Placement
from edgeserve.sched.resources.sequences import Room, Sequences

Start = Tuple[Lane, BatchTime, int, bool]
"""A lane, how long a model takes there, when a job of it could start, and whether the model is in memory."""

AloneTime = Callable[[BatchTime], int]
"""A function from a model's times on a lane to the time of a lone job there, in nanoseconds."""


class Board:
    """Facts and moves for policies. ``now_ns`` is the time of this step: all of ``sched`` reads it here.

    ``lanes`` run batches, in the order of the configuration; ``apps_on`` are the apps that use a lane. ``ends_ns`` are
    the cached answers of :meth:`earliest_end_ns`; the core clears them when time has passed, or a lane or an estimate
    has changed. A policy may keep ends of its own there, under a name with a space: no model has one. ``passed_ns``: by
    app, since when its requests have been given up for their deadlines and none that ran has ended. ``forced_ns``: by
    app, when its background work last did not yield. ``background_at_ns``: when work that yields is looked at again, if
    any was in this step. ``wakes_late_ns``: how long after the time that it was asked for a step has come of late, at
    most. ``budget``: what policies may still compute in this step.

    ``state`` is :class:`~edgeserve.sched.core.state.State`. ``core/moves.py`` and ``core/experiments.py`` carry out
    the moves.
    """

    def __init__(self, state: Any) -> None:
        self.lanes: Sequence[Lane] = state.run_lanes
        self.now_ns = -1
        self.ends_ns: Dict[str, int | None] = {}
        self.passed_ns: Dict[str, int] = {}
        self.forced_ns: Dict[str, int] = {}
        self.background_at_ns: int | None = None
        self.wakes_late_ns = 0
        self.budget = Budget()
        self._requests: Any = None
        self._probes: Any = None
        self._lanes_of: Mapping[str, Sequence[Lane]] = state.lanes_of
        self._latency: Mapping[Tuple[str, str], BatchTime] = state.latency
        self._devices: Mapping[str, Device] = state.devices
        self._copy_lanes: Mapping[str, Lane] = state.copy_lanes
        self._costs: Mapping[str, AppCosts] = state.costs
        self._retained: Mapping[int, Job] = state.retained
        self._critical: CriticalArrivals = state.critical
        self._apps: Mapping[str, App] = state.apps
        self._sequences: Sequences = state.sequences
        self._cpu_shares: Mapping[str, CpuShare] = state.cpu_shares
        self.apps_on = {lane.name: apps_on(self._apps, lane.models) for lane in self.lanes}
        self._places: Dict[str, List[Tuple[Lane, BatchTime, Placement]]] = {
            model: [
                (lane, self._latency[model, lane.name], self._devices[lane.device].placements[model]) for lane in here
            ]
            for model, here in self._lanes_of.items()
        }

    def connect(self, requests: Any, probes: Any) -> None:
        """Say who carries out the moves of requests, and of probes."""
        self._requests, self._probes = requests, probes

    # --- facts --------------------------------------------------------------------------------------------------------

    def lanes_of(self, model: str) -> Sequence[Lane]:
        """The lanes that may run a model."""
        return self._lanes_of[model]

    def is_lost(self, model: str, only: str = "") -> bool:
        """True if no lane that may run ``model`` can ever serve it again (``only``: if this lane cannot): the lane is
        lost for good, or the copy lane that would load the model for it."""
        return all(
            lane.lost or (self._copy_lanes[lane.device].lost and not self._devices[lane.device].is_resident(model))
            for lane in self._lanes_of[model]
            if lane.name == (only or lane.name)
        )

    def places_of(self, model: str) -> Sequence[Tuple[Lane, BatchTime, Placement]]:
        """The same lanes with how long the model takes there, and its place in the memory of the lane's device."""
        return self._places[model]

    def latency(self, model: str, lane: str) -> BatchTime:
        """The times of a model on a lane."""
        return self._latency[model, lane]

    def cpu_share(self, lane: Lane) -> float:
        """The share of the time of a lane's threads that they would get beside all others that use the processor, by
        what a monitor told lately; 1.0 where none did. Other lanes of the device keep what they use."""
        return self._cpu_shares[lane.device].share(lane, self.now_ns)

    def has_memory(self, lane: Lane, bytes: int) -> bool:
        """True if so many bytes of a lane's device could be taken without need, by what a monitor told lately; True
        where none did. It is no bound: reservations are."""
        return self._devices[lane.device].has_room(bytes, self.now_ns)

    def resident_at_ns(self, model: str, lane: Lane) -> int:
        """When a model could run on a lane's device: now, when its load ends, or after a load that starts now.
        :data:`~edgeserve.sched.resources.placement.NEVER_NS` where none would start, since other devices serve all
        that waits for the model: a job that hoped for that load would wait for ever."""
        device = self._devices[lane.device]
        placement = device.placements[model]
        if placement.state == RESIDENT:
            return self.now_ns
        if placement.state == LOADING:
            return max(self.now_ns, placement.due_ns)
        if device.is_served_elsewhere(placement, self._devices.values()):
            return NEVER_NS
        return self._copy_lanes[lane.device].available_ns(self.now_ns) + placement.load_ns

    def is_resident(self, model: str, lane: Lane) -> bool:
        """True if a model can run on a lane now."""
        return self._devices[lane.device].placements[model].state == RESIDENT

    def starts(self, model: str, free_only: bool = False) -> List[Start]:
        """The lanes on which a job of a model could run, with its earliest start, behind the lanes' present batches:
        every lane that is up, after a load where the model is not resident. ``free_only``: only lanes that accept a
        batch now and have the model in memory."""
        now_ns = self.now_ns
        found: List[Start] = []
        for lane, latency, placement in self._places[model]:
            if not lane.up or lane.hung:
                continue
            resident = placement.state == RESIDENT
            if free_only and not (resident and lane.accepts(now_ns)):
                continue
            at_ns = self._starts_ns(lane, latency) if lane.works or latency.rest_ns else now_ns
            if not resident:
                at_ns = max(at_ns, self.resident_at_ns(model, lane))
            found.append((lane, latency, at_ns, resident))
        return found

    def earliest_end_ns(self, model: str, alone_ns: AloneTime | None = None, free_only: bool = False) -> int | None:
        """When a job of a model alone would end at the earliest on the lanes of :meth:`starts`, None when there is
        none: by the likely time, or by what ``alone_ns`` says of a lane's latency. (The likely one is asked for every
        arrival: worked out once per step, until something changes. A load depends on the demand, which every arrival
        changes.)"""
        ends = self.ends_ns
        lasts = alone_ns is None and not free_only
        if lasts and model in ends:
            return ends[model]
        earliest_ns: int | None = None
        now_ns = self.now_ns
        for lane, latency, placement in self._places[model]:  # as starts, without its list
            resident = placement.state == RESIDENT
            if not lane.up or lane.hung or (free_only and not (resident and lane.accepts(now_ns))):
                continue
            at_ns = self._starts_ns(lane, latency) if lane.works or latency.rest_ns else now_ns
            if not resident:
                at_ns = max(at_ns, self.resident_at_ns(model, lane))
                lasts = False
            at_ns += latency.alone_likely_ns if alone_ns is None else alone_ns(latency)
            if earliest_ns is None or at_ns < earliest_ns:
                earliest_ns = at_ns
        if lasts:
            ends[model] = earliest_ns
        return earliest_ns

    def _starts_ns(self, lane: Lane, latency: BatchTime) -> int:
        """When a batch of a model would start on a lane."""
        return lane.available_ns(self.now_ns) if lane.works else self.woken_ns(lane, latency, self.now_ns)

    def woken_ns(self, lane: Lane, latency: BatchTime, at_ns: int) -> int:
        """When a batch would start that a lane takes at ``at_ns``: what a rest costs it counts as a later start."""
        return at_ns + latency.rest_ns if latency.rest_ns and lane.has_rested(self.now_ns) else at_ns

    def ends_by_lane(self, model: str) -> Dict[str, int]:
        """When a job of a model alone would end on each lane that is up, by the likely time."""
        return {lane.name: at_ns + latency.alone_likely_ns for lane, latency, at_ns, _ in self.starts(model)}

    def rest_ns(self, app: App, node: Node) -> int:
        """Time from the end of a node to the end of its request, on idle lanes."""
        return self._costs[app.name].rest_ns[node.name] if node.succs else 0

    def rest_lane_ns(self, app: App, node: Node) -> int:
        """Lane time that a request still needs behind a node."""
        return self._costs[app.name].rest_lane_ns[node.name] if node.succs else 0

    def recent_arrivals(self, app: str) -> AppArrivals:
        """The recent arrivals of an app, also of another policy's, and the worth of its requests."""
        return self._apps[app].recent

    def critical_rooms(self, lane: Lane) -> Rooms:
        """The times for which a lane may be kept, from now on, without making critical requests late."""
        return self._critical.rooms(self.apps_on[lane.name], self.now_ns) if self._critical.any else NO_ROOMS

    def spares_critical(self, lane: Lane, takes_ns: int) -> bool:
        """True if work that takes so long, if it is given to a lane now, makes no critical request late: one that is
        open or the next that is expected. If not, the lane is looked at again when none is expected any more."""
        if not self._critical.any:
            return True
        room_ns, grows_ns = self._critical.room_ns(self.apps_on[lane.name], self.now_ns)
        if grows_ns is None:
            return True
        if self.background_at_ns is None or grows_ns < self.background_at_ns:
            self.background_at_ns = grows_ns
        return lane.available_ns(self.now_ns) - self.now_ns + takes_ns + lane.dispatch_gap.careful_ns <= room_ns

    def has_waited(self, job: Job) -> bool:
        """True if a background job has waited for so long that its app lets it delay critical requests, which it may
        once in that time (``background_wait``). If not yet, it is looked at again when it has."""
        app = job.request.app
        wait_ns = app.background_wait_ns
        if wait_ns <= 0:
            return False
        due_ns = max(job.ready_ns, self.forced_ns.get(app.name, job.ready_ns)) + wait_ns
        if due_ns > self.now_ns and (self.background_at_ns is None or due_ns < self.background_at_ns):
            self.background_at_ns = due_ns
        return due_ns <= self.now_ns

    def is_retained(self, job: Job) -> bool:
        """True if the world keeps this job's inputs for a probe."""
        return job.seq in self._retained

    def can_probe(self, model: str, lane: Lane) -> bool:
        """True if a probe of a model on a lane that idles would leave the apps that use it time enough."""
        return bool(self._probes.fits(model, lane))

    def makes_sequences(self, model: str) -> bool:
        """True if the items of a model are sequences."""
        return model in self._sequences.models

    def usual_steps(self, model: str) -> int:
        """Steps that an item of a model of sequences usually has; 1 of any other model."""
        return self._sequences.usual_steps(model) if model in self._sequences.models else 1

    def sequence_room(self, model: str, lane: Lane) -> Room | None:
        """The slots of a lane and the bytes of its device that new sequences of a model could have now; None for a
        model whose items are no sequences. A batch takes only the jobs that find room."""
        return self._sequences.room(model, lane) if model in self._sequences.models else None

    def sequence_bytes(self, job: Job) -> int:
        """The expected bytes of a sequence at its end, which it reserves before it first runs."""
        return self._sequences.needs_bytes(job)

    def prefill_turns(self, job: Job) -> int:
        """Turns that reading the prompt of a sequence takes which has made no step, each of about a step's time; 0
        where its model reads prompts whole or makes no sequences, or where nothing tells the prompt's length."""
        return self._sequences.prefill_turns(job) if job.node.model in self._sequences.models else 0

    def reads_in_turns(self, model: str) -> bool:
        """True if a model reads prompts in bounded turns, so that two take as long as one after the other."""
        sequence = self._sequences.models.get(model)
        return sequence is not None and sequence.prefill_tokens > 0

    def branches(self, request: RequestRecord, join: str, part: Part = ()) -> List[Branch]:
        """The outcome of each predecessor of a join, in the order of the graph."""
        node = request.app.by_name.get(join)
        if node is None or not node.is_join:
            raise PolicyError(f"branches({join!r}): app {request.app.name!r} has no join of that name")
        return branches(request, node, part)

    def note(self, request: RequestRecord, *words: object) -> None:
        """Add a line to a request's story: why a policy decides as it does. Changes nothing else."""
        request.note(self.now_ns, *words)

    # --- moves --------------------------------------------------------------------------------------------------------

    def drop(self, request: RequestRecord, reason: str) -> None:
        """Give a request up. Its ready jobs leave (``on_gone`` is called for each), running ones are ignored."""
        self._requests.drop(request, reason)

    def abandon_branch(self, job: Job, reason: str) -> None:
        """A ready job cannot be in time: a request with ``on_late = "partial"`` goes on without it where it can, any
        other is dropped."""
        self._requests.abandon_branch(job, reason)

    def settle(self, request: RequestRecord, join: str = "", part: Part = (), wait_running: bool = False) -> None:
        """Let every join that has something go on without waiting for the rest; or only the ``join`` of that name, for
        this ``part``. With ``wait_running`` the named join still waits for the branches that are running."""
        self._requests.settle(request, join, part, wait_running)

    def want(self, job: Job, wanted: bool = True, model: str = "", part: float | None = None) -> None:
        """Set whether a ready job is demand for its model: models are loaded and evicted by demand. A job that became
        ready is, until its policy calls this with ``wanted=False``. ``model``: the variant that it waits for from now
        on; ``part``: the share of its worth that is lost without that one (left out: all)."""
        self._requests.want(job, wanted, model, 1.0 if part is None else part)

    def rate(self, request: RequestRecord, quality: float) -> None:
        """Say what an answer to a request would be worth beside a whole one, from 0 to 1, as far as is known now. The
        last number counts: the answer tells it, and one below the request's ``quality_min`` is not given."""
        self._requests.rate(request, quality)

    def retain(self, job: Job) -> bool:
        """Have the world keep a ready job's inputs, however its request ends, until a bid with ``probe`` runs
        them or :meth:`release`. False, and nothing is kept, while the server drains."""
        return bool(self._probes.retain(job))

    def release(self, job: Job) -> None:
        """No probe of this job will be run."""
        self._probes.release(job)
