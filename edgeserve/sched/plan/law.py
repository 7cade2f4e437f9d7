"""How long a batch takes whose inputs are unequal: a law per model and lane, from the profile and what batches took.

A batch takes ``fixed + c(size) * u``, where ``u`` is what its longest input adds alone (Orloj, section 3). An input
that declares its length has ``u = a + b * length``, by least squares; of others the distribution of ``u`` by app is
learnt. A batch of n shows its longest input alone: of the others it is known that they are no longer. So the
distribution is the product-limit estimate of left-censored values (Kaplan and Meier 1958, time reversed).

A law without spread is none: its model's batches are those of plain work. Noise is no spread (``latency/inputs.py``):
it must exceed what noise explains, and rise with the number of inputs. Pure; all times at speed 1 but those told.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from typing import Any, Deque, Dict, Final, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.requests.states import Job
from edgeserve.sched.requests.work import relative_ppm
from edgeserve.units import PPM, ns_to_ms

BATCHES: Final = 256
"""Batches that a law remembers (``one_index``, section 7)."""

SPREAD: Final = 0.2
"""Deviation of whole batch times, in their logarithm, from which on inputs differ; 12 % are noise (``inputs.py``)."""

DOUBT: Final = 4
"""Batches of no spread that are counted beside those seen, so that one that was slow by chance tells little."""

APART_MAX: Final = 1.4
"""Two batches are no further apart than this, in the logarithm: one outlier makes no spread."""

ALONE_SPREAD: Final = 1.5
"""Profiled times alone differ by app or input where their 90th percentile is so many times their 10th."""

SHOWN_FROM: Final = 16
"""Batches from which on the law must tell their times better than one without spread does."""

WORSE: Final = 1.2
"""What it may tell them worse by, in squares: with batches of one size it tells nothing."""

USUAL_WEIGHT, ORIGIN_WEIGHT = 1.0, 0.3
"""Batches that the profile counts as in the line: an input of mean length takes the profiled time, one of none none."""

LEAST: Final = 0.02
"""An input takes at least this part of the usual one."""

ASSUMED: Final = 0.7
"""Deviation of the logarithm of lengths that is assumed before anything is known: half within a factor of 1.6."""

ANY_WEIGHT, APP_WEIGHT, ALONE_WEIGHT = 2.0, 8.0, 64.0
"""Inputs that count as beside those seen: the assumed lengths beside those of all apps, those of all apps beside one
app's, and profiled times alone beside what batches tell."""

POINTS: Final = 64
"""Points at which distributions are kept."""

LATELY: Final = 10
"""Batches that tell how much longer than the law batches take now, where nothing but noise does."""

EVEN: Final = 0.5
"""A job that is in time alone with no more chance than this is given up (Orloj's specification, 11.4)."""

HALF: Final = 0.5
"""Inputs of at least this part of the longest may be the longest, where declared lengths err."""

Length = Tuple[str, float]
"""Of an input: the distribution that it is of (an app; ``""``: the declared length, or none), and its usual ``u``."""


Others = Tuple[Tuple[str, int], ...]
"""How many inputs there are of each distribution, in the order of their names."""


class Members(NamedTuple):
    """What decides how long a batch takes: the longest ``u`` of those with a declared or usual one, how many of them
    are about as long, and how many inputs there are of each distribution."""

    longest: float
    alike: int
    others: Others


class _Row(NamedTuple):
    size: int
    took_ns: float
    length: float  # the longest that was declared, -1 where none was
    declared: int
    others: Others  # that declared none, by app


def declared(job: Job) -> float | None:
    """The length that a job declares, in a unit of its own: ``length``, else its ``work`` beside the usual."""
    if not job.hints:
        return None
    length = job.hints.get("length")
    if length is None:
        ppm = relative_ppm(job.hints, job.node.name)
        return None if ppm is None else ppm / PPM
    return max(0.0, length)


