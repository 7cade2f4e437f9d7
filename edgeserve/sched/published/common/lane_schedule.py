"""Which of several models starts on a lane: a tentative schedule of the best batch of each.

After utility accrual scheduling (DASA: R. Clark 1990). The batch that brings the most worth per lane time enters the
schedule first, the others follow as long as no request in it becomes late; critical batches before all others. Then the
densest batch that can go first without making another one late starts. Pure; knows no queue and no policy.
"""

from __future__ import annotations

from typing import List, Sequence

from edgeserve.priority_class import RESERVED, YIELDING
from edgeserve.sched.policies.common.bidding import Utility
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.units import FOREVER_NS

KEPT = 0.9
"""A batch is in time as long as so much of its worth remains. Of a critical batch, all of it."""

SOFT_PART = 9
"""The divisor of an SLO: a request that is answered late anyway keeps nine tenths of its worth until a ninth of its SLO
after its deadline."""

RISE, RISE_MAX = 4, 2.0
"""A batch counts as denser if jobs of its model were given up since the model ran last: twice as dense for four times
as many as the batch has, three times at most. So the smaller of two equal apps has its turn."""

PATIENT = 16
"""A batch that can wait so many times as long as the most urgent one lets it go first, dense or not: between deadlines
that lie so far apart, an early start keeps time free for coming requests. (Between closer ones, full batches save
more.)"""


class ModelCandidate:
    """The best batch of one model. ``dense``: its worth per remaining lane time, more where its model was passed over;
    ``latest_ns``: until when it may start."""

    __slots__ = ("bid", "dense", "latest_ns", "is_critical")

    def __init__(self, bid: Bid, lost: int, at_ns: int) -> None:
        self.bid = bid
        self.is_critical = bid.priority_class in RESERVED
        self.dense = _rise(lost, len(bid.jobs)) * bid.utility.value(at_ns) / bid.remaining_ns
        utility = bid.utility
        assert isinstance(utility, Utility)
        self.latest_ns = _latest_start_ns(utility, at_ns, 1.0 if self.is_critical else KEPT)


def first_of(bids: Sequence[Bid], lost: Sequence[int], at_ns: int, dispatch_gap_ns: int) -> Bid:
    """The bid that starts at ``at_ns``, of at least one; background only without other bids. ``lost``: how many
    jobs of each bid's model were given up since it ran last. O(bids ** 2)."""
    foreground = [index for index, bid in enumerate(bids) if bid.priority_class not in YIELDING] or range(len(bids))
    candidates = [ModelCandidate(bids[index], lost[index], at_ns) for index in foreground]
    candidates.sort(key=_by_density)
    schedule: List[ModelCandidate] = []  # in order of latest starts
    for candidate in sorted(candidates, key=_by_class):
        place = len(schedule)
        while place and schedule[place - 1].latest_ns > candidate.latest_ns:
            place -= 1
        schedule.insert(place, candidate)
        if len(schedule) > 1 and not _is_in_time(schedule, None, at_ns, dispatch_gap_ns):
            del schedule[place]
    first = schedule[0]
    by_ns = _patient_from_ns(first, at_ns)
    for candidate in candidates:
        if candidate is first or (
            candidate.latest_ns <= by_ns
            and candidate in schedule
            and _is_in_time(schedule, candidate, at_ns, dispatch_gap_ns)
        ):
            return candidate.bid
    return first.bid


def _rise(lost: int, served: int) -> float:
    """The factor on the density of a batch that serves so many jobs of a model which has lost so many."""
    return 1.0 + min(RISE_MAX, lost / (RISE * served))


def _patient_from_ns(first: ModelCandidate, at_ns: int) -> int:
    """A batch that may start later than this lets the most urgent one go first."""
    return at_ns + PATIENT * max(first.latest_ns - at_ns, first.bid.expected_ns)


def _by_density(candidate: ModelCandidate) -> float:
    return -candidate.dense


def _by_class(candidate: ModelCandidate) -> bool:
    return not candidate.is_critical


def _is_in_time(schedule: List[ModelCandidate], first: ModelCandidate | None, at_ns: int, dispatch_gap_ns: int) -> bool:
    """True if all start in time if they run in this order, but ``first`` before all others."""
    if first is not None:
        at_ns += first.bid.expected_ns + dispatch_gap_ns
    for candidate in schedule:
        if candidate is not first:
            if at_ns > candidate.latest_ns:
                return False
            at_ns += candidate.bid.expected_ns + dispatch_gap_ns
    return True


def _latest_start_ns(utility: Utility, at_ns: int, kept: float) -> int:
    """The latest start that leaves this part of what a start at ``at_ns`` delivers."""
    ends_ns = at_ns + utility.after_ns
    total = 0.0
    rows = []
    for due_ns, worth, soft_ns in utility.rows:
        if ends_ns <= due_ns:
            total += worth
            rows.append((due_ns + soft_ns // SOFT_PART, worth))
    rows.sort()
    may_lose = total * (1.0 - kept)
    for due_ns, worth in rows:
        may_lose -= worth
        if may_lose < 0.0:
            return due_ns - utility.after_ns
    return FOREVER_NS
