"""Which of the waiting requests make the next cohort: the largest of the tightest that surely end in time.

Pure. ``dues`` rise; ``end_of`` says when a cohort would be over, margin included. A request with more time stays for
the next cohort. A request with too little time for this cohort stays too, and is dropped only when it would be late
alone.

Classes go before values: the most urgent class chooses as if it were alone, and of the others as many join as make
nobody of it late. Within a class the value counts.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

from edgeserve.sched.policies.pard_local.remaining_work import Left, total_of

NOTHING = Left([], [])

EPSILON = 1e-9
"""Of a value: sums of the same values in another order differ by less."""


ALMOST_PERCENT = 99
"""Cohorts of at most half as many that serve this much per time go instead: equally good ones but for the noise of the
estimates."""


class Trial(NamedTuple):
    """A cohort of some number: the lane time that it costs the others, and when its members are answered: (how many,
    when) for each batch of the last module, in their order."""

    time_ns: int
    answers: Sequence[Tuple[int, int]]


class Choice(NamedTuple):
    """The positions of a cohort's members, and the lane time that it costs the others."""

    members: Sequence[int]
    time_ns: int


class Candidate(NamedTuple):
    """One waiting request: when it is due, what it has left per node, what that costs in lane time (0: the price does
    not count for it), what it is worth, and its class (0 is the most urgent)."""

    due_ns: int
    left: Left
    cost_ns: int
    value: float
    rank: int = 0


def equal_cohort(dues: Sequence[int], trial_of: Callable[[int], Trial | None]) -> Choice:
    """Who goes among requests that all cost the same; nobody when none can make it.

    The number that is served most per time, b / C(b), among those for which enough requests are due no earlier than
    the batches that answer them end. The tightest that can make it go, the tightest of these in the first batch. Where
    half as many or fewer are served as fast they go: what could follow them is decided when they are over.
    ``trial_of`` is None for a number that must not be. O(m log m) for m requests, times the batches of the last module.
    """
    feasible: List[Tuple[int, Trial]] = []
    for count in range(1, len(dues) + 1):
        trial = trial_of(count)
        if trial is None:
            continue
        if trial.answers[-1][1] > dues[-1]:
            break
        if _tightest(dues, trial.answers):
            feasible.append((count, trial))
    if not feasible:
        return Choice((), 1)
    _, best = feasible[best_number([(count, trial.time_ns) for count, trial in feasible])]
    members = [place for first, size in _tightest(dues, best.answers) for place in range(first, first + size)]
    return Choice(members, best.time_ns)


def best_number(sizes: Sequence[Tuple[int, int]]) -> int:
    """The position of the (number, time) that serves most per time, of equals the larger number; of one that serves
    almost as much with half the number or fewer, as long as there is such a one. Numbers rise."""
    best, best_time_ns, found = 0, 1, 0
    for index, (count, time_ns) in enumerate(sizes):
        if count * best_time_ns >= best * time_ns:
            best, best_time_ns, found = count, time_ns, index
    limit = best
    for index in range(found - 1, -1, -1):
        count, time_ns = sizes[index]
        if count * 2 <= limit and count * best_time_ns * 100 >= best * time_ns * ALMOST_PERCENT:
            limit, found = count, index
    return found


