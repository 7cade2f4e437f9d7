"""Who goes, against the rules of ``choice.py`` written down once more, without any short cut, in exact fractions."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

from exact_device import Device, ask, chain, choose_equal, together
from for_each import for_each

from edgeserve.sched.plan.remaining_work import Left, total_of
from edgeserve.sched.policies.pard_local.choice import (
    Candidate,
    Trial,
    unequal_cohort,
)


def ends_by_number(draw):
    """When a cohort of a number would end: dearer the larger, now and then forbidden."""
    at, ends = draw.randrange(0, 4), [0]
    for _ in range(12):
        at += draw.choice([0, 1, 2, 5])
        ends.append(None if draw.random() < 0.1 else at)
    return ends.__getitem__


def candidates(draw, values=(1.0, 1.0, 2.0, 5.0), ranks=(0, 1, 1, 1, 2), number=7):
    rows = [
        Candidate(
            draw.randrange(1, 30),
            Left([1000 * draw.randrange(1, 6), 1000 * draw.randrange(0, 3)], [0, 0]),
            draw.choice([1, 2, 5, 9]),
            draw.choice(values),
            draw.choice(ranks),
        )
        for _ in range(draw.randrange(1, number + 1))
    ]
    return sorted(rows, key=lambda row: row.due_ns)


def equal_by_hand(dues, from_ns, end_of):
    rates = {}
    for count in range(1, len(dues) + 1):
        end = end_of(count)
        able = [index for index, due in enumerate(dues) if end is not None and due >= end]
        if len(able) >= count:
            rate = Fraction(count, max(1, end - from_ns))
            rates[count] = (rate, list(range(able[0], able[0] + count)))
    return rates[by_rate({count: rate for count, (rate, _) in rates.items()})][1] if rates else []


def by_rate(rates):
    """The number with the best rate, the largest of equals."""
    return max(rates, key=lambda count: (rates[count], count))


@for_each(lambda: range(200))
def test_of_equals_the_number_that_is_served_most_per_time(seed):
    draw = random.Random(f"equal {seed}")
    dues = [row.due_ns for row in candidates(draw, number=10)]
    end_of, from_ns = ends_by_number(draw), draw.randrange(0, 3)
    assert choose_equal(dues, together(end_of, from_ns)) == equal_by_hand(dues, from_ns, end_of)


@for_each(lambda: range(100))
def test_those_that_are_answered_first_are_the_tightest_that_can_make_it(seed):
    draw = random.Random(f"answers {seed}")
    dues = sorted(draw.randrange(1, 40) for _ in range(draw.randrange(1, 9)))
    each, limit = draw.randrange(1, 8), draw.randrange(1, 4)

    def trial_of(count):  # batches of at most ``limit``, the smaller last
        sizes = [limit] * (count // limit) + [count % limit] * (count % limit > 0)
        ends = list(itertools.accumulate(2 + each * size for size in sizes))
        return Trial(ends[-1], [end for size, end in zip(sizes, ends) for _ in range(size)])

    choice = choose_equal(dues, trial_of)
    feasible = {}
    for count in range(1, len(dues) + 1):
        ends = trial_of(count).answers
        sets = [
            members
            for members in itertools.combinations(range(len(dues)), count)
            if all(dues[index] >= end for index, end in zip(members, ends))
        ]
        if sets:
            feasible[count] = min(sets)
    assert tuple(choice) == (feasible[len(choice)] if feasible else ())
    rates = {count: Fraction(count, trial_of(count).time_ns) for count in feasible}
    assert len(choice) == (by_rate(rates) if rates else 0)


def unequal_by_hand(rows, trial_of):
    """Every set that the rule allows."""
    ranks = sorted({row.rank for row in rows})[:-1]
    best = None
    for tightest in rows:
        taken, full = [], set()
        for index in sorted(
            range(len(rows)),
            key=lambda at: (rows[at].rank, Fraction(rows[at].cost_ns) / Fraction(rows[at].value), at),
        ):
            if rows[index].due_ns < tightest.due_ns or rows[index].rank in full:
                continue
            trial = trial_of(total_of([rows[member].left for member in [*taken, index]], 2), tightest.due_ns)
            if trial is None or trial.answers[-1] > tightest.due_ns:
                full.add(rows[index].rank)
                continue
            taken.append(index)
            urgent = [sum(rows[item].value for item in taken if rows[item].rank == rank) for rank in ranks]
            score = (*urgent, sum(rows[item].value for item in taken), -trial.time_ns)
            if best is None or score > best[0]:
                best = (score, sorted(taken))
    return best[1] if best else []


@for_each(lambda: range(300))
def test_of_unequal_work_the_set_of_most_value(seed):
    draw = random.Random(f"unequal {seed}")
    rows, forbidden = candidates(draw, values=(840.0, 1680.0, 3360.0)), draw.randrange(2, 20)

    def trial_of(left, limit_ns):
        ends_ns = 1 + (2 * left.jobs[0] + 3 * left.jobs[1]) // 1000
        return None if sum(left.jobs) == 1000 * forbidden else Trial(ends_ns, [ends_ns])

    assert unequal_cohort(rows, trial_of) == unequal_by_hand(rows, trial_of)


def test_of_unequal_work_two_with_time_go_rather_than_a_tight_dear_one():
    device = Device(chain())
    device.ask(ask(9, 100))
    device.ask(ask(1, 28, hints={"a.work": 5.0}), ask(2, 60, hints={"a.work": 1.0}), ask(3, 60))
    device.advance(10)  # the first would end at 28 if it went alone
    assert device.batches[-1] == (10.0, "a", [2, 3])
