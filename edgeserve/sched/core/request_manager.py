"""The lives of requests and jobs as they happen: arrival, progress, return from a lane, the one end, deadlines.

The tables are ``sched/requests/states.py``, the graphs ``sched/requests/joins.py``; here they meet the policies. Every
end of a request passes through :meth:`RequestManager.end`. Knows no clock (``now_ns`` is set by the scheduler) and no
lane. """

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

from edgeserve.errors import PolicyError
from edgeserve.sched.latency.path_cost import AppCosts
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Policy
from edgeserve.sched.protocol.actions import Action, DropState, FinishRequest, LatencyBreakdown
from edgeserve.sched.protocol.events import JobResult, Part, Request
from edgeserve.sched.requests import joins
from edgeserve.sched.requests.admission import OVER_SHARE, QUEUE_FULL, Admission
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.states import (
    HELD,
    OPEN,
    ORPHAN,
    READY,
    RUNNING,
    Job,
    RequestRecord,
    move_job,
    move_request,
    steps_left,
)
from edgeserve.sched.resources.lanes import Work
from edgeserve.sched.resources.model_loader import Memory
from edgeserve.sched.resources.streams import Streams

STORIES_KEPT = 512
"""Ended requests whose story can still be asked for."""

EXPIRED, SUPERSEDED, DRAINING, PARTIAL = "expired", "superseded", "draining", "partial"


