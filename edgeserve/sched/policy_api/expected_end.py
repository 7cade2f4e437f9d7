"""When a request that waits would end, by the shared estimate: the numbers of a refusal for its deadline.

A policy that tests deadlines otherwise overrides ``Policy.expected_end`` (``policy_api/policy.py``).
Reads the board and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, NamedTuple, Optional, Tuple

from edgeserve.sched.latency.path_cost import batch_time_ns
from edgeserve.sched.requests.graph import Node
from edgeserve.sched.requests.states import NEW, READY, Job, RequestRecord
from edgeserve.sched.resources.placement import NEVER_NS

if TYPE_CHECKING:
    from edgeserve.sched.policy_api.board import AloneTime, Board


class ExpectedEnd(NamedTuple):
    """The expected end of a request and its lane, if no waiting job went before it.

    ``lane`` runs its next job. ``wait_ns`` is the time until that could start: the lane is free, the model in memory.
    ``alone_ns`` is the time from then to the end of the request. ``deadline_ns_min`` is the smallest absolute deadline
    with which the policy would not give the request up now; None where it knows none.
    """

    lane: str
    wait_ns: int
    alone_ns: int
    deadline_ns_min: Optional[int]


def expected_end(
    request: RequestRecord,
    job: Job | None,
    board: Board,
    alone_ns: AloneTime | None = None,
    margin_ns: int = 0,
    free_only: bool = False,
    variants: bool = False,
) -> ExpectedEnd | None:
    """The end of the slowest of the jobs that ``request`` has ready, ``job`` among them; before it is accepted, of its
    first nodes. None while no lane could run one of them, or where none is ready.

    Each is run on the lane of :meth:`Board.starts` where it ends first, or on the one that holds its state. It takes
    the likely time of a lone one, or what ``alone_ns`` says, and then what its pipeline takes on idle lanes.
    ``margin_ns``: how long before its deadline a request has to end. ``variants``: any variant of a node's model may
    run.
    """
    behind_ns: Dict[Tuple[Node, str], int] = {}  # parts of a fan-out are alike
    if request.state == NEW:
        for node in request.app.entries:
            steps = int(request.hints.get(node.steps_key, 0)) or board.usual_steps(node.model)
            latencies = [board.latency(node.model, lane.name) for lane in board.lanes_of(node.model)]
            steps_ns = (steps - 1) * batch_time_ns(latencies, 1) if steps > 1 else 0
            behind_ns[node, ""] = board.rest_ns(request.app, node) + steps_ns
    for other in request.jobs.values():
        if other.state == READY or other is job:
            place = other.node, other.lane
            behind_ns[place] = max(behind_ns.get(place, 0), request.deadline_ns - other.deadline_ns)
    slowest: ExpectedEnd | None = None
    for (node, bound_to), after_ns in behind_ns.items():
        best_name, best_starts_ns, best_ends_ns = "", 0, NEVER_NS
        models = node.models if variants else (node.model,)
        for lane, latency, starts_ns, _ in [row for model in models for row in board.starts(model, free_only)]:
            ends_ns = starts_ns + (latency.alone_likely_ns if alone_ns is None else alone_ns(latency))
            if bound_to in ("", lane.name) and ends_ns < best_ends_ns:
                best_name, best_starts_ns, best_ends_ns = lane.name, starts_ns, ends_ns
        if not best_name:
            return None
        if slowest is None or slowest.wait_ns + slowest.alone_ns < best_ends_ns + after_ns - board.now_ns:
            best_ends_ns += after_ns
            wait_ns = best_starts_ns - board.now_ns
            slowest = ExpectedEnd(best_name, wait_ns, best_ends_ns - best_starts_ns, best_ends_ns + margin_ns)
    return slowest
