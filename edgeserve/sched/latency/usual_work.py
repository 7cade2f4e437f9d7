"""Times of usual work: how long batches take now if their jobs are as much work as usual ones, and what more work adds.

The tables of ``model.py`` say what batches took, whatever was in them. Where requests say how much work they are (the
hints ``work`` and ``NODE.work``), one large request would be taken for a slow machine; here its share is taken out
first. A batch of equal jobs takes ``profile * pace * place of its size``; work beyond the usual adds the part of the
smallest batch's time that grows with it. Integers only; knows no clock, no request and no lane.
"""

from __future__ import annotations

from collections import deque
from math import isqrt
from typing import Deque, Dict, List, Mapping, Tuple

from edgeserve.sched.latency.skew import PPM
from edgeserve.sched.latency.split import COUNT_MAX, BestSplit
from edgeserve.sched.requests.work import MILLI

CALM = 16
"""The pace follows what was last measured by this part of the difference. What is asked here are sums of batches, whose
errors cancel; the pace of ``drift.py`` looks back on ten batches, and its own swing would decide how many go together.
"""

BIAS_FROM, PLACE_LEN = 8, 64
"""How a size compares with the profile is the mean of its last batches, beside so many that agreed with the profile.
``drift.py`` follows each batch by the same step; of 32 sizes with 10 % of noise some then always seem 5 % too fast, and
the number of jobs that go together was chosen among those: half of all that was lost to noise."""

JUMP = 4
"""A pace that changed by more than this part (heat, another clock) is followed at once."""

TOLD_LEN = 10
"""Batches that the pace looks back on where jobs tell their work: as many as ``drift.py`` does."""


MISS_FROM = 16
"""Batches after which :meth:`UsualWork.miss_ppm` is known: its own error is then below a fifth."""


