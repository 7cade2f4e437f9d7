"""Which of a policy's own bids starts: all orders of them are compared (``docs/research/arbiter.md``).

The bids are put in the order that loses least value if they run one after the other; the first of it starts. On a tie
the one with more value per remaining lane time goes first. A ``critical`` bid that would lose value by waiting for
another goes before it; ``background`` work starts only when nothing else is offered. Pure; knows no queue.
"""

from __future__ import annotations

from typing import List, Sequence

from edgeserve.priority_class import RESERVED
from edgeserve.sched.policy_api.policy import Bid

ORDERS_MAX = 4
"""Bids whose orders are all compared, 32 values at most. Of more the winner of each comparison of two meets the next,
so that a lane for which twenty apps bid does not stand idle over the choice."""


def choose(bids: Sequence[Bid], at_ns: int, dispatch_gap_ns: int = 0) -> Bid:
    """The bid that starts at ``at_ns``. ``bids`` must not be empty and be in a fixed order. ``dispatch_gap_ns``: what
    the lane needs from the end of a work to the start of the next (``sched/latency/lane_gaps.py``)."""
    if len(bids) == 1:
        return bids[0]
    foreground = [bid for bid in bids if not bid.is_background] or bids
    if len(foreground) <= ORDERS_MAX:
        return _first(foreground, at_ns, dispatch_gap_ns)
    winner, *others = foreground
    for bid in others:
        winner = _first((winner, bid), at_ns, dispatch_gap_ns)
    return winner


def _first(bids: Sequence[Bid], at_ns: int, dispatch_gap_ns: int) -> Bid:
    """The bid that begins the best order, among bids that no other keeps from going first (all, if there is none)."""
    then_ns = at_ns + dispatch_gap_ns
    free = [index for index, bid in enumerate(bids) if not any(_bars(other, bid, at_ns, then_ns) for other in bids)]
    now = [bid.utility.value(at_ns) for bid in bids]
    losses = _losses(bids, now, at_ns, dispatch_gap_ns)
    first, *others = free or range(len(bids))
    for index in others:
        if (
            losses[index] < losses[first]
            or losses[index] == losses[first]
            and (now[index] * bids[first].remaining_ns > now[first] * bids[index].remaining_ns)
        ):
            first = index
    return bids[first]


def _losses(bids: Sequence[Bid], now: Sequence[float], at_ns: int, dispatch_gap_ns: int) -> List[float]:
    """The value that all lose, for each bid, by waiting in the best order that begins with it.

    When a bid starts depends only on *which* others ran before it, so the best order of the rest follows from those of
    smaller rests: O(n * 2**n) values, not n!. A set of bids is a number, one bit for each. (Losses, not what is
    delivered: where nothing is lost they are zero exactly, so that a tie is one for any rounding of the sums. A bid's
    next one starts when its work ends, not when all its later stages have: there is an auction then too. Turns of one
    batch are no such stages: each of them would bid the worth of whole answers.)
    """
    count = len(bids)
    took_ns = [0]  # by the set that has run
    for done in range(1, 1 << count):
        last = done.bit_length() - 1
        took_ns.append(took_ns[done ^ 1 << last] + max(bids[last].expected_ns, bids[last].whole_ns) + dispatch_gap_ns)
    least = [0.0] * (1 << count)  # by the set that has run: the least that the others lose
    for done in range((1 << count) - 2, 0, -1):
        starts_ns = at_ns + took_ns[done]
        least[done] = min(
            [
                now[index] - bids[index].utility.value(starts_ns) + least[done | 1 << index]
                for index in range(count)
                if not done >> index & 1
            ]
        )
    return [least[1 << index] for index in range(count)]


def _bars(a: Bid, b: Bid, at_ns: int, then_ns: int) -> bool:
    """True if ``a`` keeps ``b`` from going first at ``at_ns``, for any worths. ``then_ns`` is one dispatch gap
    later: what ``b`` takes after that passes before ``a`` starts."""
    if (a.priority_class in RESERVED) != (b.priority_class in RESERVED):
        critical, other = (a, b) if a.priority_class in RESERVED else (b, a)
        if critical.utility.value(then_ns + other.expected_ns) < critical.utility.value(at_ns):
            return critical is a
    return False
