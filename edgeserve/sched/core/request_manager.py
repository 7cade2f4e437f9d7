"""The lives of accepted requests and their jobs as they happen: beginning, progress, return from a lane, deadlines.

The records are ``sched/requests/states.py``, the graphs ``sched/requests/joins.py``; here they meet the policies. Who
is accepted is ``entry.py``, how a request ends ``ends.py``. Knows no clock (the time is ``board.now_ns``) and no lane.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import List, Sequence, Tuple

from edgeserve.priority_class import RESERVED
from edgeserve.sched.core.ends import EXPIRED, Ends
from edgeserve.sched.core.experiments import Trials
from edgeserve.sched.core.slack import Slack
from edgeserve.sched.core.state import State
from edgeserve.sched.latency.path_cost import batch_time_ns
from edgeserve.sched.policy_api.policy import QUALITY_TOO_LOW
from edgeserve.sched.protocol.actions import KeepWritten, LatencyBreakdown, LeaveOut, Shortfall
from edgeserve.sched.protocol.events import JobResult, Part, Request
from edgeserve.sched.requests import joins
from edgeserve.sched.requests.graph import Node
from edgeserve.sched.requests.states import (
    HELD,
    LEFT_OUT,
    OPEN,
    READY,
    Job,
    RequestRecord,
    has_written,
    keeps_written,
    move_job,
    move_request,
    steps_left,
)
from edgeserve.sched.resources.sequences import SEQUENCE_TOO_LONG

SUPERSEDED, PARTIAL = "superseded", "partial"


class RequestManager:
    """The open requests.

    ``timers`` is a heap of times at which a request's deadline passes, or its joins settle for what there is. ``ends``
    has their ends.
    """

    def __init__(self, state: State, slack: Slack) -> None:
        self.timers: List[Tuple[int, int, RequestRecord]] = []
        trials = state.trials = Trials(state, slack)
        self.ends = Ends(state, trials, self._open)
        self._state = state
        self._ready = state.ready
        self._board = state.board
        self._memory = state.memory
        self._streams = state.streams
        self._requests = state.requests
        self._timer_seq = 0
        self._job_seq = 0

    # --- beginnings ---------------------------------------------------------------------------------------------------

    def accept(self, request: RequestRecord, arrived: Request) -> None:
        """Begin a request that has come in, unless its stream is busy."""
        app = request.app
        self._requests[request.id] = request
        self._state.policy_of[app.name].is_idle = False
        if request.priority_class in RESERVED:
            self._state.critical.came(request, self._board.now_ns, self._state.costs[app.name].alone_ns)
        if request.on_late != "answer":
            self._timer_seq += 1  # as _remind does, without its call: nearly every request has a deadline
            heappush(self.timers, (request.deadline_ns, self._timer_seq, request))
            if len(self.timers) > 4 * len(self._requests) + 1024:  # ended requests with far deadlines: let them go
                self.timers = [row for row in self.timers if not row[2].ended]
                heapify(self.timers)
        if request.stream is not None:
            if app.stream == "newest_wins":
                key = (app.name, request.stream)
                request.successor_ns = self._state.frame_periods.came(key, self._board.now_ns)
                for older in reversed(self._streams.superseded(request)):
                    self.ends.end(older, "drop", SUPERSEDED)
            if not self._streams.arrive(request):
                move_request(request, "hold")
                request.note(self._board.now_ns, "held: its stream has a request in flight")
                return
            self._state.actions.extend(self._streams.bound(app.name, app.streams_max))
        if app.simple and request.on_late != PARTIAL:  # as _open does, without its call: most requests are such
            move_request(request, "open")
            self.begin(request, app.nodes[0], (), request.breakdown)
        else:
            self._open(request)

    def _open(self, request: RequestRecord) -> None:
        move_request(request, "open")
        if request.on_late == PARTIAL:
            self._plan_to_settle(request)
        if request.app.simple:
            self.begin(request, request.app.nodes[0], (), request.breakdown)
        else:
            self.proceed(request, [(node, ()) for node in request.app.entries], request.breakdown)

    def _remind(self, request: RequestRecord, at_ns: int) -> None:
        self._timer_seq += 1
        heappush(self.timers, (at_ns, self._timer_seq, request))

    def _plan_to_settle(self, request: RequestRecord) -> None:
        """Set the time at which a request that is answered in part must stop waiting at its joins, and its sequences
        must stop writing: the nodes behind them need the rest of the time. One that opens later than that has half of
        what is left."""
        rest_ns = self._state.costs[request.app.name].rest_ns
        sequences = self._state.sequences.models
        behind_ns = [rest_ns[pred.name] for node in request.app.nodes if node.is_join for pred in node.preds]
        behind_ns += [rest_ns[node.name] for node in request.app.nodes if node.succs and node.model in sequences]
        if behind_ns:
            half_ns = (self._board.now_ns + request.deadline_ns) // 2
            self._remind(request, max(request.deadline_ns - max(behind_ns) - self._board.wakes_late_ns, half_ns))

    # --- branches -----------------------------------------------------------------------------------------------------

    def settle(self, request: RequestRecord) -> None:
        """Fire the request's joins that have something."""
        ready = joins.settle(request)
        if ready and request.jobs:
            late = dict.fromkeys([job.node.name for job in request.jobs.values()])
            request.leave_out(f"did not wait for {', '.join(late)}")
        if request.joins:
            self.shed_useless(request)
            self.owe_answer(request, bool(ready))
        if not ready or not self.expire_on_return(request):
            self.proceed(request, ready, request.breakdown)

    def leave_out(self, request: RequestRecord, jobs: Sequence[Job], reason: str) -> None:
        """A request goes on without these jobs, whose results the world is not to use."""
        ready: List[Tuple[Node, Part]] = []
        for job in jobs:
            self._state.actions.append(LeaveOut(job.id))
            self.remove(request, job, reason)
            ready += joins.skip(request, job)
        if (ready or not request.jobs) and not self.expire_on_return(request):
            self.proceed(request, ready, request.breakdown)

    def remove(self, request: RequestRecord, job: Job, reason: str) -> None:
        """Take a branch's job from its request."""
        place = f"{job.node.name}{list(job.part) or ''}"
        request.note(self._board.now_ns, "goes on without", place, "-", reason)
        request.leave_out(f"without {place}: {reason}")
        request.fate(job.node, job.part, LEFT_OUT)
        del request.jobs[job.seq]
        self.ends.take_out(job)

    def goes_on_without(self, job: Job, reason: str) -> bool:
        """Take a job from its request; ``False`` where too little is left of that."""
        request = job.request
        self.remove(request, job, reason)
        ready = joins.skip(request, job)
        if request.on_late != PARTIAL:
            if joins.is_starved(request, job):
                return False
            self._state.actions.append(LeaveOut(job.id))
        goes_on = bool(ready or request.jobs or request.done_exits)
        if goes_on:
            self.proceed(request, ready, request.breakdown)
        return goes_on

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def proceed(self, request: RequestRecord, ready: Sequence[Tuple[Node, Part]], breakdown: LatencyBreakdown) -> None:
        """Make jobs at these ready; a request with no job left is complete."""
        if len(ready) == 1:
            self.begin(request, ready[0][0], ready[0][1], breakdown)
            return
        made = []
        for node, part in ready:
            self._job_seq += 1
            job = Job(self._job_seq, request, node, part, self._board.now_ns, breakdown)
            request.jobs[job.seq] = job
            made.append(job)
        if not request.jobs:
            self.complete(request)
            return
        for job in made:
            if job.state == READY:  # else an earlier one has failed the request
                self.make_ready(job)

    def begin(self, request: RequestRecord, node: Node, part: Part, breakdown: LatencyBreakdown) -> None:
        """Make one job and make it ready."""
        self._job_seq += 1
        job = Job(self._job_seq, request, node, part, self._board.now_ns, breakdown)
        request.jobs[job.seq] = job
        if (
            job.hints
            or node.succs
            or node.model in self._state.sequences.models
            or self._memory.tracked
            or request.on_late == "answer"
            or self._state.has_lost
        ):
            self.make_ready(job)
        else:
            self._ready.add(job)

    def make_ready(self, job: Job) -> None:
        """Queue a job with its policy, or fail it where it can never run."""
        request, node = job.request, job.node
        state = self._state
        if (request.on_late == "answer" or state.draining or state.has_lost) and self.fail_if_stranded(job):
            return
        if node.model in self._state.sequences.models:
            problem = self._state.sequences.why_never(job)
            if problem:
                self.fail(job, f"{SEQUENCE_TOO_LONG}: {problem}")
                return
        alone_ns = batch_time_ns(self._state.latencies_of[job.model], 1) if job.hints or self._memory.tracked else 0
        if self._memory.tracked:
            self._memory.want(job, alone_ns, 1.0)
        behind_ns = self._state.costs[request.app.name].rest_ns[node.name] if node.succs else 0
        job.deadline_ns = request.deadline_ns - behind_ns
        ends_anyhow = request.on_late == PARTIAL and keeps_written(job)
        # An iterative job's next step must leave time for the ones behind it, unless its partial answer counts.
        if (job.hints or job.steps_total) and not ends_anyhow:
            job.deadline_ns -= (steps_left(job) - 1) * alone_ns
        self._ready.add(job)

    def fail_if_stranded(self, job: Job) -> bool:
        """End a job's request when no lane is left that could run it: a bound job has but one. Where a lane may come
        back, a request waits for it until its deadline, unless it is answered late anyway or the scheduler drains."""
        state, model = self._state, job.node.model
        models = [other for other in job.node.models if job.may_run(other)]
        if any(state.can_run(other, job.lane) for other in models):
            return False
        ends_anyhow = job.request.on_late == "answer" or state.draining
        if not ends_anyhow and not all(state.board.is_lost(other, job.lane) for other in models):
            return False
        reason = f"no lane can run model {model!r} now"
        if job.lane:
            reason = f"lane {job.lane} holds its state and cannot run model {model!r} now"
        self.fail(job, reason)
        return True

    def fail(self, job: Job, reason: str) -> None:
        """A ready job can never be done: its request has what its sequence has written, goes on without it, or
        fails."""
        if keeps_written(job):
            self.end_written(job, reason)
        elif not (self.can_go_on(job) and self.goes_on_without(job, reason)):
            self.ends.end(job.request, "fail", reason)

    def can_go_on(self, job: Job) -> bool:
        """True if its request may do without a job that never runs to its end."""
        return job.node.optional or (job.request.on_late == PARTIAL and job.node.feeds_joins)

    def complete(self, request: RequestRecord) -> None:
        """No job is left. Where every branch that a join could do without has failed, no last node ran: a failure."""
        if request.failure and not request.done_exits:
            self.ends.end(request, "fail", request.failure)
        elif request.quality is not None and request.quality < request.quality_min:
            self.ends.end(request, "drop", QUALITY_TOO_LOW)
        else:
            self.ends.end(request, "complete", request.left_out)

    def shed_useless(self, request: RequestRecord) -> None:
        """Jobs whose join fired without them have nothing to do any more."""
        if request.joins and not [row for row in request.joins.values() if row[2]]:
            return  # none has fired
        for job in list(request.jobs.values()):
            if joins.is_useless(request, job):
                request.fate(job.node, job.part, LEFT_OUT)
                del request.jobs[job.seq]
                self.ends.take_out(job)

    def expire_on_return(self, request: RequestRecord) -> bool:
        """A request whose deadline passed while its work ran, and which needs more, ends now, or in this very step with
        what its sequences have written."""
        if request.deadline_ns > self._board.now_ns or request.on_late == "answer" or request.ended:
            return request.ended
        if request.on_late == PARTIAL and has_written(request):
            self._remind(request, request.deadline_ns)
            return False
        self.ends.end(request, "drop", EXPIRED)
        return True

    # --- what sequences have written ----------------------------------------------------------------------------------

    def began(self, job: Job) -> None:
        """A sequence that runs has written something."""
        job.wrote = True
        request, now = job.request, self._board.now_ns
        request.note(now, "node", job.node.name, list(job.part) or "", "has begun to write")
        if request.on_late == PARTIAL and request.deadline_ns <= now:
            self._expire_written(request)

    def give_up(self, request: RequestRecord, reason: str, shortfall: Shortfall | None = None) -> None:
        """Drop a request that has to make room, or that cannot be in time. One whose sequences have written goes on
        with that, and without what has not begun."""
        kept = [job for job in request.jobs.values() if keeps_written(job)]
        if not kept:
            self.ends.end(request, "drop", reason, shortfall)
            return
        self.leave_out(request, [job for job in request.jobs.values() if job.state == READY and not job.wrote], reason)
        self._end_all_written(request, kept, reason)
        self._answer_late(request)

    def stop(self, request: RequestRecord, reason: str) -> None:
        """The world ends a request whose client still waits: with what its sequences have written, where nothing else
        is missing from the answer."""
        jobs = list(request.jobs.values())
        if jobs and all(keeps_written(job) and not job.node.succs for job in jobs):
            self._end_all_written(request, jobs, reason)
        else:
            self.ends.end(request, "cancel", reason)

    def _expire_written(self, request: RequestRecord) -> bool:
        """End the sequences of a request that is answered in part with their partial answers, at its deadline; nothing
        behind them is given up any more. False: nothing was written."""
        if request.on_late != PARTIAL or not has_written(request):
            return False
        self._end_all_written(request, [job for job in request.jobs.values() if keeps_written(job)], EXPIRED)
        self._answer_late(request)
        return True

    def _end_all_written(self, request: RequestRecord, jobs: Sequence[Job], reason: str) -> None:
        for job in jobs:
            if job.seq in request.jobs:  # an earlier one's join may have left it out
                self.end_written(job, reason)
        if request.joins and request.state == OPEN:
            self.settle(request)

    def end_written(self, job: Job, reason: str, has_failed: bool = False) -> None:
        """A sequence ends with what it has written, as if it were done. ``has_failed``: its lane has returned it, or
        will not."""
        request, node, now = job.request, job.node, self._board.now_ns
        request.note(now, "node", node.name, list(job.part) or "", "ends with what it has written:", reason)
        request.cut = request.cut or reason
        request.wrote = True
        self._state.actions.append(KeepWritten(job.id))
        del request.jobs[job.seq]
        if has_failed:
            move_job(job, "fail")
            self.ends.drop_state(job)
        else:
            job.breakdown = self.ends.spent(job)
            self.ends.take_out(job)
        request.breakdown = job.breakdown
        if request.app.simple:
            self.ends.end(request, "complete", "")
            return
        ready = joins.after(request, job, JobResult(job.id))
        if request.joins and request.jobs:
            self.shed_useless(request)
        if not node.succs:
            request.done_exits += 1
        self.owe_answer(request)
        self.proceed(request, ready, job.breakdown)

    def owe_answer(self, request: RequestRecord, has_settled: bool = False) -> None:
        """Keep a request whose sequences have written, or whose joins have settled, beyond its deadline: the nodes
        behind run late, where no join can still go on with less."""
        owes = has_settled or request.wrote
        if owes and request.on_late == PARTIAL and all(row[2] for row in (request.joins or {}).values()):
            self._answer_late(request)

    def _answer_late(self, request: RequestRecord) -> None:
        """Answer a request from now on however late. Its waiting jobs are queued anew, since policies judge it
        otherwise."""
        if request.ended:
            return
        waiting = [job for job in request.jobs.values() if job.queued]
        for job in waiting:
            self.ends.unqueue(job)
        request.on_late = "answer"
        for job in waiting:
            if job.state == READY:  # an earlier one may have ended the request
                self.make_ready(job)

    # --- timers -------------------------------------------------------------------------------------------------------

    def run_timers(self) -> None:
        """End the requests that waited past their deadlines, settle due joins, forget silent streams."""
        now = self._board.now_ns
        timers = self.timers
        while timers and timers[0][0] <= now:
            _, _, request = heappop(timers)
            timers = self.timers
            if request.ended:
                continue
            if request.deadline_ns > now or (request.on_late == PARTIAL and joins.can_settle_any(request)):
                if request.state == OPEN:  # time to settle for what there is, or just past it
                    kept = [job for job in request.jobs.values() if job.node.succs and keeps_written(job)]
                    self._end_all_written(request, kept, EXPIRED)
                if request.state == OPEN:
                    self.settle(request)
            elif self._expire_written(request):
                pass
            elif request.on_late == "answer":  # since its sequences have written
                if request.state == OPEN and request.joins:
                    self.settle(request)
            elif request.state == HELD or any(job.state == READY for job in request.jobs.values()):
                self.ends.end(request, "drop", EXPIRED)
        self._state.actions.extend(self._streams.forget_silent(now))
