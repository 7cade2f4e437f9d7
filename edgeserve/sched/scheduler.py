"""The scheduler: events in, actions out. No clock, no thread, no socket, no GPU; time is an argument.

:meth:`Scheduler.step` is the only way in and out. It absorbs the events, lets every policy plan once, then fills the
lanes by auction, then the memory by demand. Everything else it knows lives in the shared objects beside this file
(lifecycle, progress, lanes, residency, streams, admission, costs, latency), which know no policy.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from edgeserve.errors import PolicyError
from edgeserve.sched import arbiter, progress
from edgeserve.sched.actions import (
    START_ANY_TIME_NS,
    Action,
    DropState,
    EvictModel,
    FinishRequest,
    LoadModel,
    RunBatch,
    Spent,
)
from edgeserve.sched.admission import OVER_SHARE, QUEUE_FULL, Admission
from edgeserve.sched.apps import App, Node
from edgeserve.sched.board import Board
from edgeserve.sched.costs import AppCosts
from edgeserve.sched.events import (
    DeviceChanged,
    DrainRequested,
    Event,
    JobResult,
    LaneChanged,
    Part,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
    WorkRefused,
)
from edgeserve.sched.lanes import EVICT, LOAD, RUN, Lane, Work
from edgeserve.sched.latency import ModelLatency
from edgeserve.sched.lifecycle import HELD, OPEN, ORPHAN, READY, RUNNING, Job, RequestRecord, move_job, move_request
from edgeserve.sched.policy import Bid, Policy
from edgeserve.sched.residency import LOAD_FAILURES_MAX, RESIDENT, Device, Placement
from edgeserve.sched.streams import Streams
from edgeserve.units import NS_PER_MS

STORIES_KEPT = 512
"""Ended requests whose story can still be asked for."""

LOST_KEPT = 1024
"""Works taken from lanes that went down whose late answers are still recognised."""

CRITICAL_MEMORY_NS = 1000 * NS_PER_MS
"""How long after its last critical request an app is protected from background work that could block the next."""

EXPIRED, SUPERSEDED, DRAINING, PARTIAL = "expired", "superseded", "draining", "partial"


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
        models = dict.fromkeys(model for model, _ in latency)
        self.lanes_of: Dict[str, Tuple[Lane, ...]] = {
            model: tuple(lane for lane in self.run_lanes if (model, lane.name) in latency) for model in models}
        self.placements: Dict[str, Tuple[Placement, ...]] = {
            model: tuple(device.placements[model] for device in devices if model in device.placements)
            for model in models}
        self.costs = {app.name: AppCosts(app, self._batch_time_ns) for app in apps}
        self.admission = {app.name: Admission(app) for app in apps}
        self.streams = Streams()
        self.board = Board(self)
        self.requests: Dict[int, RequestRecord] = {}
        self.works: Dict[int, Work] = {}
        self.now_ns = -1
        self.draining = False
        self._policy_of = {app.name: policy for policy in policies for app in policy.apps}
        self._bidders = {lane.name: tuple(policy for policy in self.policies if self._may_use(policy, lane))
                         for lane in self.run_lanes}
        self._tracks_memory = any(device.budget_bytes or any(item.state != RESIDENT for item in
                                                             device.placements.values()) for device in devices)
        self._ended: OrderedDict[int, RequestRecord] = OrderedDict()
        self._lost: OrderedDict[int, None] = OrderedDict()
        self._timers: List[Tuple[int, int, RequestRecord]] = []  # deadlines, and times to settle
        self._timer_seq = 0
        self._job_seq = 0
        self._work_seq = 0
        self._actions: List[Action] = []
        self._critical: Dict[str, Tuple[int, int]] = {}  # app -> (last critical arrival, slack of its requests)
        self._background_at_ns: int | None = None  # when background work that had to yield may be tried again
        self._streams_due_ns: int | None = None  # when the state of the longest silent stream may be forgotten
        self._in_request: RequestRecord | None = None  # whose on_request runs: the only time for choose()
        self._handlers: Dict[type, Callable[[Any], None]] = {
            RequestArrived: self._arrived, RequestCancelled: self._cancelled, WorkFinished: self._finished,
            WorkRefused: self._refused, LaneChanged: self._lane_changed, DeviceChanged: self._device_changed,
            DrainRequested: self._drain_requested}

    # --- the interface ------------------------------------------------------------------------------------------------

    def step(self, now_ns: int, events: Sequence[Event] = ()) -> List[Action]:
        """Absorb ``events`` as of ``now_ns`` and return what to do, in order. Without events it is the timer."""
        if now_ns < self.now_ns:
            raise PolicyError(f"step at {now_ns} ns after one at {self.now_ns} ns: time must not go backwards")
        self.now_ns = self.board.now_ns = now_ns
        actions = self._actions = []
        handlers = self._handlers
        for event in events:
            handlers[type(event)](event)
        self._run_timers()
        self._look_for_hangs()
        board = self.board
        for policy in self.policies:
            policy.plan(board)
        self._auction()
        if self._tracks_memory:
            self._manage_memory()
        return actions

    def wake_at(self) -> int | None:
        """When :meth:`step` wants to be called although nothing happened, or None. Later than the last step."""
        now = self.now_ns
        times: List[int] = []
        timers = self._timers
        while timers and timers[0][2].ended:
            heappop(timers)
        if timers:
            times.append(timers[0][0])
        for policy in self.policies:
            at = policy.look_again_ns(self.board)
            if at is not None:
                if at <= now:
                    raise PolicyError(f"policy {policy.name!r} wants to look again at {at} ns, not after {now} ns")
                times.append(at)
        for lane in self.lanes.values():
            if lane.works:
                hangs = lane.hangs_at_ns()
                if hangs is not None:
                    times.append(hangs)
                asks = lane.asks_at_ns(now) if self.requests else None
                if asks is not None:
                    times.append(asks)
        if self._background_at_ns is not None:
            times.append(self._background_at_ns)
        if self._tracks_memory:
            times.extend(item.retry_at_ns for device in self.devices.values() for item in device.placements.values()
                         if item.failures and item.demand_ns and item.retry_at_ns > now)
        if self._streams_due_ns is not None:
            times.append(self._streams_due_ns)
        return max(min(times), now + 1) if times else None

    def story(self, request_id: int) -> List[str]:
        """What happened to a request, for people and error messages; empty when it is not remembered."""
        request = self.requests.get(request_id) or self._ended.get(request_id)
        return request.story() if request is not None else []

    def check(self) -> None:
        """Assert every invariant (``sched/books.py``). O(everything)."""
        from edgeserve.sched.books import check_books
        check_books(self)

    @property
    def open_count(self) -> int:
        """Accepted requests that have not ended."""
        return len(self.requests)

    @property
    def busy(self) -> bool:
        """Whether any lane has a work."""
        return bool(self.works)

    # --- moves, called through the board ------------------------------------------------------------------------------

    def drop(self, request: RequestRecord, reason: str) -> None:
        """Give a request up (a policy's move, or ours)."""
        self._end(request, "drop", reason)

    def choose(self, request: RequestRecord, nodes: Sequence[str]) -> None:
        """Restrict a request to some of its first nodes and branches; legal during its ``on_request`` only."""
        unknown = [name for name in nodes if name not in request.app.by_name]
        if self._in_request is not request or unknown or not nodes:
            raise PolicyError(f"choose({list(nodes)}) for request {request.id}: legal only during its on_request, with "
                              f"nodes of app {request.app.name!r}\n" + "\n".join(request.story()))
        request.chosen = list(nodes)

    def settle(self, request: RequestRecord) -> None:
        """Fire the request's joins that have something."""
        if request.state != OPEN:
            raise PolicyError(f"settle: request {request.id} is {request.state}\n" + "\n".join(request.story()))
        self._proceed(request, progress.settle(request), request.spent)

    # --- events -------------------------------------------------------------------------------------------------------

    def _arrived(self, event: RequestArrived) -> None:
        facts = event.request
        now = self.now_ns
        if facts.id in self.requests:
            raise PolicyError(f"request id {facts.id} arrived twice")
        app = self.apps[facts.app]
        request = RequestRecord(facts, app)
        request.log.append((now, ("arrived",)))
        costs = self.costs[facts.app]
        costs.refresh(now)
        request.worth_ns = costs.alone_ns
        admission = self.admission[facts.app]
        if self.draining:
            self._reject(request, DRAINING)
            return
        if facts.deadline_ns <= now and facts.on_late != "answer":
            self._reject(request, EXPIRED)
            return
        if admission.pending >= app.pending_max:
            displaced = admission.to_displace(facts.client)
            if displaced is None:
                clients = len(admission.clients)
                self._reject(request, OVER_SHARE if clients > 1 and admission.use(facts.client) > 0 else QUEUE_FULL)
                return
            self._end(displaced, "drop", OVER_SHARE)
        policy = self._policy_of[facts.app]
        self._in_request = request
        refused = policy.on_request(request, self.board)
        self._in_request = None
        if refused is not None:
            self._reject(request, refused)
            return
        self._accept(request, admission)

    def _accept(self, request: RequestRecord, admission: Admission) -> None:
        app = request.app
        self.requests[request.id] = request
        admission.enter(request)
        if request.klass == "critical":
            slack = request.deadline_ns - request.arrival_ns - self.costs[app.name].alone_ns
            self._critical[app.name] = (self.now_ns, slack)
        if request.on_late != "answer":
            self._set_timer(request.deadline_ns, request)
        if request.on_late == PARTIAL:
            joins = [node for node in app.nodes if len(node.preds) > 1 or node.gather]
            rest = max((self.costs[app.name].rest_ns[pred.name] for node in joins for pred in node.preds), default=0)
            if rest and request.deadline_ns - rest > self.now_ns:
                self._set_timer(request.deadline_ns - rest, request)
        if request.stream is not None and app.stream != "none":
            if app.stream == "newest_wins":
                for older in reversed(self.streams.superseded(request)):
                    self._end(older, "drop", SUPERSEDED)
            if not self.streams.arrive(request):
                move_request(request, "hold")
                request.note(self.now_ns, "held: its stream has a request in flight")
                return
            self._bound_streams(app)
        self._open(request)

    def _open(self, request: RequestRecord) -> None:
        move_request(request, "open")
        self._proceed(request, progress.start(request), request.spent)

    def _cancelled(self, event: RequestCancelled) -> None:
        request = self.requests.get(event.request_id)
        if request is not None:
            self._end(request, "cancel", event.reason)

    def _finished(self, event: WorkFinished) -> None:
        work = self._answered(event.work_id, event.finished_ns)
        if work is None:
            return
        lane = work.lane
        if work.kind != RUN:
            self._memory_changed(work, event)
            return
        lane.busy_ns += event.finished_ns - event.started_ns
        if work.lost:
            return
        jobs, results = work.jobs, event.results
        if len(results) != len(jobs):
            raise PolicyError(f"work {work.id} on lane {lane.name!r} has {len(jobs)} jobs but {len(results)} results")
        failed = False
        took = (event.started_ns, event.finished_ns)
        for job, result in zip(jobs, results):
            if result.job != job.id:
                raise PolicyError(f"work {work.id}: result for {result.job} where {job.id} was expected")
            failed = failed or result.status == "failed"
            self._job_returned(job, result, work, took)
        if not failed:
            self.latency[work.model, lane.name].observe(self.now_ns, work.size, event.finished_ns - event.started_ns)
        work.policy.on_finished(work, event.started_ns, event.finished_ns, self.board)

    def _refused(self, event: WorkRefused) -> None:
        work = self._answered(event.work_id, self.now_ns)
        if work is None:
            return
        if work.kind != RUN:
            self._memory_refused(work)
            return
        if work.lost:
            return
        for job in work.jobs:
            job.request.note(self.now_ns, "lane", work.lane.name, "refused work", work.id, "-", event.reason)
        work.policy.on_refused(work, self.board)
        self._give_back(work)

    def _lane_changed(self, event: LaneChanged) -> None:
        lane = self.lanes[event.lane]
        if event.speed != lane.speed:
            lane.speed = event.speed
            for model in lane.models:
                self.latency[model, lane.name].set_speed(event.speed)
        if lane.up and not event.up:
            for work in lane.clear():
                self._lose(work, running=work.starts_ns <= self.now_ns,
                           reason=f"lane {lane.name} went down: {event.reason or 'no reason given'}")
        lane.up = event.up
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
        self.draining = True

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _proceed(self, request: RequestRecord, places: Sequence[Tuple[Node, Part]], spent: Spent) -> None:
        """Make jobs at these places; a request with no job left is complete."""
        made = []
        for node, part in places:
            self._job_seq += 1
            job = Job(self._job_seq, request, node, part, self.now_ns, spent)
            if node.succs:
                job.deadline_ns -= self.costs[request.app.name].rest_ns[node.name]
            request.jobs[job.seq] = job
            made.append(job)
        if not request.jobs:
            self._end(request, "complete", "")
            return
        for job in made:
            if job.state == READY:  # an earlier one's policy may have dropped the request
                self._make_ready(job)

    def _make_ready(self, job: Job) -> None:
        if self._tracks_memory:
            self._add_demand(job)
        job.queued = True
        self._policy_of[job.request.app.name].on_ready(job, self.board)

    def _add_demand(self, job: Job) -> None:
        lane = self.lanes_of[job.node.model][0]
        latency = self.latency[job.node.model, lane.name]
        job.demand_ns = latency.typical_ns(latency.sizes[0])
        for placement in self.placements[job.node.model]:
            placement.demand_ns += job.demand_ns

    def _end_demand(self, job: Job) -> None:
        if not job.demand_ns:
            return
        for placement in self.placements[job.node.model]:
            placement.demand_ns -= job.demand_ns
        job.demand_ns = 0

    def _job_returned(self, job: Job, result: JobResult, work: Work, took: Tuple[int, int]) -> None:
        """A lane returned a job of a finished batch."""
        request = job.request
        request.running -= 1
        if job.state == ORPHAN:
            move_job(job, "finish")
            self._after_return(job)
            return
        started_ns, finished_ns = took
        load_ns = 0
        if self._tracks_memory:
            since_ns = self.devices[work.lane.device].placements[work.model].since_ns
            load_ns = max(0, min(since_ns, work.launched_ns) - job.ready_ns)
        spent = job.spent
        job.spent = Spent(spent[0] + work.launched_ns - job.ready_ns - load_ns, spent[1] + load_ns,
                          spent[2] + max(0, started_ns - work.launched_ns), spent[3] + finished_ns - started_ns)
        if result.state_bytes and request.stream is not None and request.app.stream != "none":
            self._keep_state(job, work.lane.device, result.state_bytes)
        status = result.status
        reason = progress.wrong_result(job, result) if status == "done" else result.reason
        if status == "done" and not reason:
            self._job_done(job, result)
        elif status == "unfinished":
            move_job(job, "unfinished")
            job.lane, job.steps, job.ready_ns = work.lane.name, job.steps + 1, self.now_ns
            if not self._expire_on_return(request):
                self._make_ready(job)
        else:
            self._job_failed(job, reason)
        self._after_return(job)

    def _job_done(self, job: Job, result: JobResult) -> None:
        request = job.request
        move_job(job, "finish")
        del request.jobs[job.seq]
        request.spent = job.spent
        if request.app.simple:
            self._end(request, "complete", "")
            return
        node = job.node
        request.note(self.now_ns, "node", node.name, list(job.part) or "", "done",
                     f"({result.parts} parts)" if node.fan_out else "")
        if node.fan_out and result.parts is not None:
            self.costs[request.app.name].saw_parts(node, result.parts)
        places = progress.after(request, job, result)
        self._shed_useless(request)
        if not places and not request.jobs:
            self._end(request, "complete", "")
        elif not self._expire_on_return(request):
            self._proceed(request, places, job.spent)

    def _job_failed(self, job: Job, reason: str) -> None:
        request = job.request
        move_job(job, "fail")
        del request.jobs[job.seq]
        request.note(self.now_ns, "node", job.node.name, list(job.part) or "", "failed:", reason)
        if progress.can_do_without(job):
            self._proceed(request, progress.skip(request, job), job.spent)
        else:
            self._end(request, "fail", reason)

    def _shed_useless(self, request: RequestRecord) -> None:
        """Jobs whose join fired without them have nothing to do any more."""
        if not request.joins:
            return
        for job in list(request.jobs.values()):
            if progress.is_useless(request, job):
                del request.jobs[job.seq]
                self._take_out(job)

    def _expire_on_return(self, request: RequestRecord) -> bool:
        """A request whose deadline passed while its work ran, and which needs more, ends now."""
        if request.deadline_ns > self.now_ns or request.on_late == "answer" or request.ended:
            return request.ended
        self._end(request, "drop", EXPIRED)
        return True

    def _give_back(self, work: Work) -> None:
        """The jobs of a work that never started are ready again, unless their request has ended."""
        for job in work.jobs:
            job.request.running -= 1
            move_job(job, "refuse")
            if job.state == READY and not self._expire_on_return(job.request):
                self._make_ready(job)
            self._after_return(job)

    def _lose(self, work: Work, running: bool, reason: str, forget: bool = True) -> None:
        """A lane will not do this work. Jobs that were running fail; the others are ready again. ``forget``: the lane
        went down and will not answer; else it may still answer, and holds the model until then."""
        if forget:
            del self.works[work.id]
            self._lost[work.id] = None
            if len(self._lost) > LOST_KEPT:
                self._lost.popitem(last=False)
            placement = self.devices[work.lane.device].placements[work.model]
            if work.kind == RUN:
                placement.in_flight -= 1
            else:
                self._memory_refused(work)
        if work.kind != RUN or work.lost:
            return
        work.lost = True
        if not running:
            self._give_back(work)
            return
        for job in work.jobs:
            job.request.running -= 1
            if job.state == ORPHAN:
                move_job(job, "fail")
            else:
                self._job_failed(job, reason)
            self._after_return(job)

    def _answered(self, work_id: int, at_ns: int) -> Work | None:
        """The lane is done with a work. None for one that was lost with its lane."""
        work = self.works.pop(work_id, None)
        if work is None:
            if work_id in self._lost:
                return None
            raise PolicyError(f"work {work_id} was answered but is on no lane")
        work.lane.take(work, at_ns)
        if work.kind == RUN:
            self.devices[work.lane.device].placements[work.model].in_flight -= 1
        return work

    def _after_return(self, job: Job) -> None:
        """Let the next request of the stream go when nothing of this one runs any more."""
        request = job.request
        if request.ended and request.running == 0 and request.stream is not None and request.app.stream != "none":
            self._release_stream(request)

    def _take_out(self, job: Job) -> None:
        """A job's request no longer needs it."""
        if job.state == READY:
            move_job(job, "leave")
            if job.queued:
                job.queued = False
                self._end_demand(job)
                self._policy_of[job.request.app.name].on_gone(job, self.board)
        elif job.state == RUNNING:
            move_job(job, "leave")

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _reject(self, request: RequestRecord, reason: str) -> None:
        move_request(request, "reject")
        request.log.append((self.now_ns, ("rejected:", reason)))
        self._remember(request)
        self._actions.append(FinishRequest(request.id, request.state, reason, request.spent))

    def _end(self, request: RequestRecord, what: str, reason: str) -> None:
        """Give a request its one outcome; its jobs leave the queues, or become orphans on their lanes."""
        move_request(request, what)
        request.log.append((self.now_ns, (request.state, reason) if reason else (request.state,)))
        del self.requests[request.id]
        self.admission[request.app.name].leave(request)
        if request.jobs:
            jobs = list(request.jobs.values())
            request.jobs.clear()
            for job in jobs:
                self._take_out(job)
        self._remember(request)
        self._actions.append(FinishRequest(request.id, request.state, reason, request.spent))
        if request.stream is not None and request.running == 0 and request.app.stream != "none":
            self._release_stream(request)

    def _remember(self, request: RequestRecord) -> None:
        ended = self._ended
        ended[request.id] = request
        if len(ended) > STORIES_KEPT:
            ended.popitem(last=False)

    # --- timers -------------------------------------------------------------------------------------------------------

    def _set_timer(self, at_ns: int, request: RequestRecord) -> None:
        self._timer_seq += 1
        timers = self._timers
        heappush(timers, (at_ns, self._timer_seq, request))
        if len(timers) > 4 * len(self.requests) + 1024:  # ended requests with far deadlines: let them go
            self._timers = [row for row in timers if not row[2].ended]
            heapify(self._timers)

    def _run_timers(self) -> None:
        now = self.now_ns
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, _, request = heappop(timers)
            timers = self._timers
            if request.ended:
                continue
            if request.deadline_ns > now:  # on_late = "partial": time to settle for what there is
                if request.state == OPEN:
                    self.settle(request)
            elif request.state == HELD or any(job.state == READY for job in request.jobs.values()):
                self._end(request, "drop", EXPIRED)
        if self._streams_due_ns is not None and self._streams_due_ns <= now:
            self._forget_silent_streams()

    def _look_for_hangs(self) -> None:
        """A lane whose work is overdue by more than its bound: its request ends, those behind it go elsewhere."""
        for lane in self.lanes.values():
            hangs = lane.hangs_at_ns() if lane.works else None
            if hangs is None or hangs > self.now_ns:
                continue
            lane.hung = True
            for index, work in enumerate(list(lane.works)):
                self._lose(work, running=index == 0, forget=False,
                           reason=f"lane {lane.name} hangs: work {work.id} ({work.model}) did not return within "
                           f"[lane.{lane.name}] hang after its expected end")
            for policy in self.policies:
                policy.on_device(self.board)

    # --- streams ------------------------------------------------------------------------------------------------------

    def _release_stream(self, request: RequestRecord) -> None:
        following = self.streams.leave(request, self.now_ns)
        if following is not None:
            self._open(following)
            return
        due = self.now_ns + request.app.state_ttl_ns
        if self._streams_due_ns is None or due < self._streams_due_ns:
            self._streams_due_ns = due

    def _keep_state(self, job: Job, device_name: str, bytes: int) -> None:
        """A stream's state grew or shrank; over the device's budget, silent streams are forgotten, oldest first."""
        device = self.devices[device_name]
        device.state_bytes += self.streams.keep_state(job.request, job.node.name, device_name, bytes)
        while device.budget_bytes and device.used_bytes + device.state_bytes > device.budget_bytes:
            oldest = next((key for key, stream in self.streams.quiet() if stream.state_bytes), None)
            if oldest is None:
                return
            self._forget_stream(oldest)

    def _bound_streams(self, app: App) -> None:
        if len(self.streams) > app.streams_max and self.streams.count(app.name) > app.streams_max:
            oldest = next((key for key, _ in self.streams.quiet(app.name)), None)
            if oldest is not None:
                self._forget_stream(oldest)

    def _forget_silent_streams(self) -> None:
        due = [(stream.silent_since_ns + self.apps[key[0]].state_ttl_ns, key) for key, stream in self.streams.quiet()]
        for at_ns, key in due:
            if at_ns <= self.now_ns:
                self._forget_stream(key)
        later = [at_ns for at_ns, _ in due if at_ns > self.now_ns]
        self._streams_due_ns = min(later) if later else None

    def _forget_stream(self, key: Tuple[str, str]) -> None:
        stream = self.streams.streams.pop(key)
        for node, bytes in stream.state_bytes.items():
            self.devices[stream.device[node]].state_bytes -= bytes
        if stream.state_bytes:
            self._actions.append(DropState(app=key[0], stream=key[1]))

    # --- lanes --------------------------------------------------------------------------------------------------------

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
                bid = bids[0] if len(bids) == 1 else arbiter.choose(bids, at_ns)
                if arbiter.is_background(bid) and not self._background_may_run(bid):
                    break
                self._launch(lane, bid, at_ns)

    def _background_may_run(self, bid: Bid) -> bool:
        """Whether background work would be over before the next critical request could need the lane."""
        for last_ns, slack_ns in self._critical.values():
            until_ns = last_ns + CRITICAL_MEMORY_NS
            if until_ns > self.now_ns and bid.expected_ns > slack_ns:
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
                self._end(request, "drop", reason)
        self._work_seq += 1
        work_id = self._work_seq
        jobs = tuple(bid.jobs)
        work = Work(work_id, RUN, lane, bid.model, jobs, bid.size, now, bid.expected_ns, at_ns, bid.policy)
        for job in jobs:
            move_job(job, "launch")
            job.launched_ns = now
            job.queued = False
            if job.demand_ns:
                self._end_demand(job)
            request = job.request
            request.running += 1
            request.note(now, "launched", job.node.name, job.part or "", "in work", work_id, "on", lane.name, "with",
                         len(jobs) - 1, "others")
        lane.put(work, now)
        self.works[work_id] = work
        placement.in_flight += 1
        if self._tracks_memory:
            self.devices[lane.device].touch(placement)
        self._actions.append(RunBatch(work_id, lane.name, bid.model, tuple([job.id for job in jobs]), bid.size,
                                      bid.start_after_ns, min(bid.start_before_ns, at_ns + lane.hang_ns),
                                      bid.expected_ns, bid.steps_max, bid.probe))
        work.policy.on_started(work, self.board)

    def _illegal(self, lane: Lane, bid: Bid, placement: Placement | None) -> str:
        """Why a bid must not run, or ``""``."""
        if placement is None or placement.state != RESIDENT or bid.model not in lane.models:
            return f"model {bid.model!r} is not resident on this lane's device"
        if not bid.jobs or len(bid.jobs) > bid.size or bid.size not in self.latency[bid.model, lane.name].sizes:
            return f"{len(bid.jobs)} jobs in size {bid.size}: sizes are {self.latency[bid.model, lane.name].sizes}"
        dropped = [request for request, _ in bid.drops]
        for job in bid.jobs:
            if job.state != READY or job.node.model != bid.model or (job.lane and job.lane != lane.name):
                return f"{job!r} is not ready for model {bid.model!r} here"
            if self._policy_of[job.request.app.name] is not bid.policy or job.request in dropped:
                return f"{job!r} is not this policy's, or its request is dropped by the same bid"
        if len({job.seq for job in bid.jobs}) != len(bid.jobs):
            return "a job stands in the batch twice"
        return ""

    def _batch_time_ns(self, model: str, count: int) -> int:
        """Lane time to run ``count`` jobs of a model on the lane that is fastest for it."""
        best = START_ANY_TIME_NS
        for lane in self.lanes_of[model]:
            latency = self.latency[model, lane.name]
            full, rest = divmod(count, latency.size_max)
            time_ns = full * latency.typical_ns(latency.size_max)
            if rest:
                time_ns += latency.typical_ns(latency.size_for(rest))
            best = min(best, time_ns)
        return best

    def _may_use(self, policy: Policy, lane: Lane) -> bool:
        return any(node.model in lane.models for app in policy.apps for node in app.nodes)

    # --- memory -------------------------------------------------------------------------------------------------------

    def _manage_memory(self) -> None:
        """Evict under pressure; load what is most wanted while the copy lane accepts."""
        now = self.now_ns
        for device in self.devices.values():
            copy_lane = self.copy_lanes[device.name]
            if copy_lane.accepts(now):
                surplus = device.under_pressure()
                if surplus is not None:
                    self._evict(device, surplus)
            while copy_lane.accepts(now):
                found = device.next_load(now, self.devices.values())
                if found is None:
                    break
                placement, victims = found
                for victim in victims:
                    self._evict(device, victim)
                work = self._memory_work(LOAD, device, placement.model, placement.load_ns)
                device.load_started(placement, work.starts_ns + placement.load_ns)
                self._actions.append(LoadModel(work.id, copy_lane.name, placement.model, START_ANY_TIME_NS,
                                               placement.load_ns))

    def _evict(self, device: Device, placement: Placement) -> None:
        work = self._memory_work(EVICT, device, placement.model, 0)
        device.evict_started(placement)
        self._actions.append(EvictModel(work.id, self.copy_lanes[device.name].name, placement.model))

    def _memory_work(self, kind: str, device: Device, model: str, expected_ns: int) -> Work:
        lane = self.copy_lanes[device.name]
        self._work_seq += 1
        work = Work(self._work_seq, kind, lane, model, (), 0, self.now_ns, expected_ns, lane.available_ns(self.now_ns),
                    None)
        lane.put(work, self.now_ns)
        self.works[work.id] = work
        return work

    def _memory_changed(self, work: Work, event: WorkFinished) -> None:
        device = self.devices[work.lane.device]
        placement = device.placements[work.model]
        if work.kind == EVICT:
            device.evict_ended(placement, refused=bool(event.failed))
            return
        device.load_ended(placement, self.now_ns, event.finished_ns - event.started_ns, bool(event.failed))
        if event.failed and placement.failures >= LOAD_FAILURES_MAX:
            self._fail_jobs_of(work.model, f"model {work.model!r} could not be loaded: {event.failed}")

    def _memory_refused(self, work: Work) -> None:
        device = self.devices[work.lane.device]
        if work.kind == EVICT:
            device.evict_ended(device.placements[work.model], refused=True)
        else:
            device.load_ended(device.placements[work.model], self.now_ns, 0, failed=True)

    def _fail_jobs_of(self, model: str, reason: str) -> None:
        """No device could load a model: waiting for it is pointless."""
        if any(placement.state == RESIDENT or placement.failures < LOAD_FAILURES_MAX
               for placement in self.placements[model]):
            return
        for policy in self.policies:
            for job in policy.queued():
                if job.node.model == model and not job.request.ended:
                    self._end(job.request, "fail", reason)
