"""How fast a model runs now: the shape of its times over batch sizes, and one pace that all sizes share.

What changes from second to second (clocks, heat, other load) changes all sizes alike; how the sizes compare hardly
changes. Judging each size by its own last runs lets the one that is *believed* fastest win, which is often the one
whose few runs were lucky, or are long ago. So every measured batch moves the pace at once, and its own place in the
shape only slowly. (Drawing the shape to a line c0 + c1 * size as well lost a fifth of the goodput of a network whose
times rise in steps, as matrix kernels' do.) Integers, parts per million; knows no clock.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, Mapping, Tuple

PPM = 1_000_000
DRIFT_LEN = 10  # measured batches that the pace looks back on, of any size
BIAS_STEP = 32  # a batch that was slower or faster than the pace moves its size's place by this part
BIAS_MAX = 2  # a size is at most so many times slower or faster beside the others than the profile says


class Drift:
    """Likely and typical times per batch size. ``shape_ns`` are the times at pace 1; ``likely_ppm`` is how much longer
    than these three of four batches take at most, before any was measured."""

    __slots__ = ("_shape_ns", "_bias_ppm", "_ratios", "_slowest_ppm", "_likely_ppm", "_typical_ppm", "_first_ppm")

    def __init__(self, shape_ns: Mapping[int, int], likely_ppm: int = PPM) -> None:
        self._shape_ns: Dict[int, int] = {size: max(1, time_ns) for size, time_ns in shape_ns.items()}
        self._bias_ppm: Dict[int, int] = dict.fromkeys(shape_ns, PPM)  # how a size's place differs from the profile's
        self._ratios: Deque[Tuple[int, int, int]] = deque(maxlen=DRIFT_LEN)  # (when, size, measured over shape in ppm)
        self._first_ppm = self._likely_ppm = likely_ppm
        self._slowest_ppm = likely_ppm
        self._typical_ppm = PPM

    def observe(self, now_ns: int, size: int, duration_ns: int) -> None:
        """A batch of this size took so long. Its place in the shape is judged by the other sizes' last batches: where
        only one size runs, nothing tells its place from the pace, and noise alone would carry it away (after 300 such
        batches with 8 % of noise every other size seemed twice as slow, so that it was never run again)."""
        ratio = duration_ns * PPM // self._shape_ns[size]
        bias = self._bias_ppm
        others = sorted([other * PPM // bias[its_size] for _, its_size, other in self._ratios if its_size != size])
        self._ratios.append((now_ns, size, ratio))
        if others:
            middle = (others[(len(others) - 1) // 2] + others[len(others) // 2]) // 2
            surprise = ratio * PPM // bias[size] - middle
            step = bias[size] // BIAS_STEP
            moved = bias[size] + (step if surprise > 0 else -step if surprise < 0 else 0)
            bias[size] = min(PPM * BIAS_MAX, max(PPM // BIAS_MAX, moved))
        self._set()

    def forget(self, before_ns: int) -> None:
        """Measurements from before then no longer count: back to the pace of the profile."""
        while self._ratios and self._ratios[0][0] < before_ns:
            self._ratios.popleft()
        self._set()

    def slowest_ns(self, size: int) -> int:
        """What a batch of this size takes if it is as slow as the slowest of those looked back on."""
        return self._at(size, self._slowest_ppm)

    def likely_ns(self, size: int) -> int:
        """What three of four batches of this size stay below."""
        return self._at(size, self._likely_ppm)

    def typical_ns(self, size: int) -> int:
        """The middle of what batches of this size take."""
        return self._at(size, self._typical_ppm)

    def _at(self, size: int, pace_ppm: int) -> int:
        """Never less than a nanosecond: rates divide by it."""
        return max(1, -(-self._shape_ns[size] * self._bias_ppm[size] * pace_ppm // (PPM * PPM)))

    def _set(self) -> None:
        bias = self._bias_ppm
        ratios = sorted([max(1, ratio * PPM // bias[size]) for _, size, ratio in self._ratios])
        self._slowest_ppm = ratios[-1] if ratios else self._first_ppm
        self._likely_ppm = ratios[3 * len(ratios) // 4] if ratios else self._first_ppm
        self._typical_ppm = ratios[len(ratios) // 2] if ratios else PPM
