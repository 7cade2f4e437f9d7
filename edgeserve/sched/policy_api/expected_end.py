"""When a request that waits would end, by the shared estimate: the numbers of a refusal for its deadline.

A policy that tests deadlines otherwise overrides ``Policy.expected_end`` (``policy_api/policy.py``).
Reads the board and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, NamedTuple, Optional, Tuple

from edgeserve.sched.latency.path_cost import batch_time_ns
from edgeserve.sched.requests.graph import Node
from edgeserve.sched.requests.states import NEW, READY, Job, RequestRecord
from edgeserve.sched.resources.model_cache import NEVER_NS

if TYPE_CHECKING:
    from edgeserve.sched.latency.batch_time import BatchTime
    from edgeserve.sched.policy_api.board import Board


class ExpectedEnd(NamedTuple):
    """Where and when a request would end if nothing that waits went before it.

    ``lane`` runs its next job. ``wait_ns`` is the time until that could start: the lane is free, the model in memory.
    ``alone_ns`` is what follows, to the end of the request. ``deadline_ns_min`` is the smallest absolute deadline with
    which the policy would not give the request up now; None where it knows none.
    """

    lane: str
    wait_ns: int
    alone_ns: int
    deadline_ns_min: Optional[int]


def expected_end(
    request: RequestRecord,
    job: Job | None,
    board: Board,
    alone_ns: Callable[[BatchTime], int] | None = None,
    margin_ns: int = 0,
    free_only: bool = False,
) -> ExpectedEnd | None:
    """The end of the slowest of the jobs that ``request`` has ready, ``job`` among them; before it is accepted, of its
    first nodes. None while no lane could run one of them, or where none is ready.

    A job takes the likely time of a lone one, or what ``alone_ns`` says, and then what its pipeline takes on idle
    lanes. ``margin_ns``: how long before its deadline a request has to end. ``free_only``: only lanes that accept a
    work now and have the model in memory count.
    """
    slowest: ExpectedEnd | None = None
    if request.state == NEW:
        for node in request.app.entries:
            behind_ns = board.rest_ns(request.app, node) + _steps_behind_ns(request, node, board)
            found = _end_at(node, "", behind_ns, board, alone_ns, margin_ns, free_only)
            if found is None:
                return None
            slowest = _later(slowest, found)
        return slowest
    places: Dict[Tuple[str, str, int], Node] = {}  # parts of a fan-out are alike
    for other in request.jobs.values():
        if other.state == READY or other is job:
            places[other.node.name, other.lane, request.deadline_ns - other.deadline_ns] = other.node
    for (_, bound_to, behind_ns), node in places.items():
        found = _end_at(node, bound_to, behind_ns, board, alone_ns, margin_ns, free_only)
        if found is None:
            return None
        slowest = _later(slowest, found)
    return slowest


def _later(one: ExpectedEnd | None, other: ExpectedEnd) -> ExpectedEnd:
    if one is None or one.wait_ns + one.alone_ns < other.wait_ns + other.alone_ns:
        return other
    return one


def _end_at(
    node: Node,
    bound_to: str,
    behind_ns: int,
    board: Board,
    alone_ns: Callable[[BatchTime], int] | None,
    margin_ns: int,
    free_only: bool,
) -> ExpectedEnd | None:
    """The same of one job at a node, on the lane on which it ends first, or on the one that holds its state."""
    now_ns = board.now_ns
    best_name, best_starts_ns, best_ends_ns = "", 0, NEVER_NS
    for lane in board.lanes_of(node.model):
        if not lane.up or lane.hung or (bound_to and bound_to != lane.name):
            continue
        if free_only and not (lane.accepts(now_ns) and board.is_resident(node.model, lane)):
            continue
        latency = board.latency(node.model, lane.name)
        starts_ns = max(lane.available_ns(now_ns), board.resident_at_ns(node.model, lane))
        ends_ns = starts_ns + (latency.alone_likely_ns if alone_ns is None else alone_ns(latency))
        if ends_ns < best_ends_ns:
            best_name, best_starts_ns, best_ends_ns = lane.name, starts_ns, ends_ns
    if not best_name:
        return None
    after_ns = best_ends_ns + behind_ns
    return ExpectedEnd(best_name, best_starts_ns - now_ns, after_ns - best_starts_ns, after_ns + margin_ns)


def _steps_behind_ns(request: RequestRecord, node: Node, board: Board) -> int:
    """What the steps after the first take, where an iterative model's request declares them."""
    hints = request.hints
    steps = int(hints.get("steps" if request.app.simple else node.name + ".steps", 1)) if hints else 1
    if steps <= 1:
        return 0
    return (steps - 1) * batch_time_ns([board.latency(node.model, lane.name) for lane in board.lanes_of(node.model)], 1)
