"""The moves of policies: each is checked, and changes nothing where it is not allowed.

What follows for the request is ``request_manager.py``. Knows no clock (the time is ``board.now_ns``) and no lane.
"""

from __future__ import annotations

from edgeserve.errors import PolicyError
from edgeserve.sched.core.refusals import shortfall_of
from edgeserve.sched.core.request_manager import PARTIAL, RequestManager
from edgeserve.sched.core.state import State
from edgeserve.sched.latency.path_cost import batch_time_ns
from edgeserve.sched.protocol.actions import LeaveOut
from edgeserve.sched.protocol.events import Part
from edgeserve.sched.requests import joins
from edgeserve.sched.requests.states import OPEN, READY, RUNNING, Job, RequestRecord, has_written, keeps_written


class Moves:
    """What :class:`~edgeserve.sched.policy_api.board.Board` lets policies do with requests."""

    def __init__(self, state: State, manager: RequestManager) -> None:
        self._state = state
        self._manager = manager
        self._ends = manager.ends
        self._ready = state.ready
        self._board = state.board
        self._memory = state.memory

    def drop(self, request: RequestRecord, reason: str) -> None:
        """Give a request up."""
        self._refuse_within(request)
        if request.ended or not self._ends.trials.takes(request, reason):
            self._manager.give_up(request, reason, shortfall_of(self._state, request, None))

    def settle(self, request: RequestRecord, join: str = "", part: Part = (), wait_running: bool = False) -> None:
        """Fire the request's joins that have something, or only the one named."""
        self._refuse_within(request)
        if request.state != OPEN:
            raise PolicyError(f"settle: request {request.id} is {request.state}\n" + "\n".join(request.story()))
        if join or wait_running:
            self._settle_one(request, join, part, wait_running)
        else:
            self._manager.settle(request)

    def _settle_one(self, request: RequestRecord, join: str, part: Part, wait_running: bool) -> None:
        """One join goes on: at once, or when the branches that run have ended."""
        node = request.app.by_name.get(join)
        if node is None or not node.is_join or not joins.can_settle(request, node, part):
            raise _illegal(
                request,
                f"settle(join={join!r}, part={list(part)}): it needs the name of a join of app "
                f"{request.app.name!r} that has a finished predecessor and has not gone on",
            )
        of_part = [job for job in request.jobs.values() if job.part[: len(part)] == part]
        running = [job for job in of_part if wait_running and job.state == RUNNING and joins.leads_to(job.node, node)]
        behind = [job for job in of_part if joins.leads_only_to(job.node, node) and job not in running]
        if running:
            self._manager.leave_out(request, behind, "the join was settled")
            return
        ready = joins.settle(request, (node, part))
        for job in behind:
            self._state.actions.append(LeaveOut(job.id))
            self._manager.remove(request, job, "the join was settled")
        if not self._manager.expire_on_return(request):
            self._manager.proceed(request, ready, request.breakdown)

    def want(self, job: Job, wanted: bool, model: str, part: float) -> None:
        """Count a ready job as demand for its model, or for a variant of it, or not."""
        if job.state != READY or not job.queued or (model and not job.may_run(model)):
            raise _illegal(job.request, f"want({job!r}, {wanted}, {model!r}): only a ready job waits for a model")
        if not self._memory.tracked or (wanted == bool(job.demand_ns) and not model):
            return
        self._memory.unwant(job)
        if wanted:
            job.model = model or job.model
            self._memory.want(job, batch_time_ns(self._state.latencies_of[job.model], 1), part)

    def rate(self, request: RequestRecord, quality: float) -> None:
        """Note what an answer would be worth beside a whole one."""
        if request.ended or not 0.0 <= quality <= 1.0:
            raise _illegal(
                request, f"rate({quality!r}): expected a number from 0 to 1, for a request that has not ended"
            )
        request.quality = quality

    def abandon_branch(self, job: Job, reason: str) -> None:
        """A ready job cannot be in time: a request that is answered in part goes on without it where only joins wait
        for it, any other is dropped."""
        request = job.request
        self._refuse_within(request)
        if self._ends.trials.takes(request, reason):
            return
        if keeps_written(job):
            self._manager.end_written(job, reason)
            return
        wrote = request.on_late != "drop" and has_written(request)
        goes_on = wrote or (request.on_late == PARTIAL and job.node.feeds_joins)
        # While its policy still holds the job. What goes on for sure is spared that: a fan-out has many parts.
        shortfall = None if goes_on and len(request.jobs) > 1 else shortfall_of(self._state, request, job)
        if not (goes_on and self._manager.goes_on_without(job, reason)):
            self._ends.end(request, "drop", reason, shortfall)

    def _refuse_within(self, request: RequestRecord) -> None:
        """A request that is being changed is changed by nothing else."""
        if self._ready.is_telling:
            raise _illegal(request, "on_ready and on_gone end and settle no request; note it, and do so in plan")


def _illegal(request: RequestRecord, what: str) -> PolicyError:
    return PolicyError(f"request {request.id} ({request.state}): {what}\n" + "\n".join(request.story()))
