"""When background work has to yield, for policies that have no other rule for it."""

from __future__ import annotations

from typing import Iterable, List

from edgeserve.priority_class import YIELDING
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane


def must_yield(jobs: Iterable[Job], lane: Lane, board: Board) -> bool:
    """True if jobs of one model are background work that may not start on a lane now, not even as the smallest batch:
    it could make a critical request late, and none of them has waited for too long."""
    waiting: List[Job] = []
    for job in jobs:
        if job.request.priority_class not in YIELDING:
            return False  # of a long queue nearly always the first one
        waiting.append(job)
    if not waiting:
        return False
    latency = board.latency(waiting[0].node.model, lane.name)
    smallest = latency.sizes[0]
    if board.spares_critical(lane, max(latency.slowest_ns[smallest], latency.estimate_ns[smallest])):
        return False
    return not any(board.has_waited(job) for job in waiting)
