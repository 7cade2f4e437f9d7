"""What a refusal for a deadline says of itself: how long the request would have taken, and which deadline would do.

Worked out only for requests that a policy refuses or gives up; what the estimate cannot explain (a policy had another
reason) gets no numbers.
"""

from __future__ import annotations

from edgeserve.sched.core.state import State
from edgeserve.sched.policy_api.expected_end import ExpectedEnd, expected_end
from edgeserve.sched.protocol.actions import Shortfall
from edgeserve.sched.protocol.events import Request
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord


def shortfall_of(state: State, request: RequestRecord, job: Job | None) -> Shortfall | None:
    """What a request lacks that its policy is about to give up (because of ``job``, where one is named), or None where
    its deadline is not the reason."""
    if request.ended or request.on_late == "answer":
        return None
    expected = request.policy.expected_end(request, job, state.board)
    if expected is None:
        return None
    left_ns = request.deadline_ns - state.board.now_ns
    due_ns = expected.deadline_ns_min
    if due_ns is None:
        is_late = expected.wait_ns + expected.alone_ns > left_ns
    else:
        is_late = due_ns > request.deadline_ns
    if not is_late:
        return None
    slo_ns_min = None if due_ns is None else due_ns - request.arrival_ns
    return Shortfall(expected.lane, expected.alone_ns, expected.wait_ns, left_ns, slo_ns_min)


def expected_of_app(state: State, app: App, by_policy: bool = False) -> ExpectedEnd | None:
    """When a request to an app would end that arrived now, by the shared estimate or as its policy sees that; None
    while no lane could run it. ``deadline_ns_min`` counts from now."""
    board, now_ns = state.board, state.board.now_ns
    policy = state.policy_of[app.name]
    request = RequestRecord(Request(0, app.name, now_ns, now_ns + app.slo_ns, on_late=app.on_late), app, policy)
    expected = policy.expected_end(request, None, board) if by_policy else expected_end(request, None, board)
    if expected is None or expected.deadline_ns_min is None:
        return expected
    return expected._replace(deadline_ns_min=expected.deadline_ns_min - now_ns)
