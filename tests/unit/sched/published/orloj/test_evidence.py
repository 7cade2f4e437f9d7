"""Lengths out of batches: what the longest of some members tells of each."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edgeserve.sched.published.orloj.evidence import (
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
