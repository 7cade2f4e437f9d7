"""Lengths out of batches: what the longest of some members tells of each."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from edgeserve.sched.policies.dynamic.evidence import (
    BATCHES_LEN,
    Batches,
    BatchRow,
    Longest,
    expected_longest_ns,
    learn_lengths,
)

MS = 1e6
TRUE = {"short": (10, 30), "long": (20, 100)}  # uniform, in ms


def batches(count, size, seed="evidence", names=("short", "long")):
    rng = random.Random(f"{seed}/{count}/{size}")
    found = []
    for _ in range(count):
        members = [rng.choice(names) for _ in range(size)]
        longest = max(rng.uniform(*TRUE[name]) for name in members)
        found.append(Longest(longest * MS, {name: members.count(name) for name in set(members)}))
    return found


def mean_ms(points, cdf):
    return float(np.sum(np.diff(np.concatenate(([0.0], cdf))) * points)) / MS


@pytest.mark.parametrize("size", [1, 2])
def test_batches_alone_tell_the_lengths_of_their_members(size):
    points, classes = learn_lengths(batches(128, size), {}, 5 * MS)
    assert mean_ms(points, classes["short"]) == pytest.approx(20, rel=0.4)
    assert mean_ms(points, classes["long"]) == pytest.approx(60, rel=0.2)


def test_lengths_alone_tell_as_much_without_any_batch():
    points, classes = learn_lengths([], {"short": [20 * MS] * 30, "long": [60 * MS] * 30}, 40 * MS)
    assert {name: cdf[-1] for name, cdf in classes.items()} == pytest.approx({"short": 1.0, "long": 1.0})
    assert mean_ms(points, classes["short"]) == pytest.approx(20, rel=0.25)
    assert mean_ms(points, classes["long"]) == pytest.approx(60, rel=0.2)


def test_where_the_short_ones_are_hardly_ever_the_longest_they_are_still_known_to_be_shorter():
    points, classes = learn_lengths(batches(128, 4), {}, 5 * MS)
    assert mean_ms(points, classes["long"]) == pytest.approx(60, rel=0.3)
    assert mean_ms(points, classes["short"]) < 0.8 * mean_ms(points, classes["long"])


def test_the_longest_of_a_batch_is_not_taken_for_the_length_of_each():
    observed = batches(128, 8, names=("long",))
    points, classes = learn_lengths(observed, {}, 60 * MS)
    assert np.mean([item.length_ns for item in observed]) > 88 * MS
    assert mean_ms(points, classes["long"]) < 75


def test_what_was_learnt_predicts_other_batches():
    points, classes = learn_lengths(batches(128, 4), {}, 5 * MS)
    others = batches(400, 4, "others")
    expected = expected_longest_ns(points, classes, others)
    assert np.mean(expected) == pytest.approx(np.mean([item.length_ns for item in others]), rel=0.05)


def test_times_alone_count_more_the_more_there_are():
    observed = batches(32, 4, names=("long",))  # a law that overstates: say, of another fixed part
    alone = {"long": [5 * MS] * 400}
    points, classes = learn_lengths(observed, alone, 60 * MS)
    assert mean_ms(points, classes["long"]) < 15
    points, classes = learn_lengths(observed, {"long": [5 * MS] * 4}, 60 * MS)
    assert mean_ms(points, classes["long"]) > 40


def test_a_class_that_was_hardly_seen_counts_as_all_others_do():
    points, classes = learn_lengths([*batches(100, 1, names=("long",)), Longest(10 * MS, {"short": 1})], {}, 5 * MS)
    assert mean_ms(points, classes["short"]) > 0.6 * mean_ms(points, classes["long"])


def test_distribution_functions_rise_to_one_whatever_was_measured():
    wild = [
        Longest(length, {"a": 1 + index % 8, "b": index % 3})
        for index, length in enumerate([0.0, 0.0, 1.0, 1e-3, 1e15, 5.0, 5.0] * 5)
    ]
    for observed, alone, usual in ((wild, {"a": [-3.0, 0.0, 1e15]}, 0.0), ([], {}, 7.0), ([], {"c": [2.0]}, -1.0)):
        points, classes = learn_lengths(observed, alone, usual)
        assert np.all(np.diff(points) > 0)
        for cdf in classes.values():
            assert np.all(np.diff(cdf) >= -1e-12) and cdf[-1] == pytest.approx(1.0)


def test_only_the_last_batches_are_remembered():
    known = Batches()
    for at in range(2 * BATCHES_LEN):
        known.add(BatchRow(at, 1, (("a", None),), 1.0))
    assert len(known.rows) == BATCHES_LEN
    known.forget(2 * BATCHES_LEN - 3)
    assert [row.at_ns for row in known.rows] == [2 * BATCHES_LEN - 3, 2 * BATCHES_LEN - 2, 2 * BATCHES_LEN - 1]


def test_before_anything_was_measured_lengths_are_lognormal_around_the_usual_one():
    points, classes = learn_lengths([], {"a": []}, 7.0)
    deviations = [-3.0 + 6.0 * index / 32 for index in range(33)]
    assert points.tolist() == pytest.approx([7.0 * math.exp(0.7 * deviation) for deviation in deviations])
    masses = [math.exp(-(deviation**2) / 2) for deviation in deviations]
    assert classes["a"].tolist() == pytest.approx([sum(masses[:upto]) / sum(masses) for upto in range(1, 34)])
    assert learn_lengths([], {"a": []}, 0.25)[0].tolist() == pytest.approx((points / 7.0).tolist()), "one at least"


def share_at(points, cdf, length):
    """The share of requests at one of the points."""
    place = points.tolist().index(length)
    return cdf[place] - (cdf[place - 1] if place else 0.0)


@pytest.mark.parametrize("as_batches", [False, True])
def test_what_is_assumed_counts_as_two_requests_and_all_classes_as_eight_beside_one(as_batches):
    alone = {"a": [3.0] * 6, "b": [500.0] * 12}  # neither is one of the assumed lengths
    observed = [Longest(length, {name: 1}) for name, lengths in alone.items() for length in lengths]
    points, classes = learn_lengths(observed, {}, 40.0) if as_batches else learn_lengths([], alone, 40.0)
    of_any = {3.0: 6 / (2 + 18), 500.0: 12 / (2 + 18)}
    for name, length in (("a", 3.0), ("b", 500.0)):
        count = len(alone[name])
        own, other = length, 503.0 - length
        assert share_at(points, classes[name], own) == pytest.approx((8 * of_any[own] + count) / (8 + count))
        assert share_at(points, classes[name], other) == pytest.approx(8 * of_any[other] / (8 + count))


def maximised(prior, observed):
    """Expectation and maximisation as the module says, a batch and a member at a time. ``prior``: class -> requests at
    each place; ``observed``: the place of a maximum and the members of each class. No chance is nothing at all."""
    shares = {name: [value / sum(row) for value in row] for name, row in prior.items()}
    for _ in range(12):
        found = {name: list(row) for name, row in prior.items()}
        for place, members in observed:
            below = {name: max(sum(shares[name][: place + 1]), 1e-12) for name in members}
            chance = {name: count * max(shares[name][place], 1e-12) / below[name] for name, count in members.items()}
            for name, count in members.items():
                longest = chance[name] / sum(chance.values())
                found[name][place] += longest
                for lower in range(place + 1):
                    found[name][lower] += (count - longest) * shares[name][lower] / below[name]
        shares = {name: [value / sum(row) for value in row] for name, row in found.items()}
    return shares


def test_batches_of_several_classes_are_what_twelve_rounds_make_of_them():
    alone = {"a": [25.0, 25.0, 25.0], "b": [70.0]}
    observed = [
        Longest(90.0, {"a": 2, "b": 1}),
        Longest(30.0, {"a": 4}),
        Longest(60.0, {"a": 1, "b": 3}),
        Longest(30.0, {"a": 1}),
        Longest(75.0, {"b": 2}),
    ]
    points, classes = learn_lengths(observed, alone, 40.0)
    deviations = np.linspace(-3.0, 3.0, 33)
    weights = dict(zip((40.0 * np.exp(0.7 * deviations)).tolist(), np.exp(-(deviations**2) / 2).tolist()))
    assumed = [weights.get(point, 0.0) / sum(weights.values()) for point in points.tolist()]
    counted = {name: [float(values.count(point)) for point in points.tolist()] for name, values in alone.items()}
    places = [(points.tolist().index(item.length_ns), item.members) for item in observed]
    any_prior = [2.0 * part + sum(row[place] for row in counted.values()) for place, part in enumerate(assumed)]
    pooled = maximised({"any": any_prior}, [(place, {"any": sum(members.values())}) for place, members in places])
    expected = maximised(
        {name: [8.0 * part + count for part, count in zip(pooled["any"], row)] for name, row in counted.items()}, places
    )
    for name, shares in expected.items():
        assert classes[name].tolist() == pytest.approx(np.cumsum(shares).tolist())


def test_the_longest_of_a_batch_is_expected_by_the_product_of_its_members_distributions():
    points = np.array([10.0, 20.0, 40.0])
    classes = {"a": np.array([0.5, 0.5, 1.0]), "b": np.array([0.0, 0.25, 1.0])}
    expected = expected_longest_ns(
        points,
        classes,
        [Longest(0.0, {"a": 1}), Longest(0.0, {"b": 1}), Longest(0.0, {"a": 2}), Longest(0.0, {"a": 1, "b": 2})],
    )
    assert expected == pytest.approx(
        [0.5 * 10 + 0.5 * 30, 0.25 * 15 + 0.75 * 30, 0.25 * 10 + 0.75 * 30, (15 + 31 * 30) / 32]
    )


def test_batches_from_just_then_on_are_kept():
    known = Batches()
    for at in (5, 6, 7):
        known.add(BatchRow(at, 1, (), 1.0))
    known.forget(6)
    assert [row.at_ns for row in known.rows] == [6, 7]
    known.forget(8)
    assert not known.rows
    for _ in range(129):
        known.add(BatchRow(9, 1, (), 1.0))
    assert len(known.rows) == 128
