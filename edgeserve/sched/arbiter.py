"""Which bid wins a lane. Several apps, one lane: ``docs/policies/arbiter.md`` has the measurement behind the rule.

Two bids are compared as A-then-B against B-then-A by total value delivered; on a tie the one with more value per
remaining lane time wins. The winner of each comparison meets the next, in the order of the policies' names.
Classes bound the auction. A ``critical`` bid that would lose value by waiting for the other goes first. ``background``
work starts only when nobody else bids, a probe only when there is no background work either. Others cut in on a
continuation only if they end before its latest start. Pure; knows no queue and no policy.
"""

from __future__ import annotations

from typing import Sequence

from edgeserve.sched.policy import Bid


def choose(bids: Sequence[Bid], at_ns: int) -> Bid:
    """The bid that starts at ``at_ns``. ``bids`` must not be empty and be in a fixed order."""
    foreground = [bid for bid in bids if not is_background(bid)]
    winner, *others = foreground or [bid for bid in bids if not bid.probe] or bids
    for bid in others:
        if _first(bid, winner, at_ns):
            winner = bid
    return winner


def is_background(bid: Bid) -> bool:
    """Whether a bid is work that yields to everything else."""
    return bid.probe or bid.klass == "background"


def _first(a: Bid, b: Bid, at_ns: int) -> bool:
    """Whether ``a`` should run before ``b``, the winner so far."""
    if a.klass != b.klass and "critical" in (a.klass, b.klass):
        critical, other = (a, b) if a.klass == "critical" else (b, a)
        if critical.worth.value(at_ns + other.expected_ns) < critical.worth.value(at_ns):
            return critical is a
    if b.latest_start_ns is not None and at_ns + a.expected_ns > b.latest_start_ns >= at_ns:
        return False
    if a.latest_start_ns is not None and at_ns + b.expected_ns > a.latest_start_ns >= at_ns:
        return True
    a_now, b_now = a.worth.value(at_ns), b.worth.value(at_ns)
    # The other one starts when this one's work ends, not when all its later stages have: there is an auction then too.
    a_first = a_now + b.worth.value(at_ns + a.expected_ns)
    b_first = b_now + a.worth.value(at_ns + b.expected_ns)
    if a_first != b_first:
        return a_first > b_first
    return a_now * b.remaining_ns > b_now * a.remaining_ns
