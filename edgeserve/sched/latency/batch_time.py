"""The times of batches of one model on one lane: a table per question, made anew with each change.

Profile first, measured durations after. What changes from second to second (clocks, heat, other load) slows all batch
sizes alike; so all times are the standard time of their size, which follows slowly, times one slowdown, which every
batch moves at once. (By its own last runs alone the size would win whose few runs were lucky.) Integers, parts per
million: decisions are the same on every Python. ``docs/guide/batch-times.md`` says which table serves which question.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.profile_record import QUANTILES, Clocks, Timing
from edgeserve.sched.latency.contradiction import ServedTimes
from edgeserve.sched.latency.declared import DeclaredShare
from edgeserve.sched.latency.window import Window
from edgeserve.sched.requests.work import MILLI
from edgeserve.units import FOREVER_NS, NS_PER_MS, PPM

if TYPE_CHECKING:
    from edgeserve.sched.latency.clock_speed import ClockSpeed  # imported where a profile names its clocks
    from edgeserve.sched.latency.work_time import WorkTime  # imported where a policy asks for it

LIVE = "live"
"""The basis of an estimate by batches that were served. Else it is that of the first one (``contradiction.py``)."""

WINDOW_LEN = 10
"""Measured batches that every estimate looks back on (Clockwork, section 3: the last 10)."""

WINDOW_AGE_NS = 10_000 * NS_PER_MS
"""A duration older than this no longer counts, so that a batch size whose estimate became too pessimistic is tried
again (Clockwork's pitfall: a size that never runs is never re-measured)."""

MIDDLE = 0.6
"""The quantile of :attr:`BatchTime.typical_ns`: of ten batches the upper of the two middle ones, which is nearer to
their mean. Policies add up the times of many steps."""

LIKELY = 0.8
"""The quantile of :attr:`BatchTime.likely_ns`, one that profiles have."""

PRIOR, PLACE_LEN = 8, 64
"""The weight of the profile, in batches that agree with it, beside a size's last batches, in its comparison with the
other sizes; and the number of these batches. In the mean of batches of all sizes that of the typical time."""

PLACE_MAX = 2
"""A size is at most so many times slower or faster beside the others than the profile says."""

REMEMBERED = 8
"""Slowdowns remembered, one for each call of :meth:`BatchTime.forget`: a changed clock is noticed sooner."""

SERVED_EVERY_NS = 100 * NS_PER_MS
"""One batch in so long may contradict the profile, so that ten of them are no hiccup of a few milliseconds."""

CONTRADICTS_PPM = 1_500_000
"""Times that differ by less than this factor contradict nothing: other load does as much."""

CONTRADICTS_NS = NS_PER_MS // 10
"""Nor do times that differ by less than this: a thread that wakes up late takes as much."""


class Known(NamedTuple):
    """The basis of the estimates of one batch size: ``source`` is :data:`LIVE` where batches of this size were
    measured lately; ``measured`` is the number of measurements, ``age_ns`` the age of the newest (None: all were taken
    before the start). Estimates do not change with it."""

    source: str
    measured: int
    age_ns: int | None


class BatchTime:
    """The present times of a model's batches on a lane.

    Tables by batch size, in nanoseconds at the lane's present speed; a table that changed may be a new object, so it is
    read from here each time. ``version`` rises when the tables of the present slowdown (typical, likely, slowest) have
    changed.

    ``estimate_ns``    the careful estimate for planning: the maximum of the size's last ten durations, before the first
                       the profile's 99th percentile (Clockwork, section 3)
    ``likely_ns``      the 80th percentile, for decisions that one slow batch in ten must not sway
    ``typical_ns``     the middle of what batches take now: what the work is worth, not what it may take
    ``slowest_ns``     as slow as the slowest of the last ten batches of any size: for what must not be late
    ``profiled_ns``    the profile's mean, without later measurements: for policies that planned ahead of time

    ``sizes`` are the batch sizes that have a time, and ``size_for[n]`` is the one that n jobs run as: the smallest that
    holds them. ``alone_ns`` and ``alone_likely_ns`` are the careful and the likely time of the smallest,
    ``share_ns`` is the typical time of one job in a full batch.
    ``fixed_now_ns`` is the part of a batch's time that does not grow with it. ``observed_ns`` is when a batch was
    measured last. ``rest_ns`` is by how much longer a batch takes after a rest of its lane; 0 where no profile says so.
    ``served`` are the latest batches beside the first estimates.
    ``slowdown_ppm`` is how many times longer than in the profile batches typically take at equal speed.
    ``learns_work``: :meth:`observe` wants to know the work that jobs declare, and all tables are of standard work,
    since a policy has asked for :meth:`work` or has set it. What does not change: ``seeds``, the timings that the
    tables began with, ``fixed_ns`` (c0 of the affine fit) and ``alone``, the profiled times alone by app, for models
    whose time depends on the input, all at speed 1.
    """

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
        clocks: ClockSpeed | None = None,
        rested_ns: int = 0,
    ) -> None:
        self.model = model
        self.lane = lane
        self.sizes = tuple(sizes)
        self.size_max = self.sizes[-1]
        self.size_for: List[int] = [self.sizes[0]]
        for size in self.sizes:
            self.size_for += [size] * (size + 1 - len(self.size_for))
        self.age_ns = age_ns
        self.seeds: Mapping[int, Timing] = {size: seeds[size] for size in self.sizes}
        medians_ns = {size: max(1, seed.median_ns) for size, seed in self.seeds.items()}
        self.fixed_ns = fixed_ns or fixed_part_ns(medians_ns)
        first = self.sizes[0]
        self._each_ns = max(0, self.seeds[first].median_ns - self.fixed_ns) // first  # that a standard job adds
        self.alone: Mapping[str, Sequence[int]] = alone or {}
        self.speed = 1.0
        self._clocks = clocks
        self.rest_ns = max(1, rested_ns - medians_ns[self.sizes[0]]) if rested_ns else 0
        self._rests = Window(WINDOW_LEN)
        self._moved_ns = -FOREVER_NS  # when the lane's clocks changed last
        self.version = 0
        self.learns_work = False
        self.observed_ns = -FOREVER_NS
        self.served = ServedTimes(self.seeds, sources or {})
        self._windows: Dict[int, Window] = {size: Window(WINDOW_LEN, age_ns=age_ns) for size in self.sizes}
        self._ratios = Window(WINDOW_LEN, age_ns=age_ns)  # measured over standard, of batches of any size
        spreads = sorted([_spread_ppm(seed) for seed in self.seeds.values()])
        self._first_ppm = spreads[len(spreads) // 2]  # the likely slowdown before the first measurement
        self._told_ppm: Tuple[int, ...] = (0, 0, 0)
        self._standard_ns = medians_ns
        self._places: Dict[int, Tuple[int, int]] = {}  # size -> (times the profile, beside the others; batches seen)
        self._last = (0, PPM)  # the last batch: its size and its ratio
        self._mean_ppm, self._meant = PPM, 0  # the mean ratio, and of how many batches
        self._remembered = Window(REMEMBERED)
        self._work: WorkTime | None = None
        self._declared = DeclaredShare()
        self._mixed = 0  # batches since the last that was of steps alone
        self.estimate_ns: Dict[int, int] = {}
        self.profiled_ns: Dict[int, int] = {}
        self.alone_ns = 0
        self.fixed_now_ns = 0
        self._set_tables()
        self._set_slowdown(True)

    # --- what changes it ----------------------------------------------------------------------------------------------

    def observe(
        self,
        now_ns: int,
        size: int,
        took_ns: int,
        over_milli: int | None = None,
        steps: int = 1,
        as_profiled: bool = True,
        mixed: bool = False,
        rested: bool = False,
    ) -> None:
        """A batch of this size took ``took_ns`` at the present speed.

        Its jobs were ``over_milli`` thousandths of a standard job more work than as many standard ones (None: nothing
        tells); the call made so many ``steps`` of an iterative model, and a step is what the tables are of. Not
        ``as_profiled``: the batch read prompts, too, which says nothing against the profile's steps. ``mixed``: it read
        them whole, before its steps, so that it tells what a step takes only where no others did, for as many batches
        as are looked back on. ``rested``: it came after a rest of its lane, and tells only what that costs: the longest
        of the last ten such delays.
        """
        if rested:
            seed_ns = max(1, self.seeds[size].median_ns)
            told_ns = max(1, seed_ns + self._each_ns * (over_milli or 0) // MILLI * self.declared_ppm // PPM)
            self._rests.add(max(1, took_ns - self.typical_ns[size] * steps * told_ns // seed_ns))
            self.rest_ns = self._rests.values[-1]
            return
        self._mixed = self._mixed + 1 if mixed else 0
        if mixed and self._mixed <= WINDOW_LEN:
            return
        self.observed_ns = now_ns
        duration_ns = math.ceil(took_ns * self.speed / steps)
        if over_milli is not None:
            seed_ns = max(1, self.seeds[size].median_ns)
            more_ns = self._each_ns * over_milli // MILLI
            if (seed_ns + more_ns) * MILLI < seed_ns:
                return  # "no work": how long that took tells nothing of any work
            told_ns = max(1, seed_ns + more_ns * self._declared.share_ppm // PPM)
            self._declared.observe(more_ns * PPM // seed_ns, duration_ns * PPM // seed_ns * PPM // self.slowdown_ppm)
            duration_ns = max(1, duration_ns * seed_ns // told_ns)
        window = self._windows[size]
        window.add(duration_ns, now_ns)
        self.estimate_ns[size] = math.ceil(window.values[-1] / self.speed)
        self.alone_ns = self.estimate_ns[self.sizes[0]]
        ratio_ppm = max(1, duration_ns * PPM // self._standard_ns[size])
        self._ratios.add(ratio_ppm, now_ns)
        before, self._last = self._last, (size, ratio_ppm)
        if before[0] not in (size, 0):  # where only one size runs, nothing tells its own part from the slowdown
            self._compare(before, self._last)
            self._set_slowdown(True)
        else:
            self._set_slowdown(False)
        self._meant = min(self._meant + 1, PLACE_LEN)
        self._mean_ppm += (ratio_ppm - self._mean_ppm) // self._meant
        work = self._work
        if work is not None:
            work.is_declared = work.is_declared or over_milli is not None
            each_ns = self._each_ns * self._declared.share_ppm // PPM
            work.follow(self.slowdown_ppm, self._standard_ns, each_ns, self.speed)
        if as_profiled and now_ns >= self.served.due_ns:
            times_ppm = self.served.add(now_ns, size, duration_ns)
            if self._clocks is not None and self._clocks.ran(round(times_ppm / self.speed)):
                self.set_speed(self._clocks.speed, self._moved_ns)

    def forget(self, now_ns: int) -> None:
        """Let go of durations older than ``age_ns``."""
        if not self._ratios.values:  # the last of all sizes: none has any
            return
        self._remembered.add(self.slowdown_ppm, now_ns)
        for size, window in self._windows.items():
            if window.forget(now_ns):
                self._set_estimate(size)
        if self._ratios.forget(now_ns):
            if not self._ratios.values:
                self._mean_ppm, self._meant = PPM, 0
            self._set_slowdown(False)
            if self._work is not None:
                self._set_work(self._work)

    def set_clocks(self, clocks: Clocks, speed: float, since_ns: int | None = None) -> None:
        """The lane has these clocks from now on, or from some time after ``since_ns`` on. ``speed`` is the lane's: the
        model's where the clocks of its profile are not known."""
        if self._clocks is not None and self._clocks.move(clocks):
            self._moved_ns = self.observed_ns if since_ns is None else since_ns
            speed = self._clocks.speed
        if speed != self.speed:
            self.set_speed(speed, since_ns)

    def set_speed(self, speed: float, since_ns: int | None = None) -> None:
        """The lane runs at another speed from now on (1.0 = as profiled), or from some time after ``since_ns`` on: what
        was measured since then and is explained by the new speed no longer counts as slowdown."""
        if speed <= 0:
            raise ValueError(f"lane {self.lane!r}: speed {speed} must be above 0")
        if since_ns is not None and since_ns < self.observed_ns:
            self._explain(since_ns, speed / self.speed)
        self.speed = speed
        self._set_tables()
        self._set_slowdown(True)
        if self._work is not None:
            self._set_work(self._work)

    @property
    def declared_ppm(self) -> int:
        """The part of declared extra work that counts, as batches have shown it, in millionths."""
        return self._declared.share_ppm

    # --- less frequent questions --------------------------------------------------------------------------------------

    def work(self) -> WorkTime:
        """The times of any amount of work, and the best split of n jobs into batches. From the first time that a policy
        asks, all tables are of standard work."""
        if self._work is None:
            from edgeserve.sched.latency.work_time import WorkTime

            self.learns_work = True
            self._work = WorkTime()
            self._set_work(self._work)
        return self._work

    def mean_ns(self, size: int) -> int:
        """The lane time of a batch in the mean, which rare slow ones make longer than the typical time: for sums."""
        mean_ppm = (PRIOR * self.slowdown_ppm + self._meant * self._mean_ppm) // (PRIOR + self._meant)
        return max(self.typical_ns[size], int(self._standard_ns[size] * mean_ppm / (PPM * self.speed)))

    def durations_ns(self, size: int) -> List[int]:
        """The last ten durations of a size, at speed 1, the oldest first."""
        return [duration_ns for _, duration_ns in self._windows[size].rows()]

    def fastest_alone_ns(self, since_ns: int) -> int:
        """The shortest of the last ten runs of the smallest size, at the present speed; 0 where none was measured since
        ``since_ns``."""
        window = self._windows[self.sizes[0]]
        if not window.values or window.newest_ns < since_ns:
            return 0
        return math.ceil(window.quantile(0.0) / self.speed)

    def known(self, size: int, now_ns: int) -> Known:
        """The basis of the estimates of a size."""
        window = self._windows[size]
        if window.values:
            return Known(LIVE, len(window.values), max(0, now_ns - window.newest_ns))
        return Known(self.served.source(size), self.seeds[size].count, None)

    @property
    def slowdown_count(self) -> int:
        """The number of batches behind :attr:`slowdown_ppm`."""
        return len(self._ratios.values)

    # --- learning -----------------------------------------------------------------------------------------------------

    def _compare(self, one: Tuple[int, int], other: Tuple[int, int]) -> None:
        """Compare the sizes of two successive batches (size, ratio) without the slowdown of both: one takes the more of
        its standard time, the other the less."""
        before, ratio_before_ppm = one
        size, ratio_ppm = other
        apart_ppm = (ratio_ppm - ratio_before_ppm) * 2 * PPM // (ratio_ppm + ratio_before_ppm)
        apart_ppm = min(PPM // 2, max(-PPM // 2, apart_ppm))
        for moved, by_ppm in ((size, apart_ppm), (before, -apart_ppm)):
            place_ppm, count = self._places.get(moved, (PPM, 0))
            count = min(count + 1, PLACE_LEN)
            place_ppm += place_ppm * by_ppm // (PPM * (count + PRIOR))
            self._places[moved] = min(PPM * PLACE_MAX, max(PPM // PLACE_MAX, place_ppm)), count

    def _explain(self, since_ns: int, factor: float) -> None:
        """A clock that changed at one moment after ``since_ns`` explains what was measured since that moment: at the
        new speed it counts as ``factor`` times as long. The moment is the one that leaves the batches most like those
        before."""
        rows: List[Tuple[int, int, int]] = []
        for size, window in self._windows.items():
            rows += [(at_ns, size, duration_ns) for at_ns, duration_ns in window.rows()]
        rows.sort()
        usual_ppm = self._slowdown_before(since_ns, rows)
        changed_ns, gained, most = FOREVER_NS, 0, 0
        for at_ns, size, duration_ns in reversed(rows):
            if at_ns <= since_ns:
                break
            off = math.log(duration_ns * PPM / (self._standard_ns[size] * usual_ppm))
            gained += round(PPM * (abs(off) - abs(off + math.log(factor))))
            if gained > most:
                changed_ns, most = at_ns, gained
        windows = {size: Window(WINDOW_LEN, age_ns=self.age_ns) for size in self.sizes}
        ratios = Window(WINDOW_LEN, age_ns=self.age_ns)
        total_ppm = 0
        for at_ns, size, duration_ns in rows:
            if at_ns >= changed_ns:
                duration_ns = max(1, round(duration_ns * factor))
            windows[size].add(duration_ns, at_ns)
            ratio_ppm = max(1, duration_ns * PPM // self._standard_ns[size])
            ratios.add(ratio_ppm, at_ns)
            total_ppm += ratio_ppm
        self._windows, self._ratios = windows, ratios
        if changed_ns < FOREVER_NS:  # older batches in the mean cannot be told apart
            self._meant = min(len(rows), PLACE_LEN)
            self._mean_ppm = total_ppm // len(rows)

    def _slowdown_before(self, since_ns: int, rows: Sequence[Tuple[int, int, int]]) -> int:
        """The slowdown at that time: as remembered, else by the batches before it, else that of the profile."""
        for at_ns, slowdown_ppm in reversed(self._remembered.rows()):
            if at_ns <= since_ns:
                return slowdown_ppm
        before = Window(WINDOW_LEN)
        for at_ns, size, duration_ns in rows:
            if at_ns <= since_ns:
                before.add(max(1, duration_ns * PPM // self._standard_ns[size]))
        return before.quantile(MIDDLE) if before.values else PPM

    # --- the tables ---------------------------------------------------------------------------------------------------

    def _set_estimate(self, size: int) -> None:
        window = self._windows[size]
        known_ns = window.values[-1] if window.values else self.seeds[size].p99_ns
        self.estimate_ns[size] = math.ceil(known_ns / self.speed)
        self.alone_ns = self.estimate_ns.get(self.sizes[0], 0)

    def _set_slowdown(self, is_new: bool) -> None:
        """Make the tables of the present slowdown anew where it has changed. ``is_new``: a standard time or the speed
        has. O(sizes). No time is less than a nanosecond: rates divide by it."""
        if is_new:
            self._standard_ns = {
                size: max(1, max(1, seed.median_ns) * self._places.get(size, (PPM, 0))[0] // PPM)
                for size, seed in self.seeds.items()
            }
        ratios = self._ratios.values
        last = len(ratios) - 1
        told_ppm = (PPM, self._first_ppm, self._first_ppm)
        if ratios:
            told_ppm = (ratios[int(MIDDLE * last)], ratios[int(LIKELY * last)], ratios[last])
        if told_ppm == self._told_ppm and not is_new:
            return
        self._told_ppm = told_ppm
        self.slowdown_ppm = told_ppm[0]
        self.version += 1
        standard_ns, speed = self._standard_ns, self.speed
        typical, likely, slowest = told_ppm if speed == 1.0 else [math.ceil(item / speed) for item in told_ppm]
        self.typical_ns = {size: -(-time_ns * typical // PPM) for size, time_ns in standard_ns.items()}
        self.likely_ns = {size: -(-time_ns * likely // PPM) for size, time_ns in standard_ns.items()}
        self.slowest_ns = {size: -(-time_ns * slowest // PPM) for size, time_ns in standard_ns.items()}
        self.alone_likely_ns = self.likely_ns[self.sizes[0]]
        self.share_ns = max(1, self.typical_ns[self.size_max] // self.size_max)

    def _set_tables(self) -> None:
        for size in self.sizes:
            self._set_estimate(size)
        self.profiled_ns = {size: math.ceil(seed.mean_ns / self.speed) for size, seed in self.seeds.items()}
        self.fixed_now_ns = math.ceil(self.fixed_ns / self.speed)

    def _set_work(self, work: WorkTime) -> None:
        each_ns = self._each_ns * self._declared.share_ppm // PPM
        work.follow(self.slowdown_ppm, self._standard_ns, each_ns, self.speed)


def fixed_part_ns(times_ns: Mapping[int, int]) -> int:
    """c0 of the straight line ``c0 + c1 * size`` through the times (least squares), between 0 and the smallest time;
    0 for a single size. Where small batches lie below the line, that of the parallel through the first: with all of the
    first time fixed, no part would be left to grow."""
    if len(times_ns) < 2:
        return 0
    mean_size = sum(times_ns) / len(times_ns)
    mean_ns = sum(times_ns.values()) / len(times_ns)
    rise = sum([(size - mean_size) * (time_ns - mean_ns) for size, time_ns in times_ns.items()], 0.0) / sum(
        [(size - mean_size) ** 2 for size in times_ns], 0.0
    )
    first = min(times_ns)
    return max(0, min(round(mean_ns - rise * mean_size), round(times_ns[first] - rise * first), min(times_ns.values())))


def _spread_ppm(seed: Timing) -> int:
    """The likely time of a profiled size, in millionths of its middle."""
    return seed.quantiles_ns[QUANTILES.index(LIKELY)] * PPM // max(1, seed.median_ns) if seed.quantiles_ns else PPM
