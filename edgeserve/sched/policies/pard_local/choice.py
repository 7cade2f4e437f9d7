"""Which of the waiting requests make the next cohort: as much value as can be in time, the quickest of equal sets.

Pure. A request with more time stays for the next cohort. A request with too little time for this cohort stays too, and
is dropped only when it would be late alone. Classes go before values: the most urgent class chooses as if it were
alone, and of the others as many join as make none of it late.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from edgeserve.sched.plan.remaining_work import Left, total_of
from edgeserve.sched.policy_api.budget import Budget

EPSILON = 1e-9
"""The least value that a request counts with."""


class Trial(NamedTuple):
    """A cohort on trial: the lane time that it takes from others, and when its members are answered, in their order
    (one time where all are answered together)."""

    time_ns: int
    answers: Sequence[int]


class Candidate(NamedTuple):
    """One waiting request: when it is due, what it has left, what that takes in full batches, what it is worth, and its
    class (0 is the most urgent)."""

    due_ns: int
    left: Left
    cost_ns: int
    value: float
    rank: int = 0


TrialOf = Callable[[Left, int], "Trial | None"]
"""The trial of what a set of requests has left; None: it must not begin. It is given a time by which the set must end:
a later end need not be exact."""


def equal_cohort(
    rows: Sequence[Tuple[Any, ...]], trial_of: Callable[[int, int], Trial | None], budget: Budget
) -> List[int]:
    """Positions of the members among requests that all cost the same and are worth the same, in O(m log m) for m
    requests. ``rows`` rise, each begins with when a request is due; ``trial_of`` is asked for numbers of requests, as
    long as something is left of the ``budget``, with the time in which so many must be served to be considered.

    Of the numbers that can be in time the one goes that is served most per time, of equals the larger. The tightest
    requests that can make it go, the tightest of these in the first batch that answers.
    """
    best, best_time_ns = 0, 1
    found: List[int] = []
    for count in range(1, len(rows) + 1):
        if budget.left <= 0:
            break
        trial = trial_of(count, count * best_time_ns // best if best else 2**62)
        if trial is None:
            continue
        if trial.answers[-1] > rows[-1][0]:
            break
        if count * best_time_ns >= best * trial.time_ns:
            members = _tightest(rows, count, trial.answers)
            if members:
                best, best_time_ns, found = count, trial.time_ns, members
    return found


def _tightest(rows: Sequence[Tuple[Any, ...]], count: int, answers: Sequence[int]) -> List[int]:
    """The positions of so many of the tightest requests that are answered in time; or none."""
    if len(answers) < count:
        answers = [answers[-1]] * count
    found: List[int] = []
    place, before_ns = 0, -1
    for ends_ns in answers:
        if ends_ns != before_ns:
            place, before_ns = max(place, bisect_left(rows, (ends_ns,))), ends_ns
        if place == len(rows):
            return []
        found.append(place)
        place += 1
    return found


def unequal_cohort(rows: Sequence[Candidate], trial_of: TrialOf) -> List[int]:
    """Positions of the members, among requests that differ in work, value or class; their deadlines rise.

    For each request as the tightest, those due no earlier join as long as all are in time, the most urgent class first
    and in it those that bring most value per cost; of all these sets the one of most value goes, of equal ones the
    quickest. (Most value per time lost 18 % where this lost 7, and 10 where it lost 1: lognormal work, 1.3 and 1.0
    times the capacity. The cheap left at once in small cohorts.) Value of a more urgent class goes before all that.
    O(m^2) trials.
    """
    order = sorted(
        range(len(rows)),
        key=lambda index: (rows[index].rank, rows[index].cost_ns / max(EPSILON, rows[index].value), index),
    )
    urgent = sorted({row.rank for row in rows})[:-1]
    best: Tuple[float, ...] = ()
    found: List[int] = []
    for tightest in rows:
        limit_ns, misfit = tightest.due_ns, -1
        possible = sum([row.value for row in rows if row.due_ns >= limit_ns], 0.0)
        if best and not urgent and possible < best[0] - EPSILON:
            break  # those that are left are worth less together
        taken: List[int] = []
        total, value = Left([0] * len(tightest.left.jobs), [0] * len(tightest.left.jobs)), 0.0
        for index in order:
            row = rows[index]
            if row.due_ns < limit_ns or row.rank == misfit:
                continue
            more = total_of([total, row.left], len(row.left.jobs))
            trial = trial_of(more, limit_ns)
            if trial is None or trial.answers[-1] > limit_ns:
                misfit = row.rank  # those behind it in its class take longer
                continue
            taken.append(index)
            total, value = more, value + row.value
            values = [sum([rows[member].value for member in taken if rows[member].rank == rank]) for rank in urgent]
            score = (*values, value, -trial.time_ns)
            if score > best:
                best, found = score, sorted(taken)
    return found
