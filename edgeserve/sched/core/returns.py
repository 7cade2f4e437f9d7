"""The results of jobs from the lanes that ran them: done, unfinished, failed, lost, or never started;
and the places of sequences that wait.

What follows for the request is ``request_manager.py``, its end ``ends.py``. Knows no clock (the time is
``board.now_ns``).
"""

from __future__ import annotations

from typing import Tuple

from edgeserve.sched.core.request_manager import RequestManager
from edgeserve.sched.core.state import State
from edgeserve.sched.protocol.actions import LatencyBreakdown, LeaveOut, ReleaseState
from edgeserve.sched.protocol.events import JobResult
from edgeserve.sched.requests import joins
from edgeserve.sched.requests.states import (
    JOB_FAILED,
    LOST,
    ORPHAN,
    READY,
    Job,
    keeps_written,
    move_job,
    new_tuple,
)
from edgeserve.sched.resources.lanes import Lane, Work


class Returns:
    """Jobs that come back from lanes. Changes requests through ``manager`` and ``ends``."""

    def __init__(self, state: State, manager: RequestManager) -> None:
        self._state = state
        self._manager = manager
        self._ends = manager.ends
        self._board = state.board
        self._memory = state.memory
        self._streams = state.streams

    def returned(self, job: Job, result: JobResult, work: Work, took: Tuple[int, int]) -> None:
        """A lane returned a job of a finished batch."""
        request = job.request
        if request.uses:
            use, _ = request.uses[self._state.costs[request.app.name].place_of[job.node.model]]
            if len(use.shared.uses) > 1:
                lane_ns = (took[1] - took[0]) // (len(work.jobs) * len(self._state.lanes_of[work.model]))
                use.shared.had(use, lane_ns, request.app.weights, self._board.now_ns)
        if job.state == ORPHAN:
            move_job(job, "finish")
            self._ends.drop_state(job)
            self._after_return(job)
            return
        started_ns, finished_ns = took
        load_ns = 0
        if self._memory.tracked:
            since_ns = self._memory.devices[work.lane.device].placements[work.model].since_ns
            load_ns = max(0, min(since_ns, work.launched_ns) - job.ready_ns)
        queued_ns, loaded_ns, behind_ns, ran_ns = job.breakdown
        queued_ns += work.launched_ns - job.ready_ns - load_ns
        if started_ns > work.launched_ns:
            behind_ns += started_ns - work.launched_ns
        job.breakdown = new_tuple(
            LatencyBreakdown, (queued_ns, loaded_ns + load_ns, behind_ns, ran_ns + finished_ns - started_ns)
        )
        if result.state_bytes and request.stream is not None:
            self._state.actions.extend(
                self._streams.keep_state(request, job.node.name, work.lane.device, result.state_bytes)
            )
        if result.status == "done":
            if job.node.qualities:
                request.variant, request.quality = work.model, job.node.qualities[work.model]
            reason = "" if job.node.plain else joins.wrong_result(job, result)
            if reason:
                self._job_failed(job, reason)
            else:
                self._job_done(job, result)
        elif result.status == "unfinished":
            self._job_unfinished(job, result, work)
        else:
            self._job_failed(job, result.reason)

    def _job_done(self, job: Job, result: JobResult) -> None:
        request, node = job.request, job.node
        move_job(job, "finish")
        del request.jobs[job.seq]
        is_sequence = node.model in self._state.sequences.models
        if job.state_device:
            if is_sequence:
                self._state.sequences.learn(job, result.steps, result.cached)
            self._ends.drop_state(job)
        if is_sequence:
            job.steps += result.steps
            request.wrote = True
        request.breakdown = job.breakdown
        if request.app.simple:
            if request.quality is None:
                self._ends.end(request, "complete", "")
            else:
                self._manager.complete(request)
            return
        now = self._board.now_ns
        request.note(
            now, "node", node.name, list(job.part) or "", "done", f"({result.parts} parts)" if node.fan_out else ""
        )
        if result.hints:
            request.learn(job.part, result.hints)
            request.note(now, "node", node.name, list(job.part) or "", "said", dict(result.hints))
        if node.follower is not None:
            if request.joins and request.jobs:
                self._manager.shed_useless(request)
            if request.wrote:
                self._manager.owe_answer(request)
            if not self._manager.expire_on_return(request):
                self._manager.begin(request, node.follower, job.part, job.breakdown)
            return
        if node.fan_out and result.parts is not None:
            self._state.costs[request.app.name].observe_parts(node, result.parts)
        ready = joins.after(request, job, result)
        if request.joins and request.jobs:
            self._manager.shed_useless(request)
        if request.wrote:
            self._manager.owe_answer(request)
        if not node.succs:
            request.done_exits += 1
        if not ready and not request.jobs:
            self._manager.complete(request)
        elif not self._manager.expire_on_return(request):
            self._manager.proceed(request, ready, job.breakdown)

    def _job_unfinished(self, job: Job, result: JobResult, work: Work) -> None:
        move_job(job, "unfinished")
        job.lane, job.steps, job.ready_ns = work.lane.name, job.steps + result.steps, self._board.now_ns
        job.model = work.model
        if job.node.model in self._state.sequences.models:
            said = result.hints.get("steps", result.hints.get(f"{job.node.name}.steps", 0)) if result.hints else 0
            if said >= 1:
                job.steps_total = job.steps + int(said)
            job.has_state = True
            self._state.sequences.kept(job, result.state_bytes)
        elif result.state_bytes and job.request.stream is None:
            self._keep_state(job, work.lane.device, result.state_bytes)
        if not self._manager.expire_on_return(job.request):
            self._manager.make_ready(job)

    def _job_failed(
        self, job: Job, reason: str, fate: str = JOB_FAILED, can_go_on: bool = False, may_return: bool = False
    ) -> None:
        """``may_return``: its lane hangs, and may return it after all."""
        request = job.request
        if keeps_written(job):
            self._manager.end_written(job, reason, has_failed=True)
            return
        move_job(job, "fail")
        del request.jobs[job.seq]
        self._ends.drop_state(job)
        request.note(self._board.now_ns, "node", job.node.name, list(job.part) or "", "failed:", reason)
        if can_go_on or job.node.spared:
            request.failure = reason
            if may_return:
                self._state.actions.append(LeaveOut(job.id))
            ready = joins.skip(request, job, fate)
            if self._manager.expire_on_return(request):
                return
            if not joins.is_starved(request, job):
                request.leave_out(f"without {job.node.name}{list(job.part) or ''}: {fate}")
                self._manager.proceed(request, ready, job.breakdown)
                return
        self._ends.end(request, "fail", reason)

    def lost(self, work: Work, reason: str) -> None:
        """The lane will not finish this work, which was running: its jobs fail."""
        for job in work.left():
            if job.state == ORPHAN:
                move_job(job, "fail")
                self._ends.drop_state(job)
            else:
                can_go_on = self._manager.can_go_on(job) if work.lane.lost else job.node.optional
                self._job_failed(job, reason, LOST, can_go_on, may_return=work.lane.up)
            self._after_return(job)

    def give_back(self, work: Work) -> None:
        """The jobs of a work that never started are ready again, unless their request has ended."""
        for job in work.left():
            move_job(job, "refuse")
            if job.state != READY:
                self._ends.drop_state(job)
            elif not self._manager.expire_on_return(job.request):
                if job.has_state and not (work.lane.up and not work.lane.hung):  # before it counts as stranded there
                    self.release_state(job)
                elif not job.has_state and self._state.sequences.free(job):
                    job.lane = ""
                self._manager.make_ready(job)
            self._after_return(job)

    def release(self, job: Job, why: str) -> None:
        """A ready job gives up its place and what its state occupies: it can go on anywhere, by computing that
        again."""
        job.request.note(self._board.now_ns, "gives up its state on", job.lane, "-", why)
        if job.queued:
            self._ends.unqueue(job)
        self.release_state(job)
        self._manager.make_ready(job)

    def release_state(self, job: Job) -> None:
        """A sequence's state on its lane is gone, or is to go: the job is bound to no lane any more."""
        self._state.sequences.free(job)
        self._state.actions.append(ReleaseState(job.id))
        job.lane, job.has_state = "", False

    def release_all(self, lane: Lane) -> None:
        """A lane is down or hangs: the sequences that it held, and that did not run, go on elsewhere."""
        for job in list(self._state.sequences.holders.get(lane.name, {}).values()):
            if job.state == READY and not job.request.ended:
                self.release(job, "the lane is down")

    def _keep_state(self, job: Job, device_name: str, bytes: int) -> None:
        """An unfinished job leaves state on its lane's device; it counts there until the job is over."""
        device = self._memory.devices[device_name]
        device.state_bytes += bytes - job.state_bytes
        job.state_bytes, job.state_device = bytes, device_name

    def _after_return(self, job: Job) -> None:
        """Let the next request of the stream go when nothing of this one runs any more."""
        request = job.request
        if request.ended and request.running == 0 and request.stream is not None:
            self._ends.release_stream(request)
