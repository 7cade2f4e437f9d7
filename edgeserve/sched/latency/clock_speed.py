"""The speed of a model by the clocks of its lane: a batch takes ``a / compute + b / memory``. Knows no time."""

from __future__ import annotations

from typing import NamedTuple, Optional

from edgeserve.config.profile_record import Clocks
from edgeserve.sched.latency.window import Window

SPEED_MIN = 0.05
"""No clock counts as slower than this share of the profile's: an idle device may read as stopped."""

SETTLED = 10
"""Measured batches (one in 100 ms counts) after which clocks say what the memory's share is: a second of another mode
says nothing."""

APART = 0.1
"""Two settings tell the share where the ratio of the two clocks differs by more than this between them."""


class Setting(NamedTuple):
    """The times of batches at one setting of the clocks: ``compute`` and ``memory`` are the profile's clocks over those
    of the setting, ``times`` is the time of a batch over the profile's, in any unit."""

    compute: float
    memory: float
    times: float


def memory_share(one: Setting, other: Setting) -> Optional[float]:
    """The part of the profile's time that follows the memory's clock, by the same batches at two settings: 0.0 where
    computing sets it all. None where the settings do not differ enough to tell."""
    ratio = one.times / other.times
    by_share = (one.compute - one.memory) - ratio * (other.compute - other.memory)
    if abs(by_share) < APART or min(one.times, other.times) <= 0.0:
        return None
    return min(1.0, max(0.0, (one.compute - ratio * other.compute) / by_share))


class ClockSpeed:
    """Speed of one model on one lane. ``base`` are the clocks of its profile; a clock that is not known (0.0) counts as
    the profile's. ``share`` is the memory's part of the profile's time; batches at two settings correct it."""

    __slots__ = ("base", "share", "_now", "_before", "_times")

    def __init__(self, base: Clocks, share: float = 0.0) -> None:
        self.base = base
        self.share = share
        self._now = Setting(1.0, 1.0, 1.0)
        self._before: Optional[Setting] = None
        self._times = Window(SETTLED)

    @property
    def speed(self) -> float:
        """The present speed, 1.0 as profiled."""
        return 1.0 / ((1.0 - self.share) * self._now.compute + self.share * self._now.memory)

    def move(self, now: Clocks) -> bool:
        """The lane has these clocks from now on. False where the computing one is not known."""
        if not now.compute_mhz:
            return False
        memory = self.base.memory_mhz / now.memory_mhz if now.memory_mhz and self.base.memory_mhz else 1.0
        if len(self._times.values) == SETTLED:
            self._before = self._settled()
        compute = self.base.compute_mhz / now.compute_mhz
        self._now = Setting(min(1 / SPEED_MIN, compute), min(1 / SPEED_MIN, memory), 1.0)
        self._times = Window(SETTLED)
        return True

    def ran(self, times_ppm: int) -> bool:
        """A batch took so many millionths of its profiled time at the present clocks. True if the share, and so the
        speed, is another one now: once per setting at most."""
        self._times.add(times_ppm)
        if len(self._times.values) < SETTLED or self._before is None:
            return False
        share = memory_share(self._before, self._settled())
        self._before = None
        if share is None or abs(share - self.share) <= APART:
            return False
        self.share = share
        return True

    def _settled(self) -> Setting:
        return self._now._replace(times=self._times.quantile(0.5))
