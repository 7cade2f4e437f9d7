"""Which of the waiting requests make the next cohort: the largest of the tightest that surely end in time.

Pure. ``dues`` rise; ``end_of`` says when a cohort would be over, margin included. Whoever has more time stays for the
next cohort; whoever has too little for this one stays too, and is dropped only when it could not make it alone.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Callable, List, NamedTuple, Sequence, Tuple


class Candidate(NamedTuple):
    """One waiting request: when it is due, what it has left per node, what that costs in lane time (0: the price does
    not count for it), what it is worth."""

    due_ns: int
    left: Sequence[int]
    cost_ns: int
    value: float


def equal_cohort(dues: Sequence[int], from_ns: int, end_of: Callable[[int], int | None]) -> Tuple[int, int]:
    """(position of the first member, how many) among requests that all cost the same; (0, 0) when none can make it.

    The number b that is served most per time, b / C(b), among those for which b requests are due no earlier than the
    end; of equal ones the larger. The b tightest of them go. ``end_of`` is None for a number that must not be.
    O(m log m) for m requests.
    """
    best, best_time_ns, found = 0, 1, (0, 0)
    for count in range(1, len(dues) + 1):
        ends_ns = end_of(count)
        if ends_ns is None:
            continue
        if ends_ns > dues[-1]:
            break
        first = bisect_left(dues, ends_ns)
        time_ns = max(1, ends_ns - from_ns)
        if len(dues) - first >= count and count * best_time_ns >= best * time_ns:
            best, best_time_ns, found = count, time_ns, (first, count)
    return found


def unequal_cohort(rows: Sequence[Candidate], from_ns: int, end_of: Callable[[Sequence[int]], int | None],
                   price: float = 0.0) -> List[int]:
    """Positions of the members, among requests whose work differs.

    For each request as the tightest, those due no earlier are taken as long as all end in time: in order of their
    deadlines without a ``price``, of their cost with one. Without a price the set of most value wins, of equal ones
    the quickest. (Most work done per time, which is fair to the dear, lost 20 % where this lost 11: lognormal work,
    1.3 times the capacity.) With a price (value per nanosecond of lane time, section 9.3 of the specification) the set
    with most value less the price of its time wins, and nobody who costs more than he is worth is taken. O(m^2) ends.
    """
    order = list(range(len(rows)))
    if price > 0:
        order = [index for index in order if not rows[index].cost_ns or rows[index].value > price * rows[index].cost_ns]
        order.sort(key=lambda index: (rows[index].cost_ns and rows[index].cost_ns / rows[index].value, index))
    best: Tuple[float, int] | None = None
    found: List[int] = []
    tightest = sorted(order)
    for start in tightest:
        limit_ns = rows[start].due_ns
        taken: List[int] = []
        total: List[int] = [0] * len(rows[start].left)
        value, ends_ns = 0.0, from_ns
        for index in order:
            if rows[index].due_ns < limit_ns or (price <= 0 and index < start):
                continue
            more = [have + item for have, item in zip(total, rows[index].left)]
            end = end_of(more)
            if end is not None and end <= limit_ns:
                taken.append(index)
                total, ends_ns = more, end
                value += rows[index].value
        if taken:
            time_ns = max(1, ends_ns - from_ns)
            score = (value - price * time_ns, -time_ns)
            if best is None or score > best:
                best, found = score, taken
    return found