class Law:
    """The batch times of a model on a lane. ``is_wide``: they depend on the inputs. ``even_ns`` is the longest that an
    input alone takes with even odds, of all that were told or seen; ``first`` is the smallest batch size. :meth:`told`
    and :meth:`took` alone change it."""

    __slots__ = (
        "is_wide",
        "even_ns",
        "first",
        "_latency",
        "_factors",
        "_rows",
        "_new",
        "_lengths",
        "_low",
        "_high",
        "_fixed",
        "_usual",
        "_line",
        "_pace",
        "_points",
        "_shares",
        "_joint",
    )

    def __init__(self, latency: BatchTime) -> None:
        self.is_wide = False
        self.even_ns = 0
        self.first = latency.sizes[0]
        self._latency = latency
        first_ns = max(1.0, latency.seeds[latency.sizes[0]].median_ns - latency.fixed_ns)
        self._factors: Dict[int, float] = {
            size: max(1.0, (seed.median_ns - latency.fixed_ns) / first_ns) for size, seed in latency.seeds.items()
        }
        self._rows: Deque[_Row] = deque(maxlen=BATCHES)
        self._new = 0
        self._lengths: Deque[float] = deque(maxlen=BATCHES)
        self._low, self._high = math.inf, -1.0
        self._fixed = float(latency.fixed_ns)
        self._usual = first_ns
        self._line = (first_ns, 0.0)
        self._pace: List[float] = [1.0]
        self._points: List[float] = []  # of u
        self._shares: Dict[str, List[float]] = {}  # P(u <= point), by app; "": by the ratio to the line
        self._joint: Dict[Others, Tuple[List[float], List[float], List[float]]] = {}
        self._renew()

    # --- what is learnt -----------------------------------------------------------------------------------------------

    def told(self, length: float) -> None:
        """A job that became ready declares a length."""
        self._lengths.append(length)
        if not self._low <= length <= self._high:
            self._low, self._high = min(self._low, length), max(self._high, length)
            self._renew()

    def took(self, size: int, jobs: Sequence[Job], took_ns: int) -> None:
        """A batch took so long, at the present speed of the lane."""
        length, count = -1.0, 0
        others: Dict[str, int] = {}
        for job in jobs:
            own = declared(job)
            if own is None:
                name = job.request.app.name
                others[name] = others.get(name, 0) + 1
            else:
                length, count = max(length, own), count + 1
        self._rows.append(
            _Row(size, max(1.0, took_ns * self._latency.speed), length, count, tuple(sorted(others.items())))
        )
        self._new += 1
        if self._new * 8 >= len(self._rows):
            self._renew()

    def _renew(self) -> None:
        """Make everything anew. O(batches * log batches)."""
        self._new = 0
        latency, rows = self._latency, list(self._rows)
        self._fixed = min([float(latency.fixed_ns)] + [0.95 * row.took_ns for row in rows])
        self._usual = max(1.0, latency.seeds[latency.sizes[0]].median_ns - self._fixed)
        if self._lengths:
            self._low, self._high = min(self._lengths), max(self._lengths)
            self._fit(rows)
        ratios = [row.took_ns / self._law_ns(row) for row in rows]
        self._pace = sorted(ratios[-LATELY:]) or [1.0]
        before, self._points = (self._points, self._shares), []
        self._shares = {}
        own = [row for row in rows if not row.others]
        others = [row for row in rows if row.others]
        if self._differ(own, False):
            self._learn_own(own)
            if not self._is_shown(own):
                self._points, self._shares = [], {}
        if self._differ(others, _differ_alone(latency)):
            known = self._points, self._shares
            self._learn(others, before)
            if not self._is_shown(others):
                self._points, self._shares = known
        self._joint.clear()
        size = latency.size_max
        self.is_wide = bool(self._shares)
        if self._high > self._low and not self.is_wide:
            short_ns, long_ns = [self._fixed + self._factors[size] * self._at(x) for x in (self._low, self._high)]
            self.is_wide = long_ns > (1.0 + SPREAD) * short_ns
        longest = [self.alone_ns((name, self._usual), EVEN) for name in self._shares if name]
        if self._lengths:
            longest.append(self.alone_ns(("", self._at(self._high)), EVEN))
        self.even_ns = max(longest, default=0)

    def _fit(self, rows: Sequence[_Row]) -> None:
        """The line of what a declared length adds, by weighted least squares: noise of whole times weighs less where
        the growing part is large."""
        mean = sum(self._lengths) / len(self._lengths)
        sums = [USUAL_WEIGHT + ORIGIN_WEIGHT, USUAL_WEIGHT * mean, USUAL_WEIGHT * mean * mean]
        along = [USUAL_WEIGHT * self._usual, USUAL_WEIGHT * mean * self._usual]
        for row in rows:
            if row.declared and not row.others:
                grows = self._factors[row.size] * self._usual
                weight = (grows / (self._fixed + grows)) ** 2
                growth = self._growth(row)
                sums[0] += weight
                sums[1] += weight * row.length
                sums[2] += weight * row.length * row.length
                along[0] += weight * growth
                along[1] += weight * growth * row.length
        apart = sums[0] * sums[2] - sums[1] * sums[1]
        slope = max(0.0, (sums[0] * along[1] - sums[1] * along[0]) / apart) if apart > 0.0 else 0.0
        self._line = (along[0] - slope * sums[1]) / sums[0], slope

    def _differ(self, rows: Sequence[_Row], profiled: bool) -> bool:
        """Whether batches of one size differ by more than noise. ``profiled``: what few do not contradict."""
        last: Dict[int, float] = {}
        apart, count = 0.0, 0
        for row in rows:
            log = math.log(row.took_ns / self._law_ns(row))
            if row.size in last:
                apart += min(APART_MAX, abs(log - last[row.size])) ** 2 / 2.0
                count += 1
            last[row.size] = log
        return apart > SPREAD * SPREAD * (count + DOUBT) or (profiled and len(rows) < SHOWN_FROM)

    def _is_shown(self, rows: Sequence[_Row]) -> bool:
        """Whether the distributions tell better what batches took than the usual input does. What slows whole batches,
        whatever is in them, makes large ones no slower than small ones."""
        if len(rows) < SHOWN_FROM:
            return True
        self._joint.clear()
        plain = [math.log(row.took_ns / self._law_ns(row)) for row in rows]
        wide = [math.log(row.took_ns / self._wide_ns(row)) for row in rows]
        return _squares(wide) <= WORSE * _squares(plain)

    def _wide_ns(self, row: _Row) -> float:
        """What a batch would have been expected to take."""
        longest = self._at(row.length) if row.declared else 0.0
        if longest and "" in self._shares:
            longest *= self._mean((("", 1),), 0.0)
        if row.others:
            longest = self._usual * self._mean(row.others, longest / self._usual)
        return self._fixed + self._factors[row.size] * longest

    def _learn_own(self, rows: Sequence[_Row]) -> None:
        """The distribution of what inputs take beside what their declared length tells."""
        found = [self._growth(row) / self._at(row.length) for row in rows]
        self._points = _points(found)
        self._shares = {"": _cdf([(ratio, 1.0, 1.0) for ratio in found] + _assumed(1.0), self._points)}

    def _learn(self, rows: Sequence[_Row], before: Tuple[List[float], Dict[str, List[float]]]) -> None:
        """The distributions of inputs of undeclared length, by app."""
        usual = self._usual
        alone = {
            app: _items([max(LEAST * usual, time_ns - self._fixed) / usual for time_ns in times], ALONE_WEIGHT)
            for app, times in self._latency.alone.items()
            if len(times)
        }
        seen = [(self._growth(row) / usual, row) for row in rows if not row.declared]
        points = self._points or _points(
            [ratio for ratio, _ in seen] + [item[0] for items in alone.values() for item in items]
        )
        known = _assumed(ANY_WEIGHT)
        for items in alone.values():
            known += items
        found = known + [(ratio, 1.0, float(sum([count for _, count in row.others]))) for ratio, row in seen]
        pool = _cdf(found, points)
        prior = [
            (point, APP_WEIGHT * (share - below), APP_WEIGHT * (share - below))
            for point, share, below in zip(points, pool, [0.0] + pool)
        ]
        shares: Dict[str, List[float]] = dict(self._shares)
        for name in sorted({name for row in rows for name, _ in row.others} | set(alone)):
            items = list(alone.get(name) or prior)
            for ratio, row in seen:
                for other, count in row.others:
                    if other == name:
                        items.append((ratio, _part(name, row.others, ratio, before[1], before[0]), float(count)))
            shares[name] = _cdf(items, points)
        self._points, self._shares = points, shares

    def _growth(self, row: _Row) -> float:
        return max(LEAST * self._usual, (row.took_ns - self._fixed) / self._factors[row.size])

    def _at(self, length: float) -> float:
        """``u`` of an input of this length; of the usual one where it is -1."""
        if length < 0.0:
            return self._usual
        return max(LEAST * self._usual, self._line[0] + self._line[1] * length)

    def _law_ns(self, row: _Row) -> float:
        longest = self._at(row.length)
        if row.others:
            longest = max(longest, self._usual)
        return self._fixed + self._factors[row.size] * longest

    # --- what is told -------------------------------------------------------------------------------------------------

    def length_of(self, job: Job) -> Length:
        """What is known of a job's length."""
        length = declared(job)
        if length is not None:
            return "", self._at(length)
        name = job.request.app.name
        return (name if name in self._shares else ""), self._usual

    def members(self, lengths: Sequence[Length]) -> Members:
        """What decides the time of a batch of inputs of these lengths."""
        longest, count = 0.0, 0
        others: Dict[str, int] = {}
        for name, usual in lengths:
            if name:
                others[name] = others.get(name, 0) + 1
            elif usual > longest:
                longest = usual
        if longest:
            count = len([usual for name, usual in lengths if not name and usual >= HALF * longest])
        return Members(longest, count, tuple(sorted(others.items())))

    def mean_ns(self, size: int, members: Members) -> int:
        """The time that a batch is expected to take, at the present speed."""
        longest = members.longest
        if longest and "" in self._shares:
            longest *= self._mean((("", members.alike),), 0.0)
        if members.others:
            longest = self._usual * self._mean(members.others, longest / self._usual)
        time_ns = self._fixed + self._factors[size] * longest
        return self._now_ns(time_ns if self._shares else time_ns * _quantile(self._pace, 0.6))

    def chance(self, size: int, members: Members, within_ns: int) -> float:
        """How likely it ends within so long, at the present speed."""
        within = within_ns * self._latency.speed
        if not self._shares:
            time_ns = self._fixed + self._factors[size] * members.longest
            return bisect_right(self._pace, within / time_ns) / len(self._pace)
        growth = (within - self._fixed) / self._factors[size]
        chance = 1.0
        if members.longest:
            if "" in self._shares:
                chance = self._share("", growth / members.longest) ** members.alike
            elif growth < members.longest:
                return 0.0
        for name, count in members.others:
            chance *= self._share(name, growth / self._usual) ** count
        return chance

    def alone_ns(self, length: Length, share: float) -> int:
        """What an input of this length takes alone in such a share of all cases, at the present speed."""
        return self.within_ns(self.first, self.members((length,)), share)

    def within_ns(self, size: int, members: Members, share: float) -> int:
        """The time that such a share of these batches end within."""
        longest = members.longest
        if not self._shares:
            return self._now_ns((self._fixed + self._factors[size] * longest) * _quantile(self._pace, share))
        if longest and "" in self._shares:
            longest *= self._ratio((("", members.alike),), share)
        if members.others:
            longest = max(longest, self._usual * self._ratio(members.others, share))
        return self._now_ns(self._fixed + self._factors[size] * longest)

    def figures(self) -> Mapping[str, Any]:
        """What is known, in plain numbers, times in ms."""
        return {
            "batches": len(self._rows),
            "fixed_ms": ns_to_ms(round(self._fixed)),
            "usual_ms": ns_to_ms(round(self._usual)),
            "per_length_ms": self._line[1] / 1e6,
            "alone_ms": {
                name: ns_to_ms(self.alone_ns((name, self._usual), EVEN)) for name in sorted(self._shares) if name
            },
        }

    def _now_ns(self, time_ns: float) -> int:
        return math.ceil(time_ns / self._latency.speed)

    def _share(self, name: str, ratio: float) -> float:
        place = bisect_right(self._points, ratio)
        return self._shares[name][place - 1] if place else 0.0

    def _mean(self, others: Others, least: float) -> float:
        """The expected longest of so many draws of each distribution, and of ``least``, over the usual ``u``."""
        _, tails, masses = self._longest(others)
        above = len(self._points) - bisect_right(self._points, least)
        return tails[above] + least * (1.0 - masses[above])

    def _ratio(self, others: Others, share: float) -> float:
        """What the longest of so many draws is no more than in such a share of all cases, over the usual ``u``."""
        place = bisect_left(self._longest(others)[0], share)
        return self._points[min(place, len(self._points) - 1)]

    def _longest(self, others: Others) -> Tuple[List[float], List[float], List[float]]:
        """The distribution of the longest of so many draws; of the highest 0, 1, .. points the sum of what they add to
        its mean, and their chance."""
        known = self._joint.get(others)
        if known is None:
            joint = [1.0] * len(self._points)
            for name, count in others:
                joint = [chance * share**count for chance, share in zip(joint, self._shares[name])]
            tail = mass = 0.0
            tails, masses = [0.0], [0.0]
            for place in range(len(joint) - 1, -1, -1):
                part = joint[place] - (joint[place - 1] if place else 0.0)
                tail += self._points[place] * part
                mass += part
                tails.append(tail)
                masses.append(mass)
            known = self._joint[others] = joint, tails, masses
        return known