class UsualWork:
    """How one model on one lane serves any number of jobs, counted in usual ones: the best split into batches, and
    what more or less work than usual changes.

    :meth:`observe`, :meth:`forget` and :meth:`renew` change it; ``ModelLatency`` alone calls them. ``each_ns`` is what
    a usual job adds to a batch now; ``is_told`` says that these times differ from what batches took, since jobs tell
    their work.
    """

    __slots__ = (
        "split",
        "each_ns",
        "is_told",
        "_profiled_ns",
        "_typical_ns",
        "_fixed_ns",
        "_pace_ppm",
        "_paces",
        "_told",
        "_places",
        "_surprise_ppm",
        "_seen",
    )

    def __init__(self, profiled_ns: Mapping[int, int], typical_ns: Mapping[int, int], fixed_ns: int) -> None:
        self.split = BestSplit()
        self.each_ns = 0
        self.is_told = False
        self._pace_ppm = 0
        self._paces: Deque[Tuple[int, int]] = deque(maxlen=TOLD_LEN)  # (when, pace) of the last batches, once jobs tell
        self._told: Deque[Tuple[int, int]] = deque(maxlen=TOLD_LEN)  # (jobs, work beyond the usual) of those that told
        self._places: Dict[int, Tuple[int, int]] = {}  # size -> (place in ppm, batches seen)
        self._surprise_ppm = 0  # mean squared share by which a batch took more or less than was believed
        self._seen = 0
        self._profiled_ns: Mapping[int, int] = {}
        self._typical_ns: Mapping[int, int] = {}
        self._fixed_ns = 0
        self.renew(profiled_ns, typical_ns, fixed_ns)

    # --- what is learnt -----------------------------------------------------------------------------------------------

    def observe(
        self, now_ns: int, size: int, took_ns: int, typical_ns: Mapping[int, int], over_milli: int | None
    ) -> None:
        """A batch of this size was measured, whose jobs are so much more work than as many usual ones (None: none of
        them tells; they count as those that told did lately). O(sizes)."""
        self._typical_ns = typical_ns
        place, count = self._places.get(size, (PPM, 0))
        profiled_ns = max(1, self._profiled_ns[size])
        if over_milli is not None:
            self._told.append((size, over_milli))
        elif self._told:
            over_milli = size * sum([over for _, over in self._told]) // sum([jobs for jobs, _ in self._told])
        if over_milli is not None:  # what usual ones would have taken
            told_ns = profiled_ns + self._each_profiled_ns() * over_milli // MILLI
            if told_ns * MILLI < profiled_ns:
                return  # "no work": how long that took tells nothing of any work
            took_ns = took_ns * profiled_ns // told_ns
            self._paces.append((now_ns, took_ns * PPM // profiled_ns * PPM // place))
            self.is_told = True
        self._follow()
        ratio = took_ns * PPM // profiled_ns * PPM // self._pace_ppm
        surprise = min(2 * PPM, max(PPM // 2, ratio)) - place
        self._seen = min(self._seen + 1, PLACE_LEN)
        squared_ppm = (surprise * PPM // place) ** 2 // PPM
        self._surprise_ppm += (squared_ppm - self._surprise_ppm) // self._seen
        count = min(count + 1, PLACE_LEN)
        self._places[size] = (place + surprise // (count + BIAS_FROM), count)
        self._set()

    def forget(self, before_ns: int, typical_ns: Mapping[int, int]) -> None:
        """Paces from before then no longer count; those that are left, or what all batches took lately, do."""
        while self._paces and self._paces[0][0] < before_ns:
            self._paces.popleft()
        self._typical_ns = typical_ns
        self._follow()
        self._set()

    def renew(self, profiled_ns: Mapping[int, int], typical_ns: Mapping[int, int], fixed_ns: int) -> None:
        """The lane runs at another speed: these are the profile's times, the typical ones and the fixed part now."""
        self._profiled_ns = profiled_ns
        self._typical_ns = typical_ns
        self._fixed_ns = fixed_ns
        self._follow()
        self._set()

    def _follow(self) -> None:
        """The pace is the middle of what all sizes seem to need beside the profile. Where jobs tell their work, it is
        the middle of the last batches for usual ones."""
        typical, old = self._typical_ns, self._pace_ppm
        if self._paces:
            paces = sorted([pace for _, pace in self._paces])
        else:
            paces = sorted([typical[size] * PPM // max(1, time_ns) for size, time_ns in self._profiled_ns.items()])
        now = paces[len(paces) // 2]
        change = now - old
        if abs(change) * JUMP <= old:
            now = old + (change // CALM if change > 0 else -(-change // CALM))
        self._pace_ppm = max(1, now)

    def _set(self) -> None:
        pace, places = self._pace_ppm, self._places
        times: List[Tuple[int, int]] = []
        for size, time_ns in self._profiled_ns.items():
            now_ns = time_ns * pace // PPM
            if size in places:
                now_ns = now_ns * places[size][0] // PPM
            times.append((size, max(1, now_ns)))
        if times != self.split.times:
            self.split.set_times(times)
            self.each_ns = self._each_profiled_ns() * pace // PPM

    def _each_profiled_ns(self) -> int:
        size = next(iter(self._profiled_ns))
        return max(0, self._profiled_ns[size] - self._fixed_ns) // size

    # --- what it answers ----------------------------------------------------------------------------------------------

    def time_ns(self, milli: int, over_milli: int = 0) -> int:
        """Lane time of a number of jobs in thousandths, which are so much more work than as many usual ones; between
        whole numbers on a straight line."""
        whole, rest = divmod(milli, MILLI)
        split = self.split
        best_ns = split.best_ns
        if whole + 1 < len(best_ns) <= COUNT_MAX:  # the table is long enough: asked for most often
            time_ns = best_ns[whole]
            if rest:
                time_ns += (best_ns[whole + 1] - time_ns) * rest // MILLI
        elif whole >= COUNT_MAX:
            time_ns = split.time_ns(COUNT_MAX) * milli // (COUNT_MAX * MILLI)
        else:
            time_ns = split.time_ns(whole)
            if rest:
                time_ns += (split.time_ns(whole + 1) - time_ns) * rest // MILLI
        return max(1, time_ns + self.each_ns * over_milli // MILLI) if over_milli else time_ns

    def miss_ppm(self) -> int | None:
        """The share by which batches take more or less than is believed, as a standard deviation; None while fewer than
        :data:`MISS_FROM` were measured."""
        return isqrt(self._surprise_ppm * PPM) if self._seen >= MISS_FROM else None

    def variance_us2(self, milli: int, over_milli: int = 0) -> int:
        """How far the lane time of these jobs may be off: the sum of the batches' variances, in square microseconds.
        Surprises of one batch say little of the next (noise; what its items need): they add up as independent ones."""
        if not self._surprise_ppm:
            return 0
        count = min(-(-milli // MILLI), COUNT_MAX)
        scale_ppm = PPM
        if over_milli:
            usual_ns = self.split.time_ns(count)
            if usual_ns:
                scale_ppm = (max(1, usual_ns + self.each_ns * over_milli // MILLI) * PPM // usual_ns) ** 2 // PPM
        return self.split.squares_us2(count) * scale_ppm // PPM * self._surprise_ppm // PPM

    def batches(self, milli: int, over_milli: int = 0) -> List[Tuple[int, int]]:
        """(jobs, time) of the batches one by one, for a forecast of what shares the lane. Work beyond the usual is
        spread over them in proportion."""
        found = self.split.batches(-(-milli // MILLI))
        if over_milli and found:
            usual_ns, more_ns = sum([time_ns for _, time_ns in found]), self.each_ns * over_milli // MILLI
            found = [(jobs, max(1, time_ns * (usual_ns + more_ns) // usual_ns)) for jobs, time_ns in found]
        return found