def _tightest(dues: Sequence[int], answers: Sequence[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """The tightest requests that are answered in time, so many by the end of each batch: for each batch the position of
    the first and how many follow each other; or none."""
    found: List[Tuple[int, int]] = []
    place = 0
    for size, ends_ns in answers:
        place = max(place, bisect_left(dues, ends_ns))
        if place + size > len(dues):
            return []
        found.append((place, size))
        place += size
    return found


def ranked_cohort(rows: Sequence[Candidate], from_ns: int, end_of: Callable[[int], int | None]) -> List[int]:
    """Positions of the members, among requests of equal work that differ in class or value; as :func:`equal_cohort`
    where they do not. O(m) ends, O(m * members) steps."""
    chosen: List[int] = []
    for rank in sorted({row.rank for row in rows}):
        layer = [index for index, row in enumerate(rows) if row.rank == rank]
        chosen += _joining(rows, layer, chosen, from_ns, end_of)
    return sorted(chosen)


def _joining(
    rows: Sequence[Candidate],
    layer: Sequence[int],
    chosen: Sequence[int],
    from_ns: int,
    end_of: Callable[[int], int | None],
) -> List[int]:
    """The requests of one class that join the ``chosen`` ones without making any of these late.

    The cohort gets the number of members that serves most requests per time, as among equals, and the most valuable of
    the requests that can be in time join. Another number is compared by the requests that it adds: each of these counts
    its own value, all other requests count the mean value. (With every request counted by its own value, a few valuable
    ones left at once in very small cohorts: more than twice as many requests were lost at 1.2 times the capacity with
    every fifth request worth five.)
    """
    have = len(chosen)
    dues = [rows[index].due_ns for index in layer]
    limit_ns = min([rows[index].due_ns for index in chosen] + dues[-1:])
    ends: Dict[int, int] = {}  # how many may join -> when all would end
    sizes: List[Tuple[int, int]] = []
    if have:
        sizes.append((have, max(1, (end_of(have) or from_ns) - from_ns)))
    for count in range(1, len(layer) + 1):
        ends_ns = end_of(have + count)
        if ends_ns is None:
            continue
        if ends_ns > limit_ns:
            break
        time_ns = max(1, ends_ns - from_ns)
        if len(dues) - bisect_left(dues, ends_ns) >= count:
            ends[count] = ends_ns
            sizes.append((have + count, time_ns))
    full = sizes[best_number(sizes)][0] - have if sizes else 0
    if not full:
        return []
    by_value = sorted(layer, key=lambda index: (-rows[index].value, index))
    mean = sum([rows[index].value for index in layer]) / len(layer)
    found: List[int] = []
    best_score = -inf
    for count, ends_ns in ends.items():
        members = [index for index in by_value if rows[index].due_ns >= ends_ns][:count]
        score = have * mean + sum([rows[index].value if rows[index].due_ns < ends[full] else mean for index in members])
        score /= max(1, ends_ns - from_ns)
        if score > best_score or (score == best_score and count <= full):
            best_score, found = score, members
    return found


def unequal_cohort(
    rows: Sequence[Candidate],
    from_ns: int,
    end_of: Callable[[Left, int], int | None],
    price: float = 0.0,
    count_max: int = 2**31,
) -> List[int]:
    """Positions of the members, among requests whose work differs.

    For each request as the tightest, those due no earlier are taken as long as all end in time: the most urgent class
    first, and in it the most valuable, of equal ones in order of their deadlines without a ``price``; in order of
    their cost for their value with one. Without a price the set of most value wins, of equal ones the quickest. (Most
    work done per time, which is fair to the dear, lost 20 % where this lost 11: lognormal work, 1.3 times the
    capacity.) With a price (value per nanosecond of lane time, section 9.3 of the specification) the set with most
    value less the price of its time wins, and nobody who costs more than he is worth is taken. Value of a more urgent
    class goes before all that. ``end_of`` is given the limit too: an end beyond it need not be exact. O(m^2) ends.
    """
    order = sorted(range(len(rows)), key=lambda index: (rows[index].rank, -rows[index].value, index))
    if price > 0:
        order = [index for index in order if not rows[index].cost_ns or rows[index].value > price * rows[index].cost_ns]
        order.sort(
            key=lambda index: (rows[index].rank, rows[index].cost_ns and rows[index].cost_ns / rows[index].value, index)
        )
    best: Tuple[float, ...] | None = None
    urgent_ranks = sorted({row.rank for row in rows})[:-1]
    found: List[int] = []
    beaten, epsilon = -inf, EPSILON * sum([abs(row.value) for row in rows], 0.0)
    tightest = sorted(order)
    dues, lefts = [row.due_ns for row in rows], [row.left for row in rows]
    for start in tightest:
        limit_ns = rows[start].due_ns
        taken: List[int] = []
        total = NOTHING
        value, ends_ns = 0.0, from_ns
        eligible = [index for index in order if dues[index] >= limit_ns and (price > 0 or index >= start)]
        possible = sum([max(0.0, rows[index].value) for index in eligible], 0.0)
        for index in eligible:
            if possible < beaten or len(taken) == count_max:
                break  # even with all the others it would be worth less than the best so far
            more = total_of([total, lefts[index]], len(lefts[index].jobs))
            end = end_of(more, limit_ns)
            if end is not None and end <= limit_ns:
                taken.append(index)
                total, ends_ns = more, end
                value += rows[index].value
            else:
                possible -= max(0.0, rows[index].value)
        if taken and possible >= beaten:
            time_ns = max(1, ends_ns - from_ns)
            urgent = [sum([rows[index].value for index in taken if rows[index].rank == rank]) for rank in urgent_ranks]
            score = (*urgent, value - price * time_ns, float(-time_ns))
            if best is None or score > best:
                best, found = score, sorted(taken)
                if not urgent_ranks:
                    beaten = score[0] - epsilon
    return found


_DEVIATIONS_MILLI = (0, 126, 253, 385, 524, 674, 842, 1036, 1282, 1645)
"""Of the normal distribution: how many thousandths of a deviation lie below a chance of 50, 55, ... 95 %."""


def deviations_milli(left: int, whole: int) -> int:
    """By how many thousandths of a standard deviation what is left must fit, so that going on is worth it: the chance
    of being in time is to be no less than the share ``left / whole`` that is still to be paid, from 50 to 95 %. (Less
    than an even chance is never enough: where times miss by what one request's work is, its next batch will miss too.)
    """
    return _DEVIATIONS_MILLI[min(9, max(0, 20 * left // max(1, whole) - 10))]