Item = Tuple[float, float, float]
"""A value, how many of the inputs had it, and how many had it or less."""


def _cdf(items: Sequence[Item], points: Sequence[float]) -> List[float]:
    """The product-limit estimate of P(value <= point): of values of which some are known to be no more than so much."""
    rising = sorted(items)
    found = [0.0] * len(points)
    share, left = 1.0, sum([item[2] for item in rising])
    index, place = len(rising) - 1, len(points) - 1
    while index >= 0:
        value = rising[index][0]
        while place >= 0 and points[place] >= value:
            found[place] = share
            place -= 1
        seen, at_most = 0.0, left
        while index >= 0 and rising[index][0] == value:
            seen += rising[index][1]
            left -= rising[index][2]
            index -= 1
        share *= max(0.0, 1.0 - seen / at_most)
    return found


def _items(values: Sequence[float], weight: float) -> List[Item]:
    """A sample, by 32 of its quantiles, that counts as so many inputs."""
    rising = sorted(values)
    return [(rising[(2 * part + 1) * len(rising) // 64], weight / 32, weight / 32) for part in range(32)]


def _assumed(weight: float) -> List[Item]:
    """Lengths before anything is known, in so many inputs: 16 equally likely ones, lognormal."""
    zs = (0.08, 0.24, 0.4, 0.58, 0.78, 1.01, 1.32, 1.86)
    return [(math.exp(ASSUMED * sign * z), weight / 16, weight / 16) for z in zs for sign in (-1.0, 1.0)]


def _points(values: Sequence[float]) -> List[float]:
    """At most :data:`POINTS` values at which distributions are kept."""
    rising = sorted(set([item[0] for item in _assumed(1.0)] + list(values)))
    if len(rising) <= POINTS:
        return rising
    return [rising[(place + 1) * len(rising) // POINTS - 1] for place in range(POINTS)]


def _part(
    name: str,
    others: Sequence[Tuple[str, int]],
    ratio: float,
    shares: Mapping[str, List[float]],
    points: Sequence[float],
) -> float:
    """How likely the longest input of a batch was of this app, as far as is known: by their densities just there."""
    if len(others) == 1:
        return 1.0
    total = own = 0.0
    high, low = bisect_right(points, ratio * 1.1) - 1, bisect_right(points, ratio / 1.1) - 1
    for other, count in others:
        weight = float(count)
        known = shares.get(other)
        if known is not None and high >= 0 and known[high] > 0.0:
            weight *= 0.01 + (known[high] - (known[low] if low >= 0 else 0.0)) / known[high]
        total += weight
        if other == name:
            own = weight
    return own / total


def _differ_alone(latency: BatchTime) -> bool:
    """Whether the profile's times alone of an app differ with the input, as :data:`ALONE_SPREAD` says."""
    return any(
        len(times) > 0 and times[len(times) * 9 // 10] > ALONE_SPREAD * times[len(times) // 10]
        for times in latency.alone.values()
    )


def _squares(values: Sequence[float]) -> float:
    """The sum of squared distances from the mean."""
    mean = sum(values) / len(values)
    return sum([(value - mean) ** 2 for value in values])


def _quantile(rising: Sequence[float], share: float) -> float:
    return rising[int(share * (len(rising) - 1))]
