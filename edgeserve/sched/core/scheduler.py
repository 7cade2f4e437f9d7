"""The scheduler: events in, actions out. No clock, no thread, no socket, no GPU; time is an argument.

:meth:`Scheduler.step` is the only way in and out. It absorbs the events, lets every policy plan once, then fills the
lanes by auction, then the memory by demand. What it coordinates lives beside this file and knows no policy by name:
lives of requests (``life``), graphs (``progress``), lanes and works (``lanes``), memory (``memory``, ``residency``),
streams, admission, costs, latency.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from edgeserve.errors import PolicyError
from edgeserve.sched.core.invariants import check_invariants
from edgeserve.sched.core.probes import Probes
from edgeserve.sched.core.request_manager import RequestManager
from edgeserve.sched.latency.model import ModelLatency
from edgeserve.sched.latency.path_cost import AppCosts, batch_time_ns
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid, Policy
from edgeserve.sched.protocol.actions import Action, RunBatch
from edgeserve.sched.protocol.events import (
    DeviceChanged,
    DrainRequested,
    Event,
    LaneChanged,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
    WorkRefused,
)
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import READY, move_job
from edgeserve.sched.requests.work import over_usual_milli
from edgeserve.sched.resources.lanes import RUN, Lane, Work, Works
from edgeserve.sched.resources.model_cache import RESIDENT, Device, Placement
from edgeserve.sched.resources.model_loader import Memory
from edgeserve.sched.resources.streams import Streams
from edgeserve.units import NS_PER_MS

CRITICAL_MEMORY_NS = 1000 * NS_PER_MS
"""How long after its last critical request an app is protected from background work that could block the next."""

FORGET_EVERY_NS = 1000 * NS_PER_MS
"""How often old durations are let go of: a tenth of their age."""


class Scheduler:
    """All requests, all lanes, one device or several. Not subclassed; what differs between systems is a policy.

    ``lanes`` run batches; each device has one copy lane for loads and evictions besides. ``latency`` has an entry for
    every (model, lane) that is allowed.
    """

    def __init__(self, apps: Sequence[App], policies: Sequence[Policy], devices: Sequence[Device],
                 lanes: Sequence[Lane], latency: Mapping[Tuple[str, str], ModelLatency]) -> None:
        self.apps = {app.name: app for app in apps}
        self.policies = tuple(policies)
        self.devices = {device.name: device for device in devices}
        self.run_lanes = tuple(lane for lane in lanes if not lane.copy)
        self.copy_lanes = {lane.device: lane for lane in lanes if lane.copy}
        self.lanes = {lane.name: lane for lane in lanes}
        self.latency = latency
        models = list(dict.fromkeys(model for model, _ in latency))
        self.lanes_of: Dict[str, Tuple[Lane, ...]] = {
            model: tuple(lane for lane in self.run_lanes if (model, lane.name) in latency) for model in models}
        self.works = Works()
        self.memory = Memory(self.devices, self.copy_lanes, self.lanes, self.works, models)
        self._latencies: Dict[str, List[ModelLatency]] = {
            model: [latency[model, lane.name] for lane in lanes] for model, lanes in self.lanes_of.items()}
        self.costs = {app.name: AppCosts(app, self._latencies) for app in apps}
        self.board = Board(self)
        streams = Streams(self.devices, {app.name: app.state_ttl_ns for app in apps})
        policy_of = {app.name: policy for policy in policies for app in policy.apps}
        self.request_manager = RequestManager(self.apps, policy_of, self.costs, self.memory, streams, self.board,
                         lambda model: batch_time_ns(self._latencies[model], 1), self._can_run)
        self.probes = Probes(apps, self.run_lanes, latency, self.costs, self.memory, self.request_manager)
        self.now_ns = -1
        self._bidders = {lane.name: tuple(policy for policy in self.policies if _may_use(policy, lane))
                         for lane in self.run_lanes}
        self._forget_at_ns = 0
        self._background_at_ns: int | None = None  # when background work that had to yield may be tried again
        self._handlers: Dict[type, Callable[[Any], None]] = {
            RequestArrived: self._arrived, RequestCancelled: self._cancelled, WorkFinished: self._finished,
            WorkRefused: self._refused, LaneChanged: self._lane_changed, DeviceChanged: self._device_changed,
            DrainRequested: self._drain_requested}

    # --- the interface ------------------------------------------------------------------------------------------------

    def step(self, now_ns: int, events: Sequence[Event] = ()) -> List[Action]:
        """Absorb ``events`` as of ``now_ns`` and return what to do, in order. Without events it is the timer."""
        if now_ns < self.now_ns:
            raise PolicyError(f"step at {now_ns} ns after one at {self.now_ns} ns: time must not go backwards")
        board, request_manager = self.board, self.request_manager
        self.now_ns = board.now_ns = request_manager.now_ns = now_ns
        actions = request_manager.actions = []
        handlers = self._handlers
        if now_ns >= self._forget_at_ns:  # before the events: an arrival is judged by what is still known
            self._forget_at_ns = now_ns + FORGET_EVERY_NS
            for latency in self.latency.values():
                latency.forget(now_ns)
        for event in events:
            handlers[type(event)](event)
        request_manager.run_timers()
        self._look_for_hangs()
        for policy in self.policies:
            policy.plan(board)
        self._auction()
        if self.memory.tracked:
            managed = self.memory.manage(now_ns)
            actions.extend(managed)
            if self.probes.retained:
                self.probes.release_evicted(managed)
        return actions

    def wake_at(self) -> int | None:
        """When :meth:`step` wants to be called although nothing happened, or None. Later than the last step."""
        now = self.now_ns
        request_manager = self.request_manager
        times = [request_manager.next_timer_ns(), request_manager.streams.due_ns, self._background_at_ns]
        for policy in self.policies:
            at = policy.next_wakeup_ns(self.board)
            if at is not None and at <= now:
                raise PolicyError(f"policy {policy.name!r} wants to look again at {at} ns, not after {now} ns")
            times.append(at)
        for lane in self.lanes.values():
            if lane.works:
                times.append(lane.hangs_at_ns())
                if lane.ahead_ns and request_manager.requests:
                    times.append(lane.asks_at_ns(now))
        if self.memory.tracked:
            times.append(self.memory.retry_at_ns(now))
        known = [at for at in times if at is not None]
        return max(min(known), now + 1) if known else None

    def story(self, request_id: int) -> List[str]:
        """What happened to a request, for people and error messages; empty when it is not remembered."""
        request = self.request_manager.find(request_id)
        return request.story() if request is not None else []

    def check(self) -> None:
        """Assert every invariant (``sched/core/invariants.py``). O(everything)."""
        check_invariants(self)

    @property
    def open_count(self) -> int:
        """Accepted requests that have not ended."""
        return len(self.request_manager.requests)

    @property
    def busy(self) -> bool:
        """Whether any lane has a work."""
        return bool(self.works.by_id)

    # --- events -------------------------------------------------------------------------------------------------------

    def _arrived(self, event: RequestArrived) -> None:
        self.request_manager.arrive(event.request)

    def _cancelled(self, event: RequestCancelled) -> None:
        request = self.request_manager.requests.get(event.request_id)
        if request is not None:
            self.request_manager.end(request, "cancel", event.reason)

    def _finished(self, event: WorkFinished) -> None:
        work = self._answered(event.work_id, event.finished_ns)
        if work is None:
            return
        lane = work.lane
        if work.kind != RUN:
            problem = self.memory.finished(work, event, self.now_ns)
            if problem:
                self._fail_jobs_of(work.model, problem)
            return
        lane.busy_ns += event.finished_ns - event.started_ns
        if work.lost:
            return
        jobs, results = work.jobs, event.results
        if work.probe is not None:
            self._probed(work, event)
            return
        if len(results) != len(jobs):
            raise PolicyError(f"work {work.id} on lane {lane.name!r} has {len(jobs)} jobs but {len(results)} results")
        work.failed = True
        took = (event.started_ns, event.finished_ns)
        for job, result in zip(jobs, results):
            if result.job != job.id:
                raise PolicyError(f"work {work.id}: result for {result.job} where {job.id} was expected")
            work.failed = work.failed and result.status == "failed"
            if result.steps > work.steps:
                work.steps = result.steps
            self.request_manager.returned(job, result, work, took)
        if not work.failed:
            latency = self.latency[work.model, lane.name]
            over_milli = over_usual_milli(jobs) if latency.learns_work else None
            latency.observe(self.now_ns, work.size, event.finished_ns - event.started_ns, over_milli, work.steps)
        work.policy.on_finished(work, event.started_ns, event.finished_ns, self.board)

    def _probed(self, work: Work, event: WorkFinished) -> None:
        """A probe is over. It teaches the latency model as what it was, a batch of the smallest size: where such are
        rare, it keeps their estimate fresh. (The policy hears of a probe only here: there is no job to unqueue.)"""
        assert work.probe is not None
        if [result.job for result in event.results] != [work.probe.id]:
            raise PolicyError(f"work {work.id} on lane {work.lane.name!r} is a probe of {work.probe.id} but has "
                              f"results of {[result.job for result in event.results]}")
        took_ns = event.finished_ns - event.started_ns
        work.failed = event.results[0].status != "done"
        if not work.failed:
            latency = self.latency[work.model, work.lane.name]
            over_milli = over_usual_milli((work.probe,)) if latency.learns_work else None
            latency.observe(self.now_ns, work.size, took_ns, over_milli)
        work.policy.on_finished(work, event.started_ns, event.finished_ns, self.board)

    def _refused(self, event: WorkRefused) -> None:
        work = self._answered(event.work_id, self.now_ns)
        if work is None:
            return
        if work.kind != RUN:
            self.memory.refused(work, self.now_ns)
            return
        if work.lost or work.probe is not None:
            return
        for job in work.jobs:
            job.request.note(self.now_ns, "lane", work.lane.name, "refused work", work.id, "-", event.reason)
        work.policy.on_refused(work, self.board)
        self.request_manager.give_back(work)

    def _lane_changed(self, event: LaneChanged) -> None:
        lane = self.lanes[event.lane]
        if event.speed != lane.speed:
            lane.speed = event.speed
            for model in lane.models:
                self.latency[model, lane.name].set_speed(event.speed)
        was_up, lane.up = lane.up, event.up
        if was_up and not event.up:
            for index, work in enumerate(lane.clear()):
                self._lose(work, running=index == 0,
                           reason=f"lane {lane.name} went down: {event.reason or 'no reason given'}")
            self._fail_stranded()
        for policy in self.policies:
            policy.on_device(self.board)

    def _device_changed(self, event: DeviceChanged) -> None:
        device = self.devices[event.device]
        if event.memory_free_bytes is not None:
            device.free_bytes = event.memory_free_bytes
        if event.heat is not None:
            device.heat = event.heat
        if event.power_w is not None:
            device.power_w = event.power_w
        for policy in self.policies:
            policy.on_device(self.board)

    def _drain_requested(self, event: DrainRequested) -> None:
        self.request_manager.draining = True
        self.probes.release_all()

    # --- lanes --------------------------------------------------------------------------------------------------------

    def _look_for_hangs(self) -> None:
        """A lane whose work is overdue by more than its bound: the requests of the works that it may have launched end,
        those behind them go elsewhere."""
        for lane in self.lanes.values():
            hangs = lane.hangs_at_ns() if lane.works else None
            if hangs is None or hangs > self.now_ns:
                continue
            lane.hung = True
            for index, work in enumerate(list(lane.works)):
                self._lose(work, running=index < lane.depth, forget=False,
                           reason=f"lane {lane.name} hangs: work {work.id} ({work.model}) did not return within "
                           f"[lane.{lane.name}] hang after its expected end")
            self._fail_stranded()
            for policy in self.policies:
                policy.on_device(self.board)

    def _lose(self, work: Work, running: bool, reason: str, forget: bool = True) -> None:
        """A lane will not do this work. Jobs that were running fail; the others are ready again. ``forget``: the lane
        went down and will not answer; else it may still answer, and holds the model until then."""
        if forget:
            self.works.forget(work)
            if work.kind == RUN:
                self._placement(work).in_flight -= 1
            else:
                self.memory.refused(work, self.now_ns)
        if work.kind != RUN or work.lost:
            return
        work.lost = True
        if running:
            self.request_manager.lost(work, reason)
        else:
            self.request_manager.give_back(work)

    def _answered(self, work_id: int, at_ns: int) -> Work | None:
        """The lane is done with a work. None for one that was lost with its lane."""
        work = self.works.answered(work_id, at_ns)
        if work is not None and work.kind == RUN:
            self._placement(work).in_flight -= 1
        return work

    def _placement(self, work: Work) -> Placement:
        return self.devices[work.lane.device].placements[work.model]

    def _auction(self) -> None:
        """Fill every lane that accepts a work with the best bid for it."""
        now = self.now_ns
        board = self.board
        self._background_at_ns = None
        for lane in self.run_lanes:
            while lane.accepts(now):
                bids = []
                for policy in self._bidders[lane.name]:
                    bid = policy.bid(lane, board)
                    if bid is not None:
                        bid.policy = policy
                        bids.append(bid)
                if not bids:
                    break
                at_ns = lane.available_ns(now)
                if len(bids) > 1:
                    bids = [bid for bid in bids if not bid.probe] or bids  # a probe competes with nobody
                bid = bids[0] if len(bids) == 1 else arbiter.choose(bids, at_ns)
                if arbiter.is_background(bid) and not self._background_may_run(bid, lane):
                    break
                self._launch(lane, bid, at_ns)

    def _background_may_run(self, bid: Bid, lane: Lane) -> bool:
        """Whether background work would be over before the next critical request could need the lane, and a probe
        before anybody could."""
        if bid.probe and not self.probes.may_start(bid, lane, self.now_ns):
            return False
        for app, (last_ns, slack_ns) in self.request_manager.critical.items():
            until_ns = last_ns + CRITICAL_MEMORY_NS
            if until_ns > self.now_ns and bid.expected_ns > slack_ns and _uses(self.apps[app], lane):
                if self._background_at_ns is None or until_ns < self._background_at_ns:
                    self._background_at_ns = until_ns
                return False
        return True

    def _launch(self, lane: Lane, bid: Bid, at_ns: int) -> None:
        now = self.now_ns
        placement = self.devices[lane.device].placements.get(bid.model)
        problem = self._illegal(lane, bid, placement)
        if problem or placement is None:
            story = "\n".join(bid.jobs[0].request.story()) if bid.jobs else ""
            name = bid.policy.name if bid.policy is not None else "?"
            raise PolicyError(f"policy {name!r} may not run {bid!r} on {lane.name}: {problem}\n{story}")
        for request, reason in bid.drops:
            if not request.ended:
                self.request_manager.end(request, "drop", reason)
        if bid.probe:
            self._launch_probe(lane, bid, placement)
            return
        jobs = tuple(bid.jobs)
        # What stands behind a work that hangs must be past its window when the hang is noticed: its jobs go elsewhere.
        patience_ns = (min(now, lane.head_due_ns) if lane.works else now) + lane.hang_ns
        work = self.works.put(now, RUN, lane, bid.model, bid.expected_ns, jobs, bid.size, bid.policy)
        others = len(jobs) - 1
        for job in jobs:
            move_job(job, "launch")
            job.launched_ns = now
            job.queued = False
            if job.demand_ns:
                self.memory.unwant(job)
            request = job.request
            request.running += 1
            request.note(now, "launched", job.node.name, job.part or "", "in work", work.id, "on", lane.name, "with",
                         others, "others")
        placement.in_flight += 1
        if self.memory.tracked:
            self.devices[lane.device].touch(placement)
        self.request_manager.actions.append(RunBatch(work.id, lane.name, bid.model, tuple([job.id for job in jobs]),
                                                     bid.size,
                                          bid.start_after_ns, min(bid.start_before_ns, patience_ns),
                                          bid.expected_ns, bid.steps_max, bid.probe))
        work.policy.on_started(work, self.board)

    def _launch_probe(self, lane: Lane, bid: Bid, placement: Placement) -> None:
        """Run kept inputs again. Its model does not count as used by that: demand decides what stays in memory."""
        job = bid.jobs[0]
        self.probes.take(job)
        work = self.works.put(self.now_ns, RUN, lane, bid.model, bid.expected_ns, (), bid.size, bid.policy, job)
        placement.in_flight += 1
        self.request_manager.actions.append(RunBatch(work.id, lane.name, bid.model, (job.id,), bid.size,
                                                     bid.start_after_ns,
                                          min(bid.start_before_ns, self.now_ns + lane.hang_ns), bid.expected_ns,
                                          None, True))

    def _illegal(self, lane: Lane, bid: Bid, placement: Placement | None) -> str:
        """Why a bid must not run, or ``""``."""
        if placement is None or placement.state != RESIDENT or bid.model not in lane.models:
            return f"model {bid.model!r} is not resident on this lane's device"
        if bid.probe:
            return self.probes.illegal(bid, lane)
        if not bid.jobs or len(bid.jobs) > bid.size or bid.size not in self.latency[bid.model, lane.name].sizes:
            return f"{len(bid.jobs)} jobs in size {bid.size}: sizes are {self.latency[bid.model, lane.name].sizes}"
        dropped = [request for request, _ in bid.drops]
        for job in bid.jobs:
            if job.state != READY or job.node.model != bid.model or (job.lane and job.lane != lane.name):
                return f"{job!r} is not ready for model {bid.model!r} here"
            if self.request_manager.policy_of[job.request.app.name] is not bid.policy or job.request in dropped:
                return f"{job!r} is not this policy's, or its request is dropped by the same bid"
        if len({job.seq for job in bid.jobs}) != len(bid.jobs):
            return "a job stands in the batch twice"
        return ""

    def _can_run(self, model: str, only: str = "") -> bool:
        """Whether some lane, or this one alone, could run a model now, or after a load."""
        for lane in (self.lanes[only],) if only else self.lanes_of[model]:
            loads = self.copy_lanes[lane.device]
            here = self.devices[lane.device].is_resident(model)
            if lane.up and not lane.hung and (here or (loads.up and not loads.hung)):
                return True
        return False

    def _fail_stranded(self) -> None:
        """Requests that are answered late anyway have no deadline to end them: they end when no lane is left for a job
        of theirs. (The others may hope for the lane until their deadline.)"""
        for policy in self.policies:
            for job in policy.queued():
                if job.request.on_late == "answer" and not job.request.ended:
                    self.request_manager.fail_if_stranded(job)
        self.probes.release_stranded(self._can_run)

    def _fail_jobs_of(self, model: str, reason: str) -> None:
        """A model could not be loaded again: those that no device can serve need not wait for it."""
        for policy in self.policies:
            for job in policy.queued():
                if job.node.model == model and not job.request.ended and self.memory.is_hopeless(job):
                    self.request_manager.end(job.request, "fail", reason)


def _may_use(policy: Policy, lane: Lane) -> bool:
    return any(_uses(app, lane) for app in policy.apps)


def _uses(app: App, lane: Lane) -> bool:
    return any(node.model in lane.models for node in app.nodes)
