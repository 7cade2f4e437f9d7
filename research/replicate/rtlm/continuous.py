"""The baseline of continuous batching: answers in the order of arrival, in batches that the next one joins at any step.

Plain `edf` keeps a batch for as many steps as its longest answer is expected to have: beside that any plan that joins
answers looks well.
"""

from __future__ import annotations

from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.published.common.edf import Edf
from edgeserve.sched.resources.lanes import Work

KIND = "continuous_fifo"


class ContinuousFifo(Edf):
    """`edf` of requests with one deadline, whose batches end after the present step where another request waits and a
    place is free. Requests that have begun came first, so they stay in."""

    def cut(self, work: Work, board: Board) -> bool:
        return self.holds(work.model) and len(work.left()) < board.latency(work.model, work.lane.name).size_max


POLICIES[KIND] = ContinuousFifo
