"""The time of a batch of unequal inputs: a law per model and lane, from the profile and the times of batches.

A batch takes ``fixed + c(size) * u``, where ``u`` is what its longest input adds alone (Orloj, section 3). An input
that declares its length has ``u = a + b * length``, by least squares; of others the distribution of ``u`` by app is
learnt. A batch of n shows its longest input alone: the others are known to be no longer. So the distribution is the
product-limit estimate of left-censored values (Kaplan and Meier 1958, time reversed).

A law without spread is none: the batches of its model are plain work. Noise that slows whole batches, for any inputs,
is no spread. Pure; learnt at speed 1, told at the lane's present speed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from typing import Any, Deque, Dict, Final, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.plan.input_spread import (
    LEAST,
    SHOWN_FROM,
    SPREAD,
    Draws,
    apps_differ,
    at_most,
    chance_of,
    differ,
    parts,
    sample,
    squares,
    thinned,
)
from edgeserve.sched.requests.states import Job, new_tuple
from edgeserve.sched.requests.work import relative_ppm
from edgeserve.units import PPM, ns_to_ms

BATCHES: Final = 256
"""Batches that a law remembers (``one_index``, section 7)."""

WORSE: Final = 1.2
"""A spread may tell the times of batches worse than a law without it by this factor in squares."""

USUAL_WEIGHT, ORIGIN_WEIGHT = 1.0, 0.3
"""Batches that the profile counts as in the line: an input of mean length takes the profiled time, one of none none."""

ASSUMED: Final = tuple([math.exp(0.7 * z) for z in (-1.86, -1.15, -0.73, -0.4, -0.13, 0.13, 0.4, 0.73, 1.15, 1.86)])
"""Lengths before anything is known, over the usual one: half within a factor of 1.6, equally likely."""

ANY_WEIGHT, APP_WEIGHT = 2.0, 8.0
"""Inputs that count beside those seen: the assumed lengths, for all apps; all apps, for one."""

LATELY: Final = 10
"""Batches that tell how much longer than the law batches take now, where nothing but noise does."""

EVEN: Final = 0.5
"""A job that is in time alone with no more chance than this is given up (Orloj's specification, 11.4)."""

HALF: Final = 0.5
"""Inputs of at least this part of the longest may turn out to be it, where declared lengths err."""

OWN: Final = ""
"""The distribution of inputs that declare a length, over what that tells. Others have that of their app."""

Length = Tuple[str, float]
"""An input's law: its distribution (:data:`OWN` also where it has none), and its usual ``u``."""


class BatchMembers(NamedTuple):
    """The inputs that decide the time of a batch: the longest usual ``u`` of :data:`OWN`, how many are about as long,
    and the inputs of other distributions."""

    longest: float
    about: int
    others: Draws


class BatchRow(NamedTuple):
    """A batch that ran: ``length`` is the longest that was declared, -1 where none was. ``own``: all of its inputs
    declared one; they are one draw of :data:`OWN`."""

    size: int
    took_ns: float
    length: float
    draws: Draws
    own: bool


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
    input alone takes with even odds, of all that were told or seen, ``first`` the smallest batch size. :meth:`told` and
    :meth:`took` alone change it."""

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
        self._fixed = float(latency.fixed_ns)
        self._usual = max(1.0, latency.seeds[self.first].median_ns - self._fixed)
        self._factors: Dict[int, float] = {
            size: max(1.0, (seed.median_ns - self._fixed) / self._usual) for size, seed in latency.seeds.items()
        }
        self._rows: Deque[BatchRow] = deque(maxlen=BATCHES)
        self._new = 0
        self._lengths: Deque[float] = deque(maxlen=BATCHES)
        self._low, self._high = math.inf, -1.0
        self._line = (self._usual, 0.0)
        self._pace: List[float] = [1.0]
        self._points: List[float] = []  # over the usual u
        self._shares: Dict[str, List[float]] = {}  # P(u <= point), by distribution
        self._joint: Dict[Draws, Tuple[List[float], List[float], List[float]]] = {}
        self._renew()

    # --- learning -----------------------------------------------------------------------------------------------------

    def told(self, length: float) -> None:
        """A job that became ready declares a length."""
        self._lengths.append(length)
        if not self._low <= length <= self._high:
            self._fit()
            self._look()

    def took(self, size: int, jobs: Sequence[Job], took_ns: int) -> None:
        """A batch took so long, at the present speed of the lane."""
        length = -1.0
        draws: Dict[str, int] = {}
        for job in jobs:
            own = declared(job) if job.hints else None
            if own is None:
                name = job.request.app.name
                draws[name] = draws.get(name, 0) + 1
            else:
                length = max(length, own)
        took = max(1.0, took_ns * self._latency.speed)
        of = tuple(sorted(draws.items())) or ((OWN, 1),)
        self._rows.append(new_tuple(BatchRow, (size, took, length, of, not draws)))
        self._new += 1
        if self._new * 8 >= len(self._rows):
            self._renew()

    def _renew(self) -> None:
        """Make everything anew. O(batches * log batches)."""
        self._new = 0
        latency, rows = self._latency, list(self._rows)
        self._fixed = min([float(latency.fixed_ns)] + [0.95 * row.took_ns for row in rows])
        self._usual = max(1.0, latency.seeds[self.first].median_ns - self._fixed)
        if self._lengths:
            self._fit()
        ratios = self._over_even(rows)
        self._pace = sorted(ratios[-LATELY:]) or [1.0]
        before, self._points, self._shares = (self._points, self._shares), [], {}
        self._joint.clear()
        own = [each for each in zip(rows, ratios) if each[0].own]
        others = [each for each in zip(rows, ratios) if not each[0].own]
        if own:
            self._learn(own, {}, before)
        if others or latency.alone:
            self._learn(others, latency.alone, before)
        self._joint.clear()
        self._look()

    def _look(self) -> None:
        """See whether the times depend on the inputs, and what the longest takes."""
        factor = self._factors[self._latency.size_max]
        differ_ns = factor * (self._at(self._high) - self._at(self._low)) if self._lengths else 0.0
        self.is_wide = bool(self._shares) or differ_ns > SPREAD * (self._fixed + factor * self._at(self._low))
        longest = max(self._usual, self._at(self._high))
        self.even_ns = max([self.alone_ns((name, longest), EVEN) for name in [OWN, *self._shares]])

    def _fit(self) -> None:
        """The line of what a declared length adds, by weighted least squares: noise of whole times weighs less where
        the growing part is large."""
        self._low, self._high = min(self._lengths), max(self._lengths)
        mean = sum(self._lengths) / len(self._lengths)
        seen = [(USUAL_WEIGHT, mean, self._usual), (ORIGIN_WEIGHT, 0.0, 0.0)]
        for row in self._rows:
            if row.own:
                grows = self._factors[row.size] * self._usual
                seen.append(((grows / (self._fixed + grows)) ** 2, row.length, self._growth(row)))
        total = sum([weight for weight, _, _ in seen])
        x = sum([weight * length for weight, length, _ in seen]) / total
        y = sum([weight * growth for weight, _, growth in seen]) / total
        along = sum([weight * (length - x) * (growth - y) for weight, length, growth in seen])
        squares = sum([weight * (length - x) ** 2 for weight, length, _ in seen])
        slope = max(0.0, along / squares) if squares > 0.0 else 0.0
        self._line = y - slope * x, slope

    def _learn(
        self,
        beside: Sequence[Tuple[BatchRow, float]],
        alone: Mapping[str, Sequence[int]],
        before: Tuple[List[float], Dict[str, List[float]]],
    ) -> None:
        """Learn the distributions of the inputs of these batches, each with its time over the even one, where they
        differ by more than noise. ``before``: what was known of them, which tells of which app the longest input of a
        batch was."""
        usual = self._usual
        rows = [row for row, _ in beside]
        growths = {app: [(time - self._fixed) / usual for time in times] for app, times in alone.items()}
        singles: Dict[str, List[float]] = {app: list(ratios) for app, ratios in growths.items()}
        for row in rows:
            if row.size == self.first and not row.own and len(row.draws) == 1 and row.draws[0][1] == 1:
                singles.setdefault(row.draws[0][0], []).append(self._growth(row) / usual)
        fixed = self._fixed / (self._factors[self._latency.size_max] * usual)
        logs = [(row.size, math.log(ratio)) for row, ratio in beside]
        if not differ(logs, alone) and not apps_differ(singles.values(), fixed):
            return
        known = self._points, self._shares
        profiled = {app: sample(ratios) for app, ratios in growths.items()}
        pool = [(ratio, ANY_WEIGHT / len(ASSUMED), ANY_WEIGHT / len(ASSUMED)) for ratio in ASSUMED]
        for items in profiled.values():
            pool += items
        least, (start, slope) = LEAST * usual, self._line
        seen: List[Tuple[float, BatchRow]] = []
        for row in rows:  # as _growth and _at, without their calls: there are hundreds
            if row.own or row.length < 0.0:
                at = usual if row.length < 0.0 else max(least, start + slope * row.length)
                seen.append((max(least, (row.took_ns - self._fixed) / self._factors[row.size]) / at, row))
        pool += [(ratio, 1.0, float(sum([count for _, count in row.draws]))) for ratio, row in seen]
        points = self._points or thinned([item[0] for item in pool])
        shares = at_most(pool, points)
        prior = [(point, APP_WEIGHT * part, APP_WEIGHT * part) for point, part in zip(points, parts(shares))]
        names = sorted({name for row in rows for name, _ in row.draws} | set(profiled))
        found = dict(self._shares)
        for name in names:
            items = list(profiled.get(name, prior))
            for ratio, row in seen:
                for other, count in row.draws:
                    if other == name:
                        chance = chance_of(name, row.draws, ratio, before) if len(row.draws) > 1 else 1.0
                        items.append((ratio, chance, float(count)))
            found[name] = at_most(items, points)
        self._points, self._shares = points, found
        if len(rows) >= SHOWN_FROM:
            plain = squares([math.log(ratio) for _, ratio in beside])
            if squares([math.log(row.took_ns / self._wide_time(row)) for row in rows]) > WORSE * plain:
                self._points, self._shares = known

    def _growth(self, row: BatchRow) -> float:
        return max(LEAST * self._usual, (row.took_ns - self._fixed) / self._factors[row.size])

    def _at(self, length: float) -> float:
        """``u`` of an input of this length; of the usual one where it is -1."""
        if length < 0.0:
            return self._usual
        return max(LEAST * self._usual, self._line[0] + self._line[1] * length)

    def _over_even(self, rows: Sequence[BatchRow]) -> List[float]:
        """The times of batches as multiples of the times by their declared lengths alone."""
        found: List[float] = []
        for size, took_ns, length, _, own in rows:
            longest = self._usual if length < 0.0 else self._at(length)
            even = self._fixed + self._factors[size] * (longest if own else max(longest, self._usual))
            found.append(took_ns / even)
        return found

    def _wide_time(self, row: BatchRow) -> float:
        """The expected time of a batch by the distributions."""
        if row.own:
            return self._fixed + self._factors[row.size] * self._at(row.length) * self._mean(row.draws, 0.0)
        least = self._at(row.length) / self._usual if row.length >= 0.0 else 0.0
        return self._fixed + self._factors[row.size] * self._usual * self._mean(row.draws, least)

    # --- answers ------------------------------------------------------------------------------------------------------

    def length_of(self, job: Job) -> Length:
        """The distribution and the usual ``u`` of a job."""
        length = declared(job) if job.hints else None
        if length is not None:
            return OWN, self._at(length)
        name = job.request.app.name
        return (name if name in self._shares else OWN), self._usual

    def members(self, lengths: Sequence[Length]) -> BatchMembers:
        """The members that decide the time of a batch of inputs of these lengths."""
        own: List[float] = []
        others: Dict[str, int] = {}
        for name, usual in lengths:
            if name == OWN:
                own.append(usual)
            else:
                others[name] = others.get(name, 0) + 1
        longest = max(own) if own else 0.0
        about = len([usual for usual in own if usual >= HALF * longest])
        return BatchMembers(longest, about, tuple(sorted(others.items())) if others else ())

    def alike(self, length: Length, count: int) -> BatchMembers:
        """The same of so many inputs of one length."""
        name, usual = length
        return BatchMembers(usual, count, ()) if name == OWN else BatchMembers(0.0, 0, ((name, count),))

    def mean_ns(self, size: int, members: BatchMembers) -> int:
        """The time that a batch is expected to take."""
        longest = members.longest
        if longest and OWN in self._shares:
            longest *= self._mean(((OWN, members.about),), 0.0)
        if members.others:
            longest = self._usual * self._mean(members.others, longest / self._usual)
        return self._told_ns(size, longest, 0.6)

    def within_ns(self, size: int, members: BatchMembers, share: float) -> int:
        """The time that such a share of these batches end within."""
        longest = members.longest
        if longest and OWN in self._shares:
            longest *= self._ratio(((OWN, members.about),), share)
        if members.others:
            longest = max(longest, self._usual * self._ratio(members.others, share))
        return self._told_ns(size, longest, share)

    def alone_ns(self, length: Length, share: float) -> int:
        """The time that an input of this length does not exceed alone in ``share`` of all cases."""
        return self.within_ns(self.first, self.alike(length, 1), share)

    def chance(self, size: int, members: BatchMembers, within_ns: int) -> float:
        """The chance that a batch ends within ``within_ns``."""
        within = within_ns * self._latency.speed
        if not self._shares:
            return bisect_right(self._pace, within / self._time(size, members.longest)) / len(self._pace)
        growth = (within - self._fixed) / self._factors[size]
        chance = 1.0
        if members.longest and OWN in self._shares:
            chance = self._share(OWN, growth / members.longest) ** members.about
        elif growth < members.longest:
            return 0.0
        for name, count in members.others:
            chance *= self._share(name, growth / self._usual) ** count
        return chance

    def figures(self) -> Mapping[str, Any]:
        """The learnt law in plain numbers, times in ms."""
        apps = {name: ns_to_ms(self.alone_ns((name, self._usual), EVEN)) for name in sorted(self._shares) if name}
        return {
            "is_wide": self.is_wide,
            "batches": len(self._rows),
            "fixed_ms": ns_to_ms(round(self._fixed)),
            "per_length_ms": ns_to_ms(round(self._line[1])),
            "alone_ms": apps,
        }

    def _time(self, size: int, longest: float) -> float:
        return self._fixed + self._factors[size] * longest

    def _told_ns(self, size: int, longest: float, share: float) -> int:
        time = self._time(size, longest)
        if not self._shares:  # nothing but noise: as of the last batches
            time *= self._pace[int(share * (len(self._pace) - 1))]
        return math.ceil(time / self._latency.speed)

    def _share(self, name: str, ratio: float) -> float:
        place = bisect_right(self._points, ratio)
        return self._shares[name][place - 1] if place else 0.0

    def _mean(self, draws: Draws, least: float) -> float:
        """The expected longest of so many draws of each distribution, and of ``least``, over the usual ``u``."""
        _, tails, masses = self._longest(draws)
        above = len(self._points) - bisect_right(self._points, least)
        return tails[above] + least * (1.0 - masses[above])

    def _ratio(self, draws: Draws, share: float) -> float:
        """The bound that the longest of so many draws does not exceed in such a share of all cases, over the usual
        ``u``."""
        return self._points[min(bisect_left(self._longest(draws)[0], share), len(self._points) - 1)]

    def _longest(self, draws: Draws) -> Tuple[List[float], List[float], List[float]]:
        """The distribution of the longest of so many draws; of the highest 0, 1, .. points the sum of what they add to
        its mean, and their chance."""
        known = self._joint.get(draws)
        if known is None:
            joint = [1.0] * len(self._points)
            for name, count in draws:
                joint = [chance * share**count for chance, share in zip(joint, self._shares[name])]
            tails, masses = [0.0], [0.0]
            for point, part in zip(reversed(self._points), reversed(parts(joint))):
                tails.append(tails[-1] + point * part)
                masses.append(masses[-1] + part)
            known = self._joint[draws] = joint, tails, masses
        return known
