"""The one end of each request, and what it leaves behind: places in queues, state on lanes, promises, its stream.

Every end of a request passes through :meth:`Ends.end`, every refusal at arrival through :meth:`Ends.reject`. Knows no
clock (the time is ``board.now_ns``) and no lane; what happens before the end is ``request_manager.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Callable, List, Tuple

from edgeserve.priority_class import RESERVED
from edgeserve.sched.core.experiments import Trials
from edgeserve.sched.core.state import State
from edgeserve.sched.protocol.actions import DropState, FinishRequest, LatencyBreakdown, Shortfall
from edgeserve.sched.requests.states import (
    ANSWERED,
    READY,
    RUNNING,
    Job,
    RequestRecord,
    move_job,
    move_request,
)

STORIES_KEPT = 512
"""Ended requests whose story can still be asked for."""

EXPIRED = "expired"
"""Reason of a request that waited past its deadline."""


class Ends:
    """The ends of requests, and the stories of the last that have ended.

    ``trials`` are the requests that were taken from their policies. ``opens`` begins a request that waited for its
    stream: another one's end may let it go.
    """

    def __init__(self, state: State, trials: Trials, opens: Callable[[RequestRecord], None]) -> None:
        self.trials = trials
        self._opens = opens
        self._state = state
        self._ready = state.ready
        self._board = state.board
        self._memory = state.memory
        self._streams = state.streams
        self._requests = state.requests
        self._ended: OrderedDict[int, RequestRecord] = OrderedDict()

    def find(self, request_id: int) -> RequestRecord | None:
        """An open request, or one of the last that ended."""
        return self._requests.get(request_id) or self._ended.get(request_id)

    def remembered(self) -> List[RequestRecord]:
        """All that :meth:`find` knows."""
        return [*self._ended.values(), *self._requests.values()]

    # --- one outcome --------------------------------------------------------------------------------------------------

    def reject(self, request: RequestRecord, reason: str, shortfall: Shortfall | None = None) -> None:
        """Refuse a request at arrival."""
        move_request(request, "reject")
        words = ("rejected:", reason) if shortfall is None else ("rejected:", reason, "-", shortfall)
        request.log.append((self._board.now_ns, words))
        self._ended[request.id] = request
        if len(self._ended) > STORIES_KEPT:
            self._ended.popitem(last=False)
        self._note_passed(request, reason, shortfall is None or shortfall.expected_ns <= shortfall.left_ns)
        if request.rank > 1.0:
            self._state.promises.ended(request.app.name, False)
        self._promise(request, shortfall)
        self._state.actions.append(FinishRequest(request.id, request.state, reason, request.breakdown, shortfall))

    def end(self, request: RequestRecord, what: str, reason: str, shortfall: Shortfall | None = None) -> None:
        """Give a request its one outcome; its jobs leave the queues, or become orphans on their lanes."""
        move_request(request, what)
        request.log.append((self._board.now_ns, (request.state, reason) if reason else (request.state,)))
        if shortfall is not None:
            request.log.append((self._board.now_ns, (shortfall,)))
            self._promise(request, shortfall)
        del self._requests[request.id]
        self._state.admission[request.app.name].leave(request)
        if what != "complete" and request.stream is not None:
            self._streams.abandon(request)
        if reason or self._board.passed_ns:
            self._note_passed(request, reason)
        if request.rank > 1.0 and (what == "complete" or reason == EXPIRED or reason in request.policy.by_estimate):
            in_time = what == "complete" and not request.cut and self._board.now_ns <= request.deadline_ns
            self._state.promises.ended(request.app.name, in_time)
        if request.priority_class in RESERVED and what == "complete":
            self._state.critical.ended(request.app.name, self._board.now_ns <= request.deadline_ns)
        if request.policy is self.trials:
            in_time = what == "complete" and not request.cut and self._board.now_ns <= request.deadline_ns
            self.trials.ended(request, in_time)
        request.spent = request.breakdown
        if request.jobs:
            jobs = list(request.jobs.values())
            if what != "complete":  # of several, that whose steps took longest
                spent = [request.breakdown, *[self.spent(job) for job in jobs if job.steps or job.state == RUNNING]]
                request.spent = max(spent, key=lambda each: each.execute_ns)
            request.jobs.clear()
            for job in jobs:
                self.take_out(job)
        ended = self._ended
        ended[request.id] = request
        if len(ended) > STORIES_KEPT:
            ended.popitem(last=False)
        if what != "complete" or (request.quality is None and not request.cut):
            self._state.actions.append(FinishRequest(request.id, request.state, reason, request.breakdown, shortfall))
        else:
            rated = (1.0, ()) if request.quality is None else (request.quality, _answered(request))
            self._state.actions.append(
                FinishRequest(
                    request.id, request.state, reason, request.breakdown, None, *rated, request.cut, request.variant
                )
            )
        if request.stream is not None and request.running == 0:
            self.release_stream(request)

    def _note_passed(self, request: RequestRecord, reason: str, had_time: bool = True) -> None:
        """Since when an app's requests have been given up for their deadlines and none that ran has ended. A critical
        one that no free lane could have served (not ``had_time``) says nothing of the room that critical ones need."""
        board, name = self._board, request.app.name
        if reason == EXPIRED or reason in request.policy.by_estimate:
            if request.priority_class in RESERVED and had_time:
                self._state.critical.ended(name, False)
            board.passed_ns.setdefault(name, board.now_ns)
        if name in board.passed_ns and (
            request.breakdown.execute_ns or any(job.launched_ns for job in request.jobs.values())
        ):
            del board.passed_ns[name]

    def _promise(self, request: RequestRecord, shortfall: Shortfall | None) -> None:
        """Note the deadline that a refusal offers, since the client may come back with it."""
        if shortfall is not None and shortfall.slo_ns_min is not None:
            key = (request.share, request.app.name, request.priority_class)
            asked_ns = request.deadline_ns - request.arrival_ns
            self._state.promises.give(key, asked_ns, shortfall.slo_ns_min, self._board.now_ns)

    def spent(self, job: Job) -> LatencyBreakdown:
        """The breakdown of a job's time, with the steps of its sequence in the running batch."""
        if job.state != RUNNING or job.node.model not in self._state.sequences.models:
            return job.breakdown
        queued_ns, load_ns, behind_ns, ran_ns = job.breakdown
        ran_ns += self._board.now_ns - job.launched_ns
        return LatencyBreakdown(queued_ns + job.launched_ns - job.ready_ns, load_ns, behind_ns, ran_ns)

    # --- jobs and streams that are left -------------------------------------------------------------------------------

    def take_out(self, job: Job) -> None:
        """A job's request no longer needs it."""
        if job.state == READY:
            move_job(job, "leave")
            self.drop_state(job)
            if job.queued:
                self.unqueue(job)
        elif job.state == RUNNING:
            move_job(job, "leave")

    def unqueue(self, job: Job) -> None:
        """A ready job waits no longer."""
        self._memory.unwant(job)
        self._ready.leave(job)

    def drop_state(self, job: Job) -> None:
        """The job is over: its state goes."""
        if job.node.model in self._state.sequences.models and self._state.sequences.free(job):
            self._state.actions.append(DropState(job=job.id))
        elif job.state_device:
            self._memory.devices[job.state_device].state_bytes -= job.state_bytes
            job.state_bytes, job.state_device = 0, ""
            self._state.actions.append(DropState(job=job.id))

    def release_stream(self, request: RequestRecord) -> None:
        """Nothing of a request runs any more: the next one of its stream begins."""
        following = self._streams.leave(request, self._board.now_ns)
        if following is not None:
            self._opens(following)


def _answered(request: RequestRecord) -> Tuple[str, ...]:
    """The nodes whose results went into joins, outside of fan-outs, in the order of the graph."""
    fates = request.fates or {}
    return tuple(
        [
            node.name
            for node in request.app.nodes
            if fates.get((node.index, ())) == ANSWERED and any(len(succ.preds) > 1 for succ in node.succs)
        ]
    )
