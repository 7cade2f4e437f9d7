"""Times of batches of requests of unknown length: distributions of times alone, by class, and what follows.

Orloj's model (sections 3 and 4 of the paper): a batch of k requests takes ``c0 + c(k) * max(u)``, where ``u`` is what a
request's time alone has beyond the fixed part c0. On a machine where a batch costs as much per request as a request
alone, c(k) is k (the paper's law); in general it is read off the profile, so that static models fit too. The maximum
of independent draws has the product of their CDFs: exact, stable, O(k * points). (Eq. 8 of the paper, an alternating
sum over subsets, is the same and loses all its digits at k = 32.)

Two records: :class:`LengthWindow` collects times alone and forgets old ones; :class:`Lengths` is an immutable table
made of all windows of a model on a lane, swapped in when it is ready. Neither knows a clock, a queue or a policy.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, Mapping, Sequence, Tuple

import numpy as np

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.published.orloj.distribution import Distribution, known_of

BINS = 50
"""Bins of a class's histogram: with 40 to 60 the expected maximum of 16 is right within 0.1 % (specification, 2)."""

POINTS_MAX = 256
"""Points at which the CDFs of all classes of a model are kept."""

BATCHES_KEPT = 4096
"""Compositions of batches whose distribution is remembered."""

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

    Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

GOLDEN = 2_654_435_769
"""2**32 over the golden ratio: multiples of it are spread evenly (Knuth's multiplicative hashing)."""

SEEDS_PER_SAMPLE = 8
"""Profiled times that one measured time displaces: a profile that was taken on a disturbed device must not outvote
what happens now for minutes, since a request that seems hopeless is not run and teaches nothing but by probes."""

BIAS_LEN = 64
"""Batches per size that the bias looks back on."""

BIAS_LEN_MIN = 16
"""Fewer batches than this say nothing about a size."""


class LengthWindow:
    """The last ``length`` times alone of one class, in nanoseconds at speed 1.

    Seeds (from a profile) go in scattered, since the oldest are forgotten first and a profile is sorted.
    """

    __slots__ = ("samples", "seen", "_seeds")

    def __init__(self, length: int, seeds: Sequence[int] = ()) -> None:
        self.samples: Deque[int] = deque(maxlen=length)
        self.seen = 0  # samples that were measured, not seeded
        scattered = sorted(range(len(seeds)), key=lambda index: index * GOLDEN % 2**32)
        self.samples.extend(int(seeds[index]) for index in scattered)
        self._seeds = len(self.samples)

    def add(self, alone_ns: int) -> None:
        """A request of the class took so long alone. It displaces several seeds, if there are any left."""
        displaced = min(self._seeds, SEEDS_PER_SAMPLE)
        for _ in range(displaced):
            self.samples.popleft()
        self._seeds -= displaced
        self.samples.append(alone_ns)
        self.seen += 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Lengths:
    """The estimated lengths of one model on one lane: immutable, made by :func:`lengths_of`.

    ``classes`` have a CDF each at the common ``points`` (u, in ns); ``mix`` is the CDF of any request. A class without
    samples counts as ``mix``.
    """

    def __init__(
        self,
        fixed_ns: float,
        factors: Mapping[int, float],
        points: Array,
        classes: Mapping[str, Array],
        mix: Array,
    ) -> None:
        self.fixed_ns = fixed_ns
        self.factors = dict(factors)
        self.points = points
        self.classes = dict(classes)
        self.mix = mix
        self.known = tuple(sorted(classes))  # the classes by name, for a stable order
        self._alone: Dict[str, Distribution] = {}
        self._batches: Dict[Tuple[int, Tuple[str, ...]], Distribution] = {}
        self._means: Dict[str, float] = {}

    def cdf(self, name: str) -> Array:
        """The CDF of a class at :attr:`points`; that of any request for a class that was never seen."""
        found = self.classes.get(name)
        return self.mix if found is None else found

    def alone(self, name: str) -> Distribution:
        """The distribution of a request's time alone."""
        found = self._alone.get(name)
        if found is None:
            found = self._alone[name] = self._batch(self.cdf(name), min(self.factors))
        return found

    def mean_alone_ns(self, name: str) -> float:
        """The expected time alone."""
        found = self._means.get(name)
        if found is None:
            found = self._means[name] = self.alone(name).mean_ns()
        return found

    def batch(self, size: int, members: Tuple[str, ...]) -> Distribution:
        """The time of a batch of these classes (in sorted order) that runs as ``size``."""
        found = self._batches.get((size, members))
        if found is None:
            product = np.ones_like(self.mix)
            for name in set(members):
                product = product * self.cdf(name) ** members.count(name)
            if len(self._batches) >= BATCHES_KEPT:
                self._batches.clear()
            found = self._batches[size, members] = self._batch(product, size)
        return found

    def expected(self, name: str | None, count: int, size: int) -> Distribution:
        """The time of a batch of ``count`` before its members are known: one of class ``name`` and any others
        (own-class reading), or any ``count`` (``name`` None: the common reading)."""
        if name is None:
            return self._batch(self.mix**count, size)
        return self._batch(self.cdf(name) * self.mix ** (count - 1), size)

    def _batch(self, cdf: Array, size: int) -> Distribution:
        """F_LB(t) = F_max((t - c0) / c(k)): in CDFs the Jacobian that Eq. 9 lacks cannot be forgotten."""
        times = self.fixed_ns + self.factors[size] * self.points
        first = int(np.searchsorted(cdf, 1e-12, side="right"))
        last = int(np.searchsorted(cdf, 1.0 - 1e-12))
        kept = slice(max(0, first - 1), max(first, last) + 1)
        return Distribution(times[kept].tolist(), cdf[kept].tolist())


