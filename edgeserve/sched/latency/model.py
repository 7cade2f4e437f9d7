"""How long batches of one model take on one lane: a table per answer, made anew by what changes them.

Profile first, measured durations after, scaled by the lane's speed. Integers only, so that decisions are the same on
every Python. ``docs/guide/batch-times.md`` explains which answer is for what.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Deque, Dict, List, Mapping, Sequence, Tuple

from edgeserve.config.profiles import QUANTILES, Timing
from edgeserve.errors import ProfileError
from edgeserve.sched.latency.confidence import ASSUMED, EXPECTED, LIVE, PROFILE, Confidence
from edgeserve.sched.latency.contradiction import Contradiction, Served
from edgeserve.sched.latency.distribution import Distribution
from edgeserve.sched.latency.drift import Drift
from edgeserve.sched.latency.skew import PPM
from edgeserve.sched.latency.usual_work import UsualWork
from edgeserve.units import NS_PER_MS, ns_to_ms

WINDOW_LEN = 10
"""Durations per batch size that the estimate looks back on (Clockwork, section 3: the last 10)."""

LIKELY = QUANTILES.index(0.8)
"""The stored quantile that stands for :attr:`ModelLatency.likely_ns` before the first measurement."""

WINDOW_AGE_NS = 10_000 * NS_PER_MS
"""A duration older than this no longer counts, so that a batch size whose estimate became too pessimistic is tried
again (Clockwork's pitfall: what is never run is never re-measured)."""

PHASES_MAX = 8
"""Phases of one model that are told apart: prefill and decode, and room for a few more."""


class ModelLatency:
    """One model on one lane, or one phase of it: how long a batch takes now.

    Tables by batch size, in nanoseconds at the lane's present speed; a table that changed may be a new object, so it
    is read from here each time. :meth:`observe`, :meth:`forget` and :meth:`set_speed` are the only methods that change
    them. ``version`` rises whenever the three tables of the present pace (typical, likely, slowest) have changed.

    ``estimate_ns``    the careful estimate for planning: the maximum of the size's last ten durations, before the first
                       the profile's 99th percentile (Clockwork, section 3)
    ``likely_ns``      the 75th percentile, for decisions that one slow batch in ten must not sway: the careful estimate
                       would refuse everything for as long as a single outlier above the deadline stays in the window
    ``typical_ns``     the middle of what batches take now: what the work is worth, not what it may take
    ``slowest_ns``     as slow as the slowest of the last ten batches of any size: for what must not be late
    ``profiled_ns``    the profile's mean, whatever was measured since: for policies that planned ahead of time

    ``sizes`` are the batch sizes that have a time, and ``size_for[n]`` is the one that n jobs run as: the smallest that
    holds them. ``alone_ns`` and ``alone_likely_ns`` are the careful and the likely time of the smallest.
    ``fixed_now_ns`` is the part of a batch's time that does not grow with it. ``observed_ns`` is when a batch was
    measured last. ``learns_work``: :meth:`observe` wants to know the work, since somebody asks for :meth:`usual`, or
    since a policy that goes by what jobs declare has set it: inputs that are unequal as declared are no surprise. What
    does not change: ``seeds``, the timings that the tables began with, ``fixed_ns`` (c0 of the affine fit) and
    ``alone``, the profiled times alone by app, for models whose time depends on the input, all at speed 1.
    """

    __slots__ = (
        "model",
        "lane",
        "sizes",
        "size_max",
        "size_for",
        "seeds",
        "fixed_ns",
        "alone",
        "age_ns",
        "version",
        "speed",
        "estimate_ns",
        "likely_ns",
        "typical_ns",
        "slowest_ns",
        "profiled_ns",
        "alone_ns",
        "alone_likely_ns",
        "fixed_now_ns",
        "learns_work",
        "phases",
        "_sources",
        "_windows",
        "_longest_ns",
        "_drift",
        "_usual",
        "_oldest_ns",
        "observed_ns",
        "_served",
    )

    def __init__(
        self,
        model: str,
        lane: str,
        seeds: Mapping[int, Timing],
        sizes: Sequence[int],
        age_ns: int = WINDOW_AGE_NS,
        fixed_ns: int = 0,
        alone: Mapping[str, Sequence[int]] | None = None,
        sources: Mapping[int, str] | None = None,
    ) -> None:
        missing = [size for size in sizes if size not in seeds]
        if missing:
            raise ProfileError(
                f"model {model!r} on lane {lane!r}: batch sizes {missing} have no measured time "
                f"(measured: {', '.join(map(str, sorted(seeds))) or 'none'}); run 'edgeserve profile' "
                f"or give [model.{model}.expected]"
            )
        self.model = model
        self.lane = lane
        self.sizes = tuple(sizes)
        self.size_max = self.sizes[-1]
        self.size_for: List[int] = [self.sizes[0]]
        for size in self.sizes:
            self.size_for += [size] * (size + 1 - len(self.size_for))
        self.age_ns = age_ns
        self.seeds: Mapping[int, Timing] = {size: seeds[size] for size in self.sizes}
        self.fixed_ns = fixed_ns or fixed_part_ns({size: seeds[size].median_ns for size in sizes})
        self.alone: Mapping[str, Sequence[int]] = alone or {}
        self.speed = 1.0
        self.version = 0
        self.learns_work = False
        self.phases: Dict[str, ModelLatency] = {}
        self._sources: Mapping[int, str] = sources or {}
        self._windows: Dict[int, Deque[Tuple[int, int]]] = {size: deque(maxlen=WINDOW_LEN) for size in self.sizes}
        self._longest_ns: Dict[int, int] = dict.fromkeys(self.sizes, -1)  # of each window; -1: it is empty
        self._oldest_ns = 2**62
        self.observed_ns = -(2**62)
        self._drift = _drift_of(self.seeds, self.fixed_ns)
        self._usual: UsualWork | None = None
        self._served = Served({size: seed.median_ns for size, seed in self.seeds.items()}, self.fixed_ns)
        self.estimate_ns: Dict[int, int] = {}
        self.profiled_ns: Dict[int, int] = {}
        self.alone_ns = 0
        self.fixed_now_ns = 0
        self._set_tables()
        self._set_drift()

    # --- what changes it ----------------------------------------------------------------------------------------------

    def observe(
        self,
        now_ns: int,
        size: int,
        took_ns: int,
        over_milli: int | None = None,
        steps: int = 1,
        phase: str = "",
        as_profiled: bool = True,
    ) -> None:
        """A batch of this size took ``took_ns`` at the present speed.

        Its jobs were ``over_milli`` thousandths of a usual job more work than as many usual ones (None: nothing tells);
        the call made so many ``steps`` of an iterative model, and a step is what the tables are of; it was this
        ``phase`` of the model, which has tables of its own (``""``: the whole). Not ``as_profiled``: the batch read
        prompts, too, which says nothing against the profile's steps.
        """
        if phase:
            self.phase(phase).observe(now_ns, size, took_ns, over_milli, steps)
            return
        if steps > 1:
            took_ns = -(-took_ns // steps)
        duration_ns = took_ns if self.speed == 1.0 else math.ceil(took_ns * self.speed)
        self.observed_ns = now_ns
        window, longest_ns = self._windows[size], self._longest_ns[size]
        leaving_ns = window[0][1] if len(window) == WINDOW_LEN else 0
        window.append((now_ns, duration_ns))
        if now_ns < self._oldest_ns:
            self._oldest_ns = now_ns
        if duration_ns > longest_ns or leaving_ns == longest_ns:
            self._set_estimate(size)
        if self._drift.observe(now_ns, size, duration_ns, over_milli is not None):
            self._set_drift()
        if self._usual is not None:
            self._usual.observe(now_ns, size, took_ns, self.typical_ns, over_milli)
        if as_profiled and now_ns >= self._served.due_ns:
            self._served.observe(now_ns, size, duration_ns, over_milli or 0)

    def forget(self, now_ns: int) -> None:
        """Let go of durations older than ``age_ns``. Cheap when there is nothing to forget."""
        for phase in self.phases.values():
            phase.forget(now_ns)
        self._drift.settle(now_ns)
        if now_ns - self._oldest_ns <= self.age_ns:
            return
        self._oldest_ns = 2**62
        for size, window in self._windows.items():
            while window and now_ns - window[0][0] > self.age_ns:
                window.popleft()
            if window and window[0][0] < self._oldest_ns:
                self._oldest_ns = window[0][0]
            self._set_estimate(size)
        if self._drift.forget(now_ns - self.age_ns):
            self._set_drift()
        if self._usual is not None:
            self._usual.forget(now_ns - self.age_ns, self.typical_ns)

    def set_speed(self, speed: float, since_ns: int | None = None) -> None:
        """The lane runs at another speed from now on (1.0 = as profiled), or from some time after ``since_ns`` on: what
        was measured since then and is explained by the new speed no longer counts as drift."""
        if speed <= 0:
            raise ValueError(f"lane {self.lane!r}: speed {speed} must be above 0")
        for phase in self.phases.values():
            phase.set_speed(speed, since_ns)
        if since_ns is not None and since_ns < self.observed_ns:
            factor = speed / self.speed
            self._drift.explain(since_ns, factor)
            self._drift.explain_durations(since_ns, factor, self._windows)
        self.speed = speed
        self._set_tables()
        self._set_drift()
        if self._usual is not None:
            self._usual.renew(self.profiled_ns, self.typical_ns, self.fixed_now_ns)

    # --- what is asked less often -------------------------------------------------------------------------------------

    def usual(self) -> UsualWork:
        """The times of usual work, and the best split of n jobs into batches. They are learnt from the first time
        somebody asks."""
        if self._usual is None:
            self.learns_work = True
            self._usual = UsualWork(self.profiled_ns, self.typical_ns, self.fixed_now_ns)
        return self._usual

    def phase(self, name: str) -> ModelLatency:
        """The tables of one phase of the model (prefill, decode). A new one begins with the seeds of the whole."""
        found = self.phases.get(name)
        if found is None:
            if len(self.phases) >= PHASES_MAX:
                raise ValueError(
                    f"model {self.model!r} on lane {self.lane!r}: phase {name!r} is one too many, at most "
                    f"{PHASES_MAX} are told apart ({', '.join(self.phases)})"
                )
            found = self.phases[name] = ModelLatency(
                self.model, self.lane, self.seeds, self.sizes, self.age_ns, self.fixed_ns, self.alone, self._sources
            )
            found.set_speed(self.speed)
            found._served.due_ns = 2**62  # its seeds are the whole's: they say nothing of the phase
        return found

    def distribution(self, size: int) -> Distribution:
        """All that is known of a batch of this size, at the present speed: the window if it is full, else the
        profile."""
        window = self._windows[size]
        if len(window) == WINDOW_LEN:
            return Distribution.of_samples([duration for _, duration in window]).scaled(1 / self.speed)
        seed = self.seeds[size]
        known = (
            Distribution.of_quantiles(seed.quantiles_ns)
            if seed.quantiles_ns
            else Distribution([seed.median_ns, seed.p99_ns], [0.5, 1.0])
        )
        return known.scaled(1 / self.speed)

    def fastest_alone_ns(self, since_ns: int) -> int:
        """The shortest of the last ten runs of the smallest size, at the present speed; 0 where none was measured since
        ``since_ns``."""
        window = self._windows[self.sizes[0]]
        if not window or window[-1][0] < since_ns:
            return 0
        return math.ceil(min([duration for _, duration in window]) / self.speed)

    def pace_ppm(self) -> int:
        """How many times longer than in the profile batches typically take now, in millionths, at equal speed."""
        return self._drift.pace_ppm

    def confidence(self, size: int, now_ns: int) -> Confidence:
        """What the estimates of a size stand on."""
        window, pace_count = self._windows[size], self._drift.measured
        if window:
            return Confidence(LIVE, len(window), max(0, now_ns - window[-1][0]), pace_count)
        return Confidence(self._source(size), self.seeds[size].count, None, pace_count)

    def contradiction(self) -> Contradiction | None:
        """Whether the latest served batches contradict what the estimates began with."""
        found = self._served.contradiction({size: self._source(size) for size in self.sizes})
        return None if found is None or found.source == ASSUMED else found

    def _source(self, size: int) -> str:
        """What the estimates of a size began with."""
        return self._sources.get(size, PROFILE if self.seeds[size].count else EXPECTED)

    def figures(self, now_ns: int) -> Dict[str, Any]:
        """What is known, in plain numbers for people, times in ms: ``stats`` shows it."""
        sizes: Dict[str, Any] = {}
        for size in self.sizes:
            known = self.confidence(size, now_ns)
            sizes[str(size)] = {
                "typical_ms": ns_to_ms(self.typical_ns[size]),
                "likely_ms": ns_to_ms(self.likely_ns[size]),
                "estimate_ms": ns_to_ms(self.estimate_ns[size]),
                "source": known.source,
                "measured": known.measured,
                "age_ms": None if known.age_ns is None else ns_to_ms(known.age_ns),
            }
        table: Dict[str, Any] = {
            "pace": self.pace_ppm() / PPM,
            "skew": self._drift.skew.skew_ppm / PPM,
            "pace_measured": self._drift.measured,
            "sizes": sizes,
        }
        found = self.contradiction()
        if found is not None:
            table["contradiction"] = {
                "source": found.source,
                "size": found.size,
                "began_ms": ns_to_ms(found.began_ns),
                "served_ms": ns_to_ms(found.served_ns),
                "batches": found.batches,
            }
        if self.phases:
            table["phases"] = {name: phase.figures(now_ns) for name, phase in self.phases.items()}
        return table

    # --- the tables ---------------------------------------------------------------------------------------------------

    def _set_estimate(self, size: int) -> None:
        window = self._windows[size]
        longest_ns = self._longest_ns[size] = max([duration for _, duration in window]) if window else -1
        known_ns = longest_ns if window else self.seeds[size].p99_ns
        self.estimate_ns[size] = known_ns if self.speed == 1.0 else math.ceil(known_ns / self.speed)
        self.alone_ns = self.estimate_ns.get(self.sizes[0], 0)

    def _set_drift(self) -> None:
        drift, speed = self._drift, self.speed
        self.version += 1
        if speed == 1.0:
            self.typical_ns, self.likely_ns, self.slowest_ns = drift.typical_ns, drift.likely_ns, drift.slowest_ns
        else:
            self.typical_ns, self.likely_ns, self.slowest_ns = [
                {size: math.ceil(time_ns / speed) for size, time_ns in table.items()}
                for table in (drift.typical_ns, drift.likely_ns, drift.slowest_ns)
            ]
        self.alone_likely_ns = self.likely_ns[self.sizes[0]]

    def _set_tables(self) -> None:
        for size in self.sizes:
            self._set_estimate(size)
        speed = self.speed
        self.profiled_ns = {
            size: seed.mean_ns if speed == 1.0 else math.ceil(seed.mean_ns / speed) for size, seed in self.seeds.items()
        }
        self.fixed_now_ns = self.fixed_ns if speed == 1.0 else math.ceil(self.fixed_ns / speed)


def fixed_part_ns(times_ns: Mapping[int, int]) -> int:
    """c0 of the straight line ``c0 + c1 * size`` through the times (least squares), between 0 and the smallest time;
    0 for a single size, which tells nothing about it. Where small batches lie below the line (times that rise ever
    slower), that of the parallel through the first: with all of the first time fixed, no part would be left to grow."""
    if len(times_ns) < 2:
        return 0
    mean_size = sum(times_ns) / len(times_ns)
    mean_ns = sum(times_ns.values()) / len(times_ns)
    rise = sum([(size - mean_size) * (time_ns - mean_ns) for size, time_ns in times_ns.items()], 0.0) / sum(
        [(size - mean_size) ** 2 for size in times_ns], 0.0
    )
    first = min(times_ns)
    return max(0, min(round(mean_ns - rise * mean_size), round(times_ns[first] - rise * first), min(times_ns.values())))


def _drift_of(seeds: Mapping[int, Timing], fixed_ns: int) -> Drift:
    """Before the first measurement: the profile's medians, and its spread over all sizes."""
    spreads = sorted(
        [
            seed.quantiles_ns[LIKELY] * PPM // max(1, seed.median_ns) if seed.quantiles_ns else PPM
            for seed in seeds.values()
        ]
    )
    return Drift({size: seed.median_ns for size, seed in seeds.items()}, spreads[len(spreads) // 2], fixed_ns)
