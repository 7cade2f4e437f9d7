"""Bids for batches whose time is a distribution."""

from __future__ import annotations

import math
from typing import Iterable, List, Sequence, Tuple

from edgeserve.sched.policies.common.bidding import Utility, bid_for
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS
from edgeserve.sched.published.orloj.distribution import Distribution
from edgeserve.sched.requests.states import Job


class LikelyUtility:
    """The expected value of a bid of uncertain length: each request counts with its chance to be in time.

    Like :class:`Utility` otherwise; ``after_ns`` is what follows the bid's own work.
    """

    __slots__ = ("rows", "after_ns", "_known", "_begin_by_ns")

    def __init__(
        self, jobs: Iterable[Job], known: Distribution, after_ns: int, now_ns: int = START_ANY_TIME_NS
    ) -> None:
        self.after_ns = after_ns
        self._known = known
        self.rows: List[Tuple[int, float, int]] = []
        self._begin_by_ns: List[int] = []  # by row: a later start is worth nothing
        rest: List[Job] = []
        for job in jobs:
            begin_by_ns = job.request.begin_by_ns(now_ns) if job.request.successor_ns is not None else None
            if begin_by_ns is None:
                rest.append(job)
            else:
                self.rows += Utility((job,), after_ns).rows
                self._begin_by_ns.append(begin_by_ns)
        self.rows += Utility(rest, after_ns).rows

    def value(self, start_ns: int) -> float:
        """The value expected if the work starts at ``start_ns``, in nanoseconds of lane time."""
        starts_ns = start_ns + self.after_ns
        total = 0.0
        for index, (deadline_ns, worth, soft_ns) in enumerate(self.rows):
            if index < len(self._begin_by_ns) and start_ns > self._begin_by_ns[index]:
                continue
            chance = self._known.p_by(deadline_ns - starts_ns)
            total += worth * chance
            if soft_ns and chance < 1.0:
                late_ns = max(0.0, starts_ns + self._known.mean_ns() - deadline_ns)
                total += (1.0 - chance) * worth * soft_ns / (soft_ns + late_ns)
        return total


def likely_bid(jobs: Sequence[Job], size: int, known: Distribution, board: Board) -> Bid:
    """The bid to run ``jobs`` as a batch whose time has this distribution."""
    expected_ns = math.ceil(known.mean_ns())
    bid = bid_for(jobs, size, expected_ns, board)
    after_ns = max([board.rest_ns(job.request.app, job.node) for job in jobs])
    bid.utility = LikelyUtility(jobs, known, after_ns, board.now_ns)
    return bid