class RequestManager:
    """Every accepted request that has not ended, and the stories of the last that have.

    ``actions`` collects what the world must do; the scheduler empties it. ``alone_ns(model)`` is the time of one job,
    ``can_run(model, lane)`` whether that lane (``""``: any) could run it now or after a load.
    """

    def __init__(self, apps: Mapping[str, App], policy_of: Mapping[str, Policy], costs: Mapping[str, AppCosts],
                 memory: Memory, streams: Streams, board: Board, alone_ns: Callable[[str], int],
                 can_run: Callable[[str, str], bool]) -> None:
        self.apps = apps
        self.costs = costs
        self.memory = memory
        self.streams = streams
        self.board = board
        self.policy_of = policy_of
        self.now_ns = -1
        self.draining = False
        self.actions: List[Action] = []
        self.requests: Dict[int, RequestRecord] = {}
        self.admission = {name: Admission(app) for name, app in apps.items()}
        self.critical: Dict[str, Tuple[int, int]] = {}  # app -> (last critical arrival, slack of that request)
        self._alone_ns = alone_ns
        self._can_run = can_run
        self._ended: OrderedDict[int, RequestRecord] = OrderedDict()
        self._timers: List[Tuple[int, int, RequestRecord]] = []  # deadlines, and times to settle
        self._timer_seq = 0
        self._job_seq = 0
        self._in_request: RequestRecord | None = None  # whose on_request runs: the only time for choose()

    def find(self, request_id: int) -> RequestRecord | None:
        """An open request, or one of the last that ended."""
        return self.requests.get(request_id) or self._ended.get(request_id)

    # --- arrival ------------------------------------------------------------------------------------------------------

    def arrive(self, arrived: Request) -> None:
        """Accept or reject a request, and begin it unless its stream is busy."""
        now = self.now_ns
        if arrived.id in self.requests:
            raise PolicyError(f"request id {arrived.id} arrived twice")
        app = self.apps[arrived.app]
        request = RequestRecord(arrived, app)
        request.log.append((now, ("arrived",)))
        costs = self.costs[arrived.app]
        costs.refresh(now)
        request.cost_share_ns = costs.cost_share_ns
        if arrived.hints and app.simple:
            request.cost_share_ns *= max(1, int(arrived.hints.get("steps", 1)))
        admission = self.admission[arrived.app]
        if self.draining:
            self._reject(request, DRAINING)
            return
        if arrived.deadline_ns <= now and arrived.on_late != "answer":
            self._reject(request, EXPIRED)
            return
        displaced = None
        if admission.pending >= app.pending_max:
            displaced = admission.to_displace(arrived.client)
            if displaced is None:
                clients = len(admission.clients)
                self._reject(request, OVER_SHARE if clients > 1 and admission.use(arrived.client) > 0 else QUEUE_FULL)
                return
        policy = self.policy_of[arrived.app]
        self._in_request = request
        refused = policy.on_request(request, self.board)
        self._in_request = None
        if refused is not None:
            self._reject(request, refused)
            return
        if displaced is not None and not displaced.ended:
            self.end(displaced, "drop", OVER_SHARE)
        self._accept(request, admission)

    def _accept(self, request: RequestRecord, admission: Admission) -> None:
        app = request.app
        self.requests[request.id] = request
        admission.enter(request)
        if request.klass == "critical":
            slack = request.deadline_ns - request.arrival_ns - self.costs[app.name].alone_ns
            self.critical[app.name] = (self.now_ns, slack)
        if request.on_late != "answer":
            self._set_timer(request.deadline_ns, request)
        if request.stream is not None and app.stream != "none":
            if app.stream == "newest_wins":
                for older in reversed(self.streams.superseded(request)):
                    self.end(older, "drop", SUPERSEDED)
            if not self.streams.arrive(request):
                move_request(request, "hold")
                request.note(self.now_ns, "held: its stream has a request in flight")
                return
            self.actions.extend(self.streams.bound(app.name, app.streams_max))
        self._open(request)

    def _open(self, request: RequestRecord) -> None:
        move_request(request, "open")
        if request.on_late == PARTIAL:
            self._plan_to_settle(request)
        self._proceed(request, joins.start(request), request.breakdown)

    def _plan_to_settle(self, request: RequestRecord) -> None:
        """When a request that is answered in part must stop waiting at its joins: what follows them needs the rest of
        the time. One that opens later than that waits for half of what is left."""
        rest_ns = self.costs[request.app.name].rest_ns
        behind_ns = max((rest_ns[pred.name] for node in request.app.nodes if len(node.preds) > 1 or node.gather
                         for pred in node.preds), default=0)
        if behind_ns:
            half_ns = (self.now_ns + request.deadline_ns) // 2
            self._set_timer(max(request.deadline_ns - behind_ns, half_ns), request)

    # --- moves of policies --------------------------------------------------------------------------------------------

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
        ready = joins.settle(request)
        self._shed_useless(request)
        self._proceed(request, ready, request.breakdown)

    def abandon_branch(self, job: Job, reason: str) -> None:
        """A ready job cannot be in time: a request that is answered in part goes on without it where only joins wait
        for it, any other is dropped."""
        request = job.request
        if request.on_late == PARTIAL and joins.feeds_joins(job):
            del request.jobs[job.seq]
            self._take_out(job)
            request.note(self.now_ns, "goes on without", job.node.name, list(job.part) or "", "-", reason)
            ready = joins.skip(request, job)
            if ready or request.jobs or request.done_exits:
                self._proceed(request, ready, request.breakdown)
                return
        self.end(request, "drop", reason)

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _proceed(self, request: RequestRecord, ready: Sequence[Tuple[Node, Part]], breakdown: LatencyBreakdown) -> None:
        """Make jobs at these ready; a request with no job left is complete."""
        made = []
        for node, part in ready:
            self._job_seq += 1
            job = Job(self._job_seq, request, node, part, self.now_ns, breakdown)
            request.jobs[job.seq] = job
            made.append(job)
        if not request.jobs:
            self._complete(request)
            return
        for job in made:
            if job.state == READY:  # an earlier one's policy may have dropped the request
                self._make_ready(job)

    def _make_ready(self, job: Job) -> None:
        request, node = job.request, job.node
        if request.on_late == "answer" and self.fail_if_stranded(job):  # nothing else bounds its wait
            return
        if self.memory.tracked:
            self.memory.want(job, self._alone_ns(node.model))
        if node.succs:
            job.deadline_ns = request.deadline_ns - self.costs[request.app.name].rest_ns[node.name]
        if job.hints:  # an iterative job's next step must leave time for those behind it
            behind_ns = self.costs[request.app.name].rest_ns[node.name] if node.succs else 0
            job.deadline_ns = request.deadline_ns - behind_ns - (steps_left(job) - 1) * self._alone_ns(node.model)
        job.queued = True
        self.policy_of[job.request.app.name].on_ready(job, self.board)

    def fail_if_stranded(self, job: Job) -> bool:
        """End a job's request when no lane is left that could run it: a bound job has but one."""
        model = job.node.model
        if self._can_run(model, job.lane):
            return False
        self.end(job.request, "fail", f"lane {job.lane} holds its state and cannot run model {model!r} now"
                 if job.lane else f"no lane can run model {model!r} now")
        return True

    def returned(self, job: Job, result: JobResult, work: Work, took: Tuple[int, int]) -> None:
        """A lane returned a job of a finished batch."""
        request = job.request
        request.running -= 1
        if job.state == ORPHAN:
            move_job(job, "finish")
            self._drop_state(job)
            self._after_return(job)
            return
        started_ns, finished_ns = took
        load_ns = 0
        if self.memory.tracked:
            since_ns = self.memory.devices[work.lane.device].placements[work.model].since_ns
            load_ns = max(0, min(since_ns, work.launched_ns) - job.ready_ns)
        breakdown = job.breakdown
        job.breakdown = LatencyBreakdown(breakdown[0] + work.launched_ns - job.ready_ns - load_ns,
                                         breakdown[1] + load_ns,
                          breakdown[2] + max(0, started_ns - work.launched_ns), breakdown[3] + finished_ns - started_ns)
        if result.state_bytes and request.stream is not None and request.app.stream != "none":
            self.actions.extend(self.streams.keep_state(request, job.node.name, work.lane.device, result.state_bytes))
        status = result.status
        reason = joins.wrong_result(job, result) if status == "done" else result.reason
        if status == "done" and not reason:
            self._job_done(job, result)
        elif status == "unfinished":
            move_job(job, "unfinished")
            job.lane, job.steps, job.ready_ns = work.lane.name, job.steps + result.steps, self.now_ns
            if result.state_bytes and (request.stream is None or request.app.stream == "none"):
                self._keep_state(job, work.lane.device, result.state_bytes)
            if not self._expire_on_return(request):
                self._make_ready(job)
        else:
            self._job_failed(job, reason)
        self._after_return(job)

    def _job_done(self, job: Job, result: JobResult) -> None:
        request = job.request
        move_job(job, "finish")
        del request.jobs[job.seq]
        if job.state_device:
            self._drop_state(job)
        request.breakdown = job.breakdown
        if request.app.simple:
            self.end(request, "complete", "")
            return
        node = job.node
        request.note(self.now_ns, "node", node.name, list(job.part) or "", "done",
                     f"({result.parts} parts)" if node.fan_out else "")
        if result.hints:
            request.learn(job.part, result.hints)
            request.note(self.now_ns, "node", node.name, list(job.part) or "", "said", dict(result.hints))
        if node.fan_out and result.parts is not None:
            self.costs[request.app.name].observe_parts(node, result.parts)
        ready = joins.after(request, job, result)
        self._shed_useless(request)
        if not node.succs:
            request.done_exits += 1
        if not ready and not request.jobs:
            self._complete(request)
        elif not self._expire_on_return(request):
            self._proceed(request, ready, job.breakdown)

    def _job_failed(self, job: Job, reason: str) -> None:
        request = job.request
        move_job(job, "fail")
        del request.jobs[job.seq]
        self._drop_state(job)
        request.note(self.now_ns, "node", job.node.name, list(job.part) or "", "failed:", reason)
        if joins.can_do_without(job):
            request.failure = reason
            ready = joins.skip(request, job)
            if self._expire_on_return(request):
                return
            if not joins.is_starved(request, job):
                self._proceed(request, ready, job.breakdown)
                return
        self.end(request, "fail", reason)

    def _complete(self, request: RequestRecord) -> None:
        """No job is left. Where every branch that a join could do without has failed, no last node ran: a failure."""
        if request.failure and not request.done_exits:
            self.end(request, "fail", request.failure)
        else:
            self.end(request, "complete", "")

    def _shed_useless(self, request: RequestRecord) -> None:
        """Jobs whose join fired without them have nothing to do any more."""
        if not request.joins:
            return
        for job in list(request.jobs.values()):
            if joins.is_useless(request, job):
                del request.jobs[job.seq]
                self._take_out(job)

    def _expire_on_return(self, request: RequestRecord) -> bool:
        """A request whose deadline passed while its work ran, and which needs more, ends now."""
        if request.deadline_ns > self.now_ns or request.on_late == "answer" or request.ended:
            return request.ended
        self.end(request, "drop", EXPIRED)
        return True

    def lost(self, work: Work, reason: str) -> None:
        """The lane will not finish this work, which was running: its jobs fail."""
        for job in work.jobs:
            job.request.running -= 1
            if job.state == ORPHAN:
                move_job(job, "fail")
                self._drop_state(job)
            else:
                self._job_failed(job, reason)
            self._after_return(job)

    def give_back(self, work: Work) -> None:
        """The jobs of a work that never started are ready again, unless their request has ended."""
        for job in work.jobs:
            job.request.running -= 1
            move_job(job, "refuse")
            if job.state != READY:
                self._drop_state(job)
            elif not self._expire_on_return(job.request):
                self._make_ready(job)
            self._after_return(job)

    def _keep_state(self, job: Job, device_name: str, bytes: int) -> None:
        """An unfinished job leaves state on its lane's device; it counts there until the job is over."""
        device = self.memory.devices[device_name]
        device.state_bytes += bytes - job.state_bytes
        job.state_bytes, job.state_device = bytes, device_name

    def _drop_state(self, job: Job) -> None:
        """The job is over: its state goes."""
        if job.state_device:
            self.memory.devices[job.state_device].state_bytes -= job.state_bytes
            job.state_bytes, job.state_device = 0, ""
            self.actions.append(DropState(job=job.id))

    def _after_return(self, job: Job) -> None:
        """Let the next request of the stream go when nothing of this one runs any more."""
        request = job.request
        if request.ended and request.running == 0 and request.stream is not None and request.app.stream != "none":
            self._release_stream(request)

    def _take_out(self, job: Job) -> None:
        """A job's request no longer needs it."""
        if job.state == READY:
            move_job(job, "leave")
            self._drop_state(job)
            if job.queued:
                job.queued = False
                self.memory.unwant(job)
                self.policy_of[job.request.app.name].on_gone(job, self.board)
        elif job.state == RUNNING:
            move_job(job, "leave")

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _reject(self, request: RequestRecord, reason: str) -> None:
        move_request(request, "reject")
        request.log.append((self.now_ns, ("rejected:", reason)))
        self._remember(request)
        self.actions.append(FinishRequest(request.id, request.state, reason, request.breakdown))

    def end(self, request: RequestRecord, what: str, reason: str) -> None:
        """Give a request its one outcome; its jobs leave the queues, or become orphans on their lanes."""
        move_request(request, what)
        request.log.append((self.now_ns, (request.state, reason) if reason else (request.state,)))
        del self.requests[request.id]
        self.admission[request.app.name].leave(request)
        if what != "complete" and request.stream is not None:
            self.streams.abandon(request)
        if request.jobs:
            jobs = list(request.jobs.values())
            request.jobs.clear()
            for job in jobs:
                self._take_out(job)
        self._remember(request)
        self.actions.append(FinishRequest(request.id, request.state, reason, request.breakdown))
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

    def next_timer_ns(self) -> int | None:
        """When :meth:`run_timers` has something to do, or None."""
        timers = self._timers
        while timers and timers[0][2].ended:
            heappop(timers)
        return timers[0][0] if timers else None

    def run_timers(self) -> None:
        """End what waited past its deadline, settle what is due, forget silent streams."""
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
                self.end(request, "drop", EXPIRED)
        self.actions.extend(self.streams.forget_silent(now))

    def _release_stream(self, request: RequestRecord) -> None:
        following = self.streams.leave(request, self.now_ns)
        if following is not None:
            self._open(following)
