"""How fast a model runs now: the shape of its times over batch sizes, and one pace that all sizes share.

What changes from second to second (clocks, heat, other load) changes all sizes alike; how the sizes compare hardly
changes. Judging each size by its own last runs lets the one that is *believed* fastest win, which is often the one
whose few runs were lucky, or are long ago. So every measured batch moves the pace at once, and its own place in the
shape only slowly. (Drawing the shape to a line c0 + c1 * size as well lost a fifth of the goodput of a network whose
times rise in steps, as matrix kernels' do.) Integers, parts per million; knows no clock and no speed.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, Mapping, Tuple

from edgeserve.sched.latency.skew import PPM, Skew

DRIFT_LEN = 10  # measured batches that the pace looks back on, of any size
FEW = 5  # fewer measured batches than this: see _likely_index
BIAS_STEP = 32  # a batch that was slower or faster than the pace moves its size's place by this part
SQUARE = PPM * PPM
SETTLED_LEN = 8  # paces remembered, one a second: a changed clock is noticed sooner
BIAS_MAX = 2  # a size is at most so many times slower or faster beside the others than the profile says


class Drift:
    """Typical, likely and slowest times per batch size, as tables that :meth:`observe` and :meth:`forget` make anew.

    ``typical_ns`` is the middle of what batches take, ``likely_ns`` their 75th percentile, ``slowest_ns`` what a batch
    takes that is as slow as the slowest of those looked back on. ``pace_ppm`` is how many times longer than in the
    profile batches typically take now. ``shape_ns`` are the times at pace 1; ``likely_ppm`` is how much longer than
    these the 75th percentile is, before any batch was measured. Where inputs turn out unequal (``skew``), larger sizes
    take longer beside the smaller ones than these times say; ``fixed_ns`` is the part that unequal inputs leave alone.
    """

    __slots__ = (
        "typical_ns",
        "likely_ns",
        "slowest_ns",
        "pace_ppm",
        "skew",
        "_told_ns",
        "_shape_ns",
        "_bias_ppm",
        "_ratios",
        "_first_ppm",
        "_paces_ppm",
        "_minus_places",
        "_settled",
    )

    def __init__(self, shape_ns: Mapping[int, int], likely_ppm: int = PPM, fixed_ns: int = 0) -> None:
        self._told_ns: Dict[int, int] = {size: max(1, time_ns) for size, time_ns in shape_ns.items()}
        self._shape_ns = self._told_ns
        self.skew = Skew(self._told_ns, fixed_ns)
        self._bias_ppm: Dict[int, int] = dict.fromkeys(shape_ns, PPM)  # how a size's place differs from the profile's
        # (when, size, measured over shape in ppm, the same over the size's place)
        self._ratios: Deque[Tuple[int, int, int, int]] = deque(maxlen=DRIFT_LEN)
        self._first_ppm = likely_ppm
        self._paces_ppm = (0, 0, 0)
        self._settled: Deque[Tuple[int, int]] = deque(maxlen=SETTLED_LEN)  # (when, pace) of the last seconds
        self.pace_ppm = PPM
        self.typical_ns: Dict[int, int] = {}
        self.likely_ns: Dict[int, int] = {}
        self.slowest_ns: Dict[int, int] = {}
        self._minus_places: Dict[int, int] = {}  # -(shape * place): // then rounds times up
        self._place()
        self._renew(True)

    @property
    def measured(self) -> int:
        """How many measured batches the pace stands on, :data:`DRIFT_LEN` at most."""
        return len(self._ratios)

    def observe(self, now_ns: int, size: int, duration_ns: int, told: bool = False) -> bool:
        """A batch of this size took so long. True where a time changed. ``told``: its jobs said how much work they are,
        so that how unequal they are is known otherwise.

        Its place in the shape is judged by the other sizes' last batches: where only one size runs, nothing tells its
        place from the pace, and noise alone would carry it away (after 300 such batches with 8 % of noise every other
        size seemed twice as slow, so that it was never run again). Where the others ran less often than this size, its
        place moves by less: one slow batch of a rare size must not move the usual one ten times."""
        if not told and self.skew.observe(size, duration_ns):
            self._tilt()
        ratio = duration_ns * PPM // self._shape_ns[size]
        ratios, place = self._ratios, self._bias_ppm[size]
        others = [other for _, its_size, _, other in ratios if its_size != size]
        is_moved = False
        if others:
            others.sort()
            middle = (others[(len(others) - 1) // 2] + others[len(others) // 2]) // 2
            surprise = ratio * PPM // place - middle
            own = min(DRIFT_LEN, len(ratios) + 1) - len(others)
            step = place * len(others) // (BIAS_STEP * max(len(others), own))
            moved = place + (step if surprise > 0 else -step if surprise < 0 else 0)
            moved = min(PPM * BIAS_MAX, max(PPM // BIAS_MAX, moved))
            is_moved = moved != place
            if is_moved:
                place = self._bias_ppm[size] = moved
                self._place()
        ratios.append((now_ns, size, ratio, ratio * PPM // place))
        return self._renew(is_moved)

    def forget(self, before_ns: int) -> bool:
        """Measurements from before then no longer count: back to the pace of the profile. True where a time changed."""
        ratios = self._ratios
        if not ratios or ratios[0][0] >= before_ns:
            return False
        while ratios and ratios[0][0] < before_ns:
            ratios.popleft()
        return self._renew(False)

    def settle(self, now_ns: int) -> None:
        """Remember the pace of this moment, for :meth:`explain`."""
        if self._ratios:
            self._settled.append((now_ns, self.pace_ppm))

    def explain(self, since_ns: int, factor: float) -> None:
        """A clock that changed after ``since_ns`` explains what was measured since then: at the new speed it counts as
        ``factor`` times as long. When exactly the clock changed nobody knows, so that each measurement counts as the
        one of the two that is nearer to the pace before."""
        bias = self._bias_ppm
        before = sorted([placed for at_ns, _, _, placed in self._ratios if at_ns <= since_ns])
        pace_ppm = before[len(before) // 2] if before else PPM
        if len(before) < FEW:
            pace_ppm = next((pace for at_ns, pace in reversed(self._settled) if at_ns <= since_ns), pace_ppm)
        rows = [
            (at_ns, size, _explained(at_ns, since_ns, ratio, pace_ppm * bias[size] // PPM, factor), 0)
            for at_ns, size, ratio, _ in self._ratios
        ]
        self._ratios.clear()
        self._ratios.extend(rows)
        self._place()
        self._renew(True)

    def explain_durations(self, since_ns: int, factor: float, durations: Mapping[int, Deque[Tuple[int, int]]]) -> None:
        """The same for durations by size, as (when, duration); after :meth:`explain`."""
        for size, window in durations.items():
            rows = [
                (at_ns, _explained(at_ns, since_ns, duration_ns, self.typical_ns[size], factor))
                for at_ns, duration_ns in window
            ]
            window.clear()
            window.extend(rows)

    def _tilt(self) -> None:
        """The inputs are more or less unequal than was believed: another shape, and what was measured beside it."""
        before = self._shape_ns
        self._shape_ns = {size: self.skew.time_ns(size, time_ns) for size, time_ns in self._told_ns.items()}
        shape = self._shape_ns
        rows = [(at_ns, size, ratio * before[size] // shape[size], 0) for at_ns, size, ratio, _ in self._ratios]
        self._ratios.clear()
        self._ratios.extend(rows)
        self._paces_ppm = (0, 0, 0)
        self._place()

    def _place(self) -> None:
        """A shape or a size's place in it has changed: what follows from them alone."""
        bias, ratios = self._bias_ppm, self._ratios
        self._minus_places = {size: -shape_ns * bias[size] for size, shape_ns in self._shape_ns.items()}
        rows = [(at_ns, size, ratio, ratio * PPM // bias[size]) for at_ns, size, ratio, _ in ratios]
        ratios.clear()
        ratios.extend(rows)

    def _renew(self, is_moved: bool) -> bool:
        """Make those tables anew that a place or a pace has changed. O(sizes).

        No time is less than a nanosecond: rates divide by it."""
        ratios = sorted([ratio for _, _, _, ratio in self._ratios])
        count = len(ratios)
        if count:
            middle = (count - 1) // 2 if count < FEW else count // 2
            paces = (ratios[middle] or 1, ratios[_likely_index(count)] or 1, ratios[-1] or 1)
        else:
            paces = (PPM, self._first_ppm, self._first_ppm)
        before = self._paces_ppm
        if paces == before and not is_moved:
            return False
        self._paces_ppm = paces
        typical, likely, slowest = paces
        places = self._minus_places
        if is_moved or typical != before[0]:
            self.pace_ppm = typical
            self.typical_ns = {size: -(place * typical // SQUARE) for size, place in places.items()}
        if is_moved or likely != before[1]:
            self.likely_ns = {size: -(place * likely // SQUARE) for size, place in places.items()}
        if is_moved or slowest != before[2]:
            self.slowest_ns = {size: -(place * slowest // SQUARE) for size, place in places.items()}
        return True


def _explained(at_ns: int, since_ns: int, value: int, usual: int, factor: float) -> int:
    """A value that was measured at one of two speeds, in units of the new one: as it is, or ``factor`` times as much,
    whichever is nearer to the usual one by its logarithm."""
    if at_ns <= since_ns:
        return value
    off = value / max(1, usual)
    changed = off * off * factor > 1.0 if factor < 1.0 else off * off * factor < 1.0
    return max(1, round(value * factor)) if changed else value


def _likely_index(count: int) -> int:
    """Where the 75th percentile stands among so many sorted values. The one of up to four is not their largest: a
    single outlier would decide for as long as nothing else was measured."""
    return 3 * (count - 1) // 4 if count < FEW else 3 * count // 4