def lengths_of(
    latency: BatchTime,
    windows: Mapping[str, LengthWindow],
    weights: Mapping[str, float],
    corrections: Mapping[int, float] | None = None,
    speed: float = 1.0,
) -> Lengths:
    """The table of a model on a lane.

    ``weights`` are the classes' shares of the arrivals (all are equal where none is known); ``corrections`` how much
    longer batches of a size take than the law says. Without a single sample, what the profile says of the smallest
    batch stands for every request.
    """
    fixed = (
        min(
            latency.fixed_ns,
            min((time_ns for window in windows.values() for time_ns in window.samples), default=latency.fixed_ns),
        )
        / speed
    )
    edges = {
        name: _edges([time_ns / speed - fixed for time_ns in window.samples])
        for name, window in windows.items()
        if window.samples
    }
    if not edges:
        known = known_of(latency, latency.sizes[0])
        points = np.array([max(0.0, time_ns - fixed) for time_ns in known.times_ns])
        points = _rising(points)
        return Lengths(fixed, _factors(latency, corrections), points, {}, np.array(known.shares))
    points = _different(np.concatenate([item[0] for item in edges.values()]))
    if len(points) > POINTS_MAX:
        points = points[_different(np.round(np.linspace(0, len(points) - 1, POINTS_MAX)).astype(int))]
    classes = {name: np.interp(points, item[0], item[1]) for name, item in edges.items()}
    return Lengths(fixed, _factors(latency, corrections), points, classes, _mix(classes, weights))


def _mix(classes: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """The CDF of any request: of the classes by their shares of the arrivals, equal ones where none is known."""
    total = sum([weights.get(name, 0.0) for name in classes])
    shares = {name: weights.get(name, 0.0) / total if total > 0 else 1.0 / len(classes) for name in classes}
    mix: Array = np.sum([shares[name] * cdf for name, cdf in sorted(classes.items())], axis=0)
    mix[-1] = 1.0
    return mix


def _edges(lengths: Sequence[float]) -> Tuple[Array, Array]:
    """Edges of equal width and the CDF at them; a single value is a bin of one nanosecond."""
    values = np.sort(np.array(lengths))
    low, high = float(values[0]), float(values[-1])
    if high - low < 1.0:
        return np.array([low, low + 1.0]), np.array([0.0, 1.0])
    edges = np.linspace(low, high, BINS + 1)
    counts = np.histogram(values, edges)[0]
    return edges, np.concatenate(([0.0], np.cumsum(counts) / len(values)))


def _different(values: Array) -> Array:
    """The different values, rising. (``numpy.unique`` imports ``numpy.ma`` when it is first called: ten thousand calls
    on the loop's thread, between two decisions.)"""
    rising = np.sort(values)
    different: Array = rising[np.concatenate(([True], rising[1:] != rising[:-1]))]
    return different


def _rising(points: Array) -> Array:
    """The same points, each at least a nanosecond after the one before."""
    steps = np.arange(len(points), dtype=float)
    rising: Array = np.maximum.accumulate(points - steps) + steps
    return rising


def _factors(latency: BatchTime, corrections: Mapping[int, float] | None) -> Dict[int, float]:
    return {size: factor(latency, size) * (corrections or {}).get(size, 1.0) for size in latency.sizes}


def factor(latency: BatchTime, size: int) -> float:
    """The multiple of the part of the smallest batch's time that grows, a batch of this size takes beyond the fixed
    part, as profiled: c(k) of ``fixed + c(k) * u``. Where the profile does not tell, as many as it has jobs."""
    first = latency.sizes[0]
    alone_ns = latency.seeds[first].median_ns - latency.fixed_ns
    if alone_ns <= 0:
        return size / first
    return max(1.0, (latency.seeds[size].median_ns - latency.fixed_ns) / alone_ns)


class SizeBias:
    """The time by which batches of each size take longer than predicted, beyond what chance explains.

    The mean ratio of measured to predicted time over the last :data:`BIAS_LEN` batches of a size counts only when it
    is more than three standard errors from one: a law that holds is left alone.
    """

    __slots__ = ("_fixed_ns", "_pairs")

    def __init__(self, fixed_ns: float) -> None:
        self._fixed_ns = fixed_ns
        self._pairs: Dict[int, Deque[Tuple[float, float]]] = {}

    def observe(self, size: int, uncorrected_ns: float, took_ns: float) -> None:
        """A batch was expected (by the law alone) to take ``uncorrected_ns`` and took ``took_ns``."""
        self._pairs.setdefault(size, deque(maxlen=BIAS_LEN)).append(
            (max(1.0, uncorrected_ns - self._fixed_ns), max(1.0, took_ns - self._fixed_ns))
        )

    def corrections(self) -> Dict[int, float]:
        """Size -> factor, for the sizes that need one; between 1/4 and 4."""
        found: Dict[int, float] = {}
        for size, pairs in self._pairs.items():
            if len(pairs) < BIAS_LEN_MIN:
                continue
            expected = math.fsum([pair[0] for pair in pairs])
            ratio = math.fsum([pair[1] for pair in pairs]) / expected
            mean = expected / len(pairs)
            spread = math.fsum([((took - ratio * known) / mean) ** 2 for known, took in pairs]) / len(pairs)
            if abs(ratio - 1.0) > 3.0 * math.sqrt(spread / len(pairs)):
                found[size] = min(4.0, max(0.25, ratio))
        return found
