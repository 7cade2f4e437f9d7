"""The choice of the bid that wins a lane for which several policies bid (``docs/research/arbiter.md``).

Two bids are put in the order that loses less value if one runs after the other; on a tie the one with more value per
remaining lane time goes first. The winner of each comparison meets the next bid. Classes bound that: a ``critical`` bid
that would lose value by waiting for another goes before it; ``background`` and probe work starts only without other
bids. Pure; knows no queue and no policy.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from edgeserve.priority_class import RESERVED
from edgeserve.sched.policy_api.policy import Bid

PASSED_SLOS = 20
"""An app that was given up for so many times its deadline goes before others of its class and value. So no app waits
for ever because its batches are less full; each costs the lane what one request takes in that time."""


def choose(bids: Sequence[Bid], at_ns: int, dispatch_gap_ns: int = 0) -> Bid:
    """The bid that starts at ``at_ns``. ``bids`` must not be empty and be in a fixed order. ``dispatch_gap_ns``: what
    the lane needs from the end of a work to the start of the next (``sched/latency/lane_gaps.py``)."""
    winner, *others = [bid for bid in bids if not bid.is_background] or bids
    for bid in others:
        if _goes_before(bid, winner, at_ns, at_ns + dispatch_gap_ns):
            winner = bid
    return winner


def _goes_before(a: Bid, b: Bid, at_ns: int, then_ns: int) -> bool:
    """True if ``a`` starts at ``at_ns`` rather than ``b``. What the first takes after ``then_ns`` passes before the
    second starts."""
    a_now, b_now = a.utility.value(at_ns), b.utility.value(at_ns)
    if a.priority_class != b.priority_class:
        if a.priority_class in RESERVED and a.utility.value(then_ns + b.expected_ns) < a_now:
            return True
        if b.priority_class in RESERVED and b.utility.value(then_ns + a.expected_ns) < b_now:
            return False
    a_loses = a_now - a.utility.value(then_ns + max(b.expected_ns, b.whole_ns))
    b_loses = b_now - b.utility.value(then_ns + max(a.expected_ns, a.whole_ns))
    return a_loses > b_loses or (a_loses == b_loses and a_now * b.remaining_ns > b_now * a.remaining_ns)


def overdue(bids: Sequence[Bid], passed_ns: Mapping[str, int], first: Bid, now_ns: int, then_ns: int) -> Bid:
    """The bid whose app was given up for the most of its deadlines, if these are :data:`PASSED_SLOS` and it counts as
    much as ``first``, which else starts. Its work, or the next step of it, makes no critical bid late, which would
    start at ``then_ns`` behind no other. ``passed_ns``: by app, since when (``Board.passed_ns``). O(jobs)."""
    most, found = float(PASSED_SLOS), first
    for bid in bids:
        for job in bid.jobs if bid.priority_class == first.priority_class else ():
            request = job.request
            slo_ns = max(1, request.deadline_ns - request.arrival_ns)
            slos = (now_ns - passed_ns.get(request.app.name, now_ns)) / slo_ns
            if slos >= most and request.value >= first.jobs[0].request.value:
                most, found = slos, bid
    if found is not first:
        takes_ns = found.expected_ns // (found.steps_max or 1)
        for bid in bids:
            if bid.priority_class in RESERVED and bid.utility.value(then_ns + takes_ns) < bid.utility.value(then_ns):
                return first
    return found
