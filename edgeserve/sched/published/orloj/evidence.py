"""What batches tell of the lengths of their members, while few times alone are known.

A batch of known members that took T had a longest member of ``m = (T - c0) / c(k)``: an observation of a maximum. The
distributions that make all observed maxima likeliest are found by expectation and maximisation: a member of a class
was the longest one with a chance in proportion to its density over its distribution function at m, else it was some
draw of its class below m. Times alone are the same with one member. So a lane that is never idle learns as well as one
that runs probes; what it knows less of are the lengths of those that are short beside the others.

Pure: arrays in, arrays out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

    Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

ROUNDS = 12
"""Rounds of expectation and maximisation."""

SPREAD = 0.7
"""Deviation of the logarithm of the lengths that is assumed before anything was measured: half of them are within a
factor of 1.6 of the middle."""

PRIOR_POINTS = 33
"""Points at which the assumed lengths are kept."""

PRIOR_RANGE = 3.0
"""How far they reach to each side, in deviations."""

ANY_WEIGHT = 2.0
"""Requests that the assumed lengths count as, beside what was measured of all classes together."""

CLASS_WEIGHT = 8.0
"""Requests that the lengths of all classes count as, beside what was measured of one class."""

ALONE_POINTS = 50
"""Quantiles of a class's times alone that become points."""

TINY = 1e-12
"""No chance is less: ratios of them are taken."""


class BatchRow(NamedTuple):
    """A batch that has run: how large, of whom (app and hint), and how long it took at speed 1."""

    at_ns: int
    size: int
    members: Tuple[Tuple[str, float | None], ...]
    took_ns: float


class Longest(NamedTuple):
    """An observed maximum: the length, and how many members of each class it was the longest of."""

    length_ns: float
    members: Mapping[str, int]


def learn_lengths(
    observed: Sequence[Longest], alone: Mapping[str, Sequence[float]], usual_ns: float
) -> Tuple[Array, Dict[str, Array]]:
    """Points in ns, and for each class its distribution function there.

    ``alone`` are lengths that were measured one by one, ``usual_ns`` is the length that is assumed where nothing was
    measured. O(rounds * classes * observed * points).
    """
    names = sorted(set(alone).union(*[item.members for item in observed]))
    lengths = np.array([item.length_ns for item in observed])
    deviations = np.linspace(-PRIOR_RANGE, PRIOR_RANGE, PRIOR_POINTS)
    assumed = max(1.0, usual_ns) * np.exp(SPREAD * deviations)
    parts = [lengths, assumed]
    for values in alone.values():
        if len(values):
            parts.append(np.quantile(np.array(values), np.linspace(0.0, 1.0, ALONE_POINTS)))
    points = np.sort(np.concatenate(parts))
    points = points[np.concatenate(([True], points[1:] > points[:-1]))]
    weights: Array = np.asarray(
        np.bincount(np.searchsorted(points, assumed), weights=np.exp(-0.5 * deviations**2), minlength=len(points))
    )
    prior: Array = weights / weights.sum()
    places: Array = np.asarray(np.searchsorted(points, lengths))
    at = np.zeros((len(observed), len(points)))
    at[np.arange(len(observed)), places] = 1.0
    members = np.array([[float(item.members.get(name, 0)) for item in observed] for name in names])
    members = members.reshape(len(names), len(observed))
    each = np.array([_counted(points, alone.get(name, ())) for name in names]).reshape(len(names), len(points))
    pooled = _maximised(
        ANY_WEIGHT * prior[None, :], each.sum(axis=0, keepdims=True), members.sum(axis=0, keepdims=True), at, places
    )
    found = _maximised(CLASS_WEIGHT * np.repeat(pooled, len(names), axis=0), each, members, at, places)
    return points, {name: np.minimum(1.0, np.cumsum(row)) for name, row in zip(names, found)}


def expected_longest_ns(points: Array, classes: Mapping[str, Array], observed: Sequence[Longest]) -> List[float]:
    """What the longest member of each batch is expected to be, by the distributions of its members."""
    names = sorted(classes)
    logs = np.log(np.maximum(np.array([classes[name] for name in names]), TINY))
    members = np.array([[float(item.members.get(name, 0)) for name in names] for item in observed])
    below = np.exp(members @ logs)
    steps = np.diff(below, axis=1) @ ((points[1:] + points[:-1]) / 2.0)
    expected: List[float] = (below[:, 0] * points[0] + steps).tolist()
    return expected


def _counted(points: Array, values: Sequence[float]) -> Array:
    """How many of the values lie at each point (or between it and the one before)."""
    places = np.minimum(np.searchsorted(points, np.array(values, dtype=float)), len(points) - 1)
    counts: Array = np.bincount(places, minlength=len(points)).astype(float)
    return counts


def _maximised(prior: Array, counted: Array, members: Array, at: Array, places: Array) -> Array:
    """The shares of each class (a row each) at the points: ``prior`` and ``counted`` in requests. ``members`` (classes,
    observed) took part in the maxima, which lie at ``places``; ``at`` (observed, points) is 1 there."""
    base: Array = prior + counted
    shares: Array = base / base.sum(axis=1, keepdims=True)
    if not len(places):
        return shares
    for _ in range(ROUNDS):
        below = np.maximum(np.cumsum(shares, axis=1)[:, places], TINY)
        chance = members * np.maximum(shares[:, places], TINY) / below
        longest = chance / chance.sum(axis=0)
        others = ((members - longest) / below) @ at
        found = base + longest @ at + shares * np.cumsum(others[:, ::-1], axis=1)[:, ::-1]
        shares = found / found.sum(axis=1, keepdims=True)
    return shares
