"""Who goes, against the rules of ``choice.py`` written down once more, without any short cut, in exact fractions."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from statistics import NormalDist

import pytest
from exact_device import Device, ask, chain, ends_of, together
from for_each import for_each

from edgeserve.sched.policies.pard_local.choice import (
    Candidate,
    Trial,
    deviations_milli,
    equal_cohort,
    ranked_cohort,
    unequal_cohort,
)
from edgeserve.sched.policies.pard_local.remaining_work import Left


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
            draw.choice([0, 2, 5, 9]),
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
    """The number with the best rate, the largest of equals; of one at most half as large that is almost as good."""
    found = limit = max(rates, key=lambda count: (rates[count], count))
    for count in sorted(rates, reverse=True):
        if 2 * count <= limit and rates[count] >= rates[found] * Fraction(99, 100):
            limit = count
    return limit


@for_each(lambda: range(200))
def test_of_equals_the_number_that_is_served_most_per_time(seed):
    draw = random.Random(f"equal {seed}")
    dues = [row.due_ns for row in candidates(draw, number=10)]
    end_of, from_ns = ends_by_number(draw), draw.randrange(0, 3)
    assert list(equal_cohort(dues, together(end_of, from_ns)).members) == equal_by_hand(dues, from_ns, end_of)


@for_each(lambda: range(100))
def test_those_that_are_answered_first_are_the_tightest_that_can_make_it(seed):
    draw = random.Random(f"answers {seed}")
    dues = sorted(draw.randrange(1, 40) for _ in range(draw.randrange(1, 9)))
    each, limit = draw.randrange(1, 8), draw.randrange(1, 4)

    def trial_of(count):  # batches of at most ``limit``, the smaller last
        sizes = [limit] * (count // limit) + [count % limit] * (count % limit > 0)
        ends = list(itertools.accumulate(2 + each * size for size in sizes))
        return Trial(ends[-1], list(zip(sizes, ends)))

    choice = equal_cohort(dues, trial_of)
    feasible = {}
    for count in range(1, len(dues) + 1):
        ends = [end for size, end in trial_of(count).answers for _ in range(size)]
        sets = [
            members
            for members in itertools.combinations(range(len(dues)), count)
            if all(dues[index] >= end for index, end in zip(members, ends))
        ]
        if sets:
            feasible[count] = min(sets)
    assert tuple(choice.members) == (feasible[len(choice.members)] if feasible else ())
    rates = {count: Fraction(count, trial_of(count).time_ns) for count in feasible}
    assert len(choice.members) == (by_rate(rates) if rates else 0)


def ranked_by_hand(rows, from_ns, end_of):
    chosen = []
    for rank in sorted({row.rank for row in rows}):
        layer = [index for index, row in enumerate(rows) if row.rank == rank]
        limit = min([rows[index].due_ns for index in chosen], default=10**9)
        ends = {}
        for count in range(1, len(layer) + 1):
            end = end_of(len(chosen) + count)
            if end is not None and end <= limit and sum(rows[index].due_ns >= end for index in layer) >= count:
                ends[count] = end
        rates = {count: Fraction(len(chosen) + count, max(1, end - from_ns)) for count, end in ends.items()}
        if chosen:
            rates[0] = Fraction(len(chosen), max(1, (end_of(len(chosen)) or from_ns) - from_ns))
        full = by_rate({len(chosen) + count: rate for count, rate in rates.items()}) - len(chosen) if rates else 0
        if not full:
            continue
        mean = Fraction(sum(Fraction(rows[index].value) for index in layer), len(layer))
        scores = {}
        for count, end in ends.items():
            able = sorted(
                [index for index in layer if rows[index].due_ns >= end], key=lambda index: (-rows[index].value, index)
            )[:count]
            value = sum(Fraction(rows[index].value) if rows[index].due_ns < ends[full] else mean for index in able)
            scores[count] = ((len(chosen) * mean + value) / max(1, end - from_ns), able)
        best = max(score for score, _ in scores.values())
        equal = [count for count, (score, _) in scores.items() if score == best]
        chosen += scores[max([count for count in equal if count <= full], default=equal[0])][1]
    return sorted(chosen)


@for_each(lambda: range(300))
def test_of_equal_work_classes_go_before_values(seed):
    draw = random.Random(f"ranked {seed}")
    rows = candidates(draw, values=(840.0, 1680.0, 3360.0), number=8)  # exact means
    end_of, from_ns = ends_by_number(draw), draw.randrange(0, 3)
    assert ranked_cohort(rows, from_ns, end_of) == ranked_by_hand(rows, from_ns, end_of)


def unequal_by_hand(rows, from_ns, end_of, price):
    ranks = sorted({row.rank for row in rows})
    able = [index for index, row in enumerate(rows) if not price or not row.cost_ns or row.value > price * row.cost_ns]
    best = None
    for start in able:

        def turn(index):
            row = rows[index]
            return (row.rank, Fraction(row.cost_ns) / Fraction(row.value) if price else -row.value, index)

        taken, total, end = [], [0, 0], from_ns
        for index in sorted(
            [index for index in able if rows[index].due_ns >= rows[start].due_ns and (price or index >= start)],
            key=turn,
        ):
            more = [have + item for have, item in zip(total, rows[index].left.jobs)]
            at = end_of(Left(more, [0, 0]))
            if at is not None and at <= rows[start].due_ns:
                taken, total, end = [*taken, index], more, at
        if taken:
            urgent = [sum(rows[index].value for index in taken if rows[index].rank == rank) for rank in ranks[:-1]]
            value, time = sum(rows[index].value for index in taken), max(1, end - from_ns)
            score = (*urgent, value - price * time, -time)
            if best is None or score > best[0]:
                best = (score, sorted(taken))
    return best[1] if best else []


@for_each(lambda: itertools.product(range(100), (0.0, 0.25, 0.5)))
def test_of_unequal_work_the_set_of_most_value(drawn):
    seed, price = drawn
    draw = random.Random(f"unequal {seed} {price}")
    rows = candidates(draw)
    from_ns, forbidden = draw.randrange(0, 3), draw.randrange(2, 20)

    def end_of(left):
        return None if sum(left.jobs) == 1000 * forbidden else 1 + (2 * left.jobs[0] + 3 * left.jobs[1]) // 1000

    found = unequal_cohort(rows, from_ns, lambda left, limit_ns: end_of(left), price)
    assert found == unequal_by_hand(rows, from_ns, end_of, price)


def test_of_sets_of_equal_value_the_quicker_goes():
    assert unequal_cohort(
        [Candidate(18, Left([3000], [0]), 0, 1.0), Candidate(40, Left([1000], [0]), 0, 1.0)], 0, ends_of
    ) == [1]
    assert unequal_cohort(
        [Candidate(10, Left([1000], [0]), 0, 1.0), Candidate(40, Left([3000], [0]), 0, 1.0)], 0, ends_of
    ) == [0]
    assert unequal_cohort(
        [Candidate(18, Left([3000], [0]), 0, 1.0), Candidate(40, Left([3000], [0]), 0, 1.0)], 0, ends_of
    ) == [0]


@pytest.mark.parametrize("percent", range(50, 100, 5))
def test_who_goes_on_needs_the_chance_of_its_share_of_the_normal_distribution(percent):
    needed = round(1000 * NormalDist().inv_cdf(percent / 100))
    assert deviations_milli(percent, 100) == deviations_milli(percent * 10 + 49, 1000) == needed
    assert deviations_milli(percent * 10 - 1, 1000) < max(1, needed)


def test_of_unequal_work_two_with_time_go_rather_than_a_tight_dear_one():
    device = Device(chain())
    device.ask(ask(9, 100))
    device.ask(ask(1, 28, hints={"a.work": 5.0}), ask(2, 60, hints={"a.work": 1.0}), ask(3, 60))
    device.advance(10)  # the first would end at 28 if it went alone
    assert device.batches[-1] == (10.0, "a", [2, 3])
