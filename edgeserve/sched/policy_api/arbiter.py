"""Which bid wins a lane. Several apps, one lane: ``docs/research/arbiter.md`` has the measurement behind the rule.

The bids are put in the order that loses least value if they run one after the other; the first of it starts. On a tie
the one with more value per remaining lane time goes first. Of two bids this is A-then-B against B-then-A. What waits
is judged as if all took as long as the careful estimate says: a bid that waits until its last moment is late each time
that the work before it takes longer than usual.
Classes bound the auction. A ``critical`` bid that would lose value by waiting for another goes before it;
``background`` and probe work starts only when nobody else bids. Others cut in on a continuation only if they end before
its latest start. Pure; knows no queue and no policy.
"""

from __future__ import annotations

from typing import List, Mapping, Sequence

from edgeserve.sched.policy_api.policy import Bid

ORDERS_MAX = 4
"""Bids whose orders are all compared, 32 values at most. Of more the winner of each comparison of two meets the next,
so that a lane for which twenty apps bid does not stand idle over the choice."""

PASSED_SLOS = 20
"""An app that was given up for so many times its deadline goes before others of its class and value. So no app waits
for ever because its batches are less full; each costs the lane what one request takes in that time."""


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


def overdue(bids: Sequence[Bid], passed_ns: Mapping[str, int], first: Bid, now_ns: int, then_ns: int) -> Bid:
    """The bid whose app was given up for the most of its deadlines, if these are :data:`PASSED_SLOS` and it counts as
    much as ``first``, which else starts. Its work, or the next step of it, makes no critical bid late, which would
    start at ``then_ns`` behind no other. ``passed_ns``: by app, since when (``Board.passed_ns``). O(jobs)."""
    most, found = float(PASSED_SLOS), first
    for bid in bids:
        for job in bid.jobs if bid.klass == first.klass else ():
            request = job.request
            slo_ns = max(1, request.deadline_ns - request.arrival_ns)
            slos = (now_ns - passed_ns.get(request.app.name, now_ns)) / slo_ns
            if slos >= most and request.value >= first.jobs[0].request.value:
                most, found = slos, bid
    if found is not first:
        takes_ns = found.expected_ns // (found.steps_max or 1)
        for bid in bids:
            if bid.klass == "critical" and bid.utility.value(then_ns + takes_ns) < bid.utility.value(then_ns):
                return first
    return found


def _first(bids: Sequence[Bid], at_ns: int, dispatch_gap_ns: int) -> Bid:
    """The bid that begins the best order, of those that no other keeps from going first (of all if they all do)."""
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
    """For each bid, what all lose by waiting in the best order that begins with it.

    When a bid starts depends only on *which* others ran before it, so the best order of the rest follows from those of
    smaller rests: O(n * 2**n) values, not n!. A set of bids is a number, one bit for each. (Losses, not what is
    delivered: where nothing is lost they are zero exactly, so that a tie is one whatever the sums round to. A bid's
    next one starts when its work ends, not when all its later stages have: there is an auction then too. Turns of one
    batch are no such stages: each of them would bid the worth of whole answers.)
    """
    count = len(bids)
    took_ns = [0]  # by the set that has run
    for done in range(1, 1 << count):
        last = done.bit_length() - 1
        took_ns.append(took_ns[done ^ 1 << last] + _slow_ns(bids[last]) + dispatch_gap_ns)
    least = [0.0] * (1 << count)  # by the set that has run: the least that the others lose
    for done in range((1 << count) - 2, 0, -1):
        starts_ns = at_ns + took_ns[done]
        least[done] = min(
            [
                now[index] - bids[index].utility.value(starts_ns + bids[index].spread_ns) + least[done | 1 << index]
                for index in range(count)
                if not done >> index & 1
            ]
        )
    return [least[1 << index] for index in range(count)]


def _slow_ns(bid: Bid) -> int:
    """The time for which a bid delivers its value: of a batch that comes back before, of all its turns."""
    return max(bid.expected_ns, bid.whole_ns) + bid.spread_ns


def _bars(a: Bid, b: Bid, at_ns: int, then_ns: int) -> bool:
    """Whether ``a`` keeps ``b`` from going first at ``at_ns``, whatever they are worth. ``then_ns`` is one dispatch gap
    later: what ``b`` takes after that passes before ``a`` starts."""
    if a.klass != b.klass and "critical" in (a.klass, b.klass):
        critical, other = (a, b) if a.klass == "critical" else (b, a)
        if critical.utility.value(then_ns + other.expected_ns) < critical.utility.value(at_ns):
            return critical is a
    return a is not b and a.latest_start_ns is not None and then_ns + b.expected_ns > a.latest_start_ns >= at_ns
