"""The numbers in a refusal for a deadline: the time that the request would have taken, and the deadline that would do.

A refusal that the estimate cannot explain (a policy had another reason) gets no numbers. The deadline that would do
counts what waits for the lane and goes first; a request that comes back with it is ranked above its equals
(``sched/requests/promises.py``).
"""

from __future__ import annotations

from edgeserve.priority_class import CLASSES
from edgeserve.sched.core.state import State
from edgeserve.sched.latency.path_cost import batch_time_ns
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.protocol.actions import Shortfall
from edgeserve.sched.requests.states import Job, RequestRecord, steps_left
from edgeserve.sched.resources.lanes import Lane

ROUNDS = 4
"""A later deadline has more before it: so often the queue is counted anew."""

NOT_BELOW = {priority_class: CLASSES[: index + 1] for index, priority_class in enumerate(CLASSES)}
"""Class -> the classes above it, and itself."""


def shortfall_of(state: State, request: RequestRecord, job: Job | None) -> Shortfall | None:
    """The shortfall of a request that its policy is about to give up (because of ``job``, where one is named), or None
    where its deadline is not the reason."""
    if request.ended or request.on_late == "answer":
        return None
    expected = request.policy.expected_end(request, job, state.board)
    if expected is None:
        return None
    left_ns = request.deadline_ns - state.board.now_ns
    due_ns = _would_do_ns(state, request, expected)
    if max(due_ns, state.board.now_ns + expected.wait_ns + expected.alone_ns) <= request.deadline_ns:
        return None
    name, now_ns = request.app.name, state.board.now_ns
    passed_ns = now_ns - state.board.passed_ns.get(name, now_ns)
    slo_ns = state.promises.would_do_ns(name, due_ns - request.arrival_ns, passed_ns)
    return Shortfall(expected.lane, expected.alone_ns, expected.wait_ns, left_ns, slo_ns)


def _would_do_ns(state: State, request: RequestRecord, expected: ExpectedEnd) -> int:
    """The deadline with which the request would be in time behind everything that waits for its lane and is due before
    it, with a quarter more for what still comes."""
    lane = state.lanes[expected.lane]
    alone_due_ns = expected.deadline_ns_min
    if alone_due_ns is None:
        alone_due_ns = state.board.now_ns + expected.wait_ns + expected.alone_ns
    due_ns = alone_due_ns
    for _ in range(ROUNDS):
        ahead_ns = _ahead_ns(state, request, lane, due_ns)
        behind_ns = alone_due_ns + ahead_ns + ahead_ns // 4
        if behind_ns <= due_ns:
            break
        due_ns = behind_ns
    return due_ns


def _ahead_ns(state: State, request: RequestRecord, lane: Lane, due_ns: int) -> int:
    """The time of the batches before a request on this lane, or on the one of the others that it needs where that is
    longest: while it waits for one, the queue of the next becomes shorter."""
    ahead_ns = _ahead_on_ns(state, request, lane, due_ns)
    for node in request.app.nodes:
        lanes = state.lanes_of[node.model]
        if lane not in lanes:
            ahead_ns = max(ahead_ns, min([_ahead_on_ns(state, request, other, due_ns) for other in lanes]))
    return ahead_ns


def _ahead_on_ns(state: State, request: RequestRecord, lane: Lane, due_ns: int) -> int:
    """The lane's time for the jobs that wait, are due before ``due_ns`` and are of the request's class or above, in
    full batches; what several lanes may run, these share. O(models of the lane)."""
    total_ns = 0
    for model in lane.models:
        job_ns = gap_ns = 0
        for priority_class in NOT_BELOW[request.priority_class]:
            rows = state.ready.of[priority_class][model]
            if not rows:
                continue
            count = state.ready.count_before(priority_class, model, due_ns)
            if priority_class == request.priority_class:
                count -= sum([job.queued and job.node.model == model for job in request.jobs.values()])
            if count <= 0:
                continue
            latency, first = state.latency[model, lane.name], rows[0][2]
            if model in state.sequences.models:
                job_ns += latency.typical_ns[latency.size_max] * steps_left(first) * count // latency.size_max
            else:
                job_ns += batch_time_ns([latency], count)
            gap_ns += -(-count // latency.size_max) * lane.dispatch_gap.likely_ns
            if first.node.succs:
                job_ns += count * state.costs[first.request.app.name].rest_lane_ns[first.node.name]
        total_ns += (job_ns + gap_ns) // len(state.lanes_of[model])
    return total_ns
