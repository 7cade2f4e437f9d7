"""The values of a device's sensors, and their news for the scheduler.

:class:`DeviceFilter` turns readings into typed events: quantised, with hysteresis, so that a clock that jitters, a
temperature at its limit and memory that flutters bring no event each time they are read. The live monitor and the
simulator's device feed the same filter. Pure: no clock, no file; the time is an argument.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, List, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.profile_record import Clocks
from edgeserve.sched.protocol.events import LEVELS, DeviceChanged, Event, LaneChanged

NONE, SOFT, HARD = LEVELS

SPEED_BAND = 0.12
"""A clock within this share of the one that was told is no news. A clock that jitters by 5 % either way around any
value stays within: 1.05 / 0.95 is 1.105. What the band leaves over, the latency model measures."""

SPEED_NEAR = 0.03
"""A clock within this share of the one that was told confirms it."""

SPEED_MIN = 0.05
"""No clock counts as slower than this share of the profile's: an idle device may read as stopped."""

BUSY_LOAD = 0.9
"""The governor of a device that is less busy than this may have lowered the clock because of that."""

BUSY_READINGS = 3
"""So many readings in a row must be busy before the present clock counts, and not the highest that is allowed."""

HYSTERESIS_C = 3.0
"""A limit of heat is left only this far below it."""

HEAT_SOFT_C, HEAT_HARD_C = 85.0, 95.0
"""Limits of heat where neither the configuration nor the device's trip points give any."""

THROTTLED_READINGS = 8
"""The number of readings for which a cause of throttling counts after it was last seen: counters of events rise now and
then."""

POWER_READINGS = 4
"""Readings of power that are averaged before they are compared with the cap: a batch is a pulse."""

POWER_ENTER, POWER_LEAVE, POWER_HARD = 0.95, 0.8, 1.15
"""Shares of the power cap above which the level is soft, below which it is none again, and above which it is hard; with
events of over-current it is hard above the cap itself."""

POWER_STEP = 0.05
"""Power that differs by less than this share from what was told is no news."""

MEMORY_STEP_BYTES = 16 * 1024**2
"""Free memory that differs by less than this from what was told is no news."""

MEMORY_READINGS = 4
"""After so many readings free memory is told again all the same: meanwhile the scheduler counts its own loads and
evictions, and what they really took or gave may differ."""

LOAD_EVERY_NS = 5_000_000_000
"""The load of the processor is told with each new reading, and after this time if it is the same: what it does not
say for a while is no longer believed."""

BLOCK_STEP = 0.25
"""The largest free block that differs by less than this share from what was told is no news."""

HEAT_STEP = 0.05
"""The same for heat as a share of its hard limit."""


class Readings(NamedTuple):
    """One look at a device; None where nothing tells, which is never the same as 0.

    ``clock_mhz`` is the present clock of what runs the batches, ``clock_max_mhz`` the highest that limits allow now
    (power mode, throttling), ``load`` 0..1. ``heat_c`` is the hottest zone that counts, with the limits that the
    device's trip points give. ``power_w`` is the whole module's. ``throttled`` names why the hardware slows down
    (``"thermal"``, ``"power"``), ``""`` where it does not; ``"over_current"`` are events of over-current by which no
    clock fell. ``locked``: whether the clock stays where it is when the
    device idles. ``cpu_load`` is the share of ``cpu_cores`` cores that was busy since the reading before.
    ``memory_clock_mhz`` and ``memory_clock_max_mhz`` are the same clocks of the memory.
    """

    clock_mhz: Optional[float] = None
    clock_max_mhz: Optional[float] = None
    load: Optional[float] = None
    heat_c: Optional[float] = None
    heat_soft_c: Optional[float] = None
    heat_hard_c: Optional[float] = None
    power_w: Optional[float] = None
    memory_free_bytes: Optional[int] = None
    memory_block_bytes: Optional[int] = None
    throttled: str = ""
    locked: Optional[bool] = None
    cpu_load: Optional[float] = None
    cpu_cores: Optional[int] = None
    memory_clock_mhz: Optional[float] = None
    memory_clock_max_mhz: Optional[float] = None


class DeviceLimits(NamedTuple):
    """The settings of ``[device.NAME]`` and the profiles. ``clock_mhz``: the clock that counts as the full speed of a
    model whose profile names none (0: the highest that was read so far). ``profiled``: the clocks at which the device's
    profiles were measured. 0 stands for "not given" everywhere."""

    clock_mhz: float = 0.0
    power_cap_w: float = 0.0
    profiled: Tuple[Clocks, ...] = ()


def working_clocks(readings: Readings, is_busy: bool) -> Clocks:
    """The clocks with which a batch would run now: the highest that are allowed, or the present ones while the device
    is busy at lower ones."""
    known = readings.load is None or is_busy or bool(readings.locked)

    def working(present_mhz: Optional[float], allowed_mhz: Optional[float]) -> float:
        if allowed_mhz is None:
            return present_mhz or 0.0 if known else 0.0
        return min(present_mhz, allowed_mhz) if present_mhz is not None and is_busy else allowed_mhz

    return Clocks(
        working(readings.clock_mhz, readings.clock_max_mhz),
        working(readings.memory_clock_mhz, readings.memory_clock_max_mhz),
    )


class DeviceFilter:
    """Readings of one device to events. Remembers what it told; :meth:`events` alone changes it."""

    def __init__(self, device: str, lanes: Sequence[str], limits: DeviceLimits) -> None:
        self.device = device
        self.lanes = tuple(lanes)
        self.limits = limits
        self._clock_mhz = limits.clock_mhz
        self._speed = 1.0
        self._told_clocks = limits.profiled
        self._confirmed_ns: Optional[int] = None
        self._busy = 0
        self._thermal = NONE
        self._power = NONE
        self._watts: Deque[float] = deque(maxlen=POWER_READINGS)
        self._told = DeviceChanged(device)
        self._untold = 0  # readings since free memory was told
        self._throttled = ""  # what was last seen to throttle,
        self._throttled_left = 0  # and for how many readings that still counts
        self._over_current_left = 0  # the same for over-current alone
        self._load: Optional[Tuple[float, int]] = None  # of the processor, as it was told last,
        self._load_ns = 0  # and when

    def events(self, now_ns: int, readings: Readings) -> List[Event]:
        """The news in these readings, in a fixed order: speeds of lanes, then the device."""
        found: List[Event] = []
        speed = self._speed_news(now_ns, readings)
        if speed is not None:
            cause, since_ns = self._cause(speed, readings), self._confirmed_ns
            mhz = [round(clock, 1) or None for clock in self._told_clocks[0]] if self._told_clocks else []
            found += [LaneChanged(lane, None, speed, cause, since_ns, False, *mhz) for lane in self.lanes]
            self._confirmed_ns = now_ns
        changed = self._device_news(readings, self._load_news(now_ns, readings))
        if changed is not None:
            found.append(changed)
        return found

    # --- speed --------------------------------------------------------------------------------------------------------

    def _speed_news(self, now_ns: int, readings: Readings) -> Optional[float]:
        self._busy = self._busy + 1 if readings.load is not None and readings.load >= BUSY_LOAD else 0
        clocks = working_clocks(readings, self._busy >= BUSY_READINGS)
        if clocks.compute_mhz <= 0:
            return None
        if not self.limits.clock_mhz and clocks.compute_mhz > self._clock_mhz:
            self._clock_mhz = clocks.compute_mhz
        speed = max(SPEED_MIN, clocks.compute_mhz / self._clock_mhz)
        off = max([abs(speed / self._speed - 1.0), *[_apart(clocks, told) for told in self._told_clocks]])
        if off <= SPEED_BAND:
            if off <= SPEED_NEAR or self._confirmed_ns is None:
                self._confirmed_ns = now_ns
            return None
        self._speed = round(speed, 3)
        self._told_clocks = self._told_clocks and (clocks,)
        return self._speed

    def _cause(self, speed: float, readings: Readings) -> str:
        percent = f"clock at {speed:.0%} of the profile's"
        return f"{percent}, throttled: {readings.throttled}" if readings.throttled else percent

    # --- the device ---------------------------------------------------------------------------------------------------

    def _load_news(self, now_ns: int, readings: Readings) -> Tuple[Optional[float], Optional[int]]:
        if readings.cpu_load is None or not readings.cpu_cores:
            return None, None
        load = (round(readings.cpu_load, 3), readings.cpu_cores)
        if load == self._load and now_ns - self._load_ns < LOAD_EVERY_NS:
            return None, None
        self._load, self._load_ns = load, now_ns
        return load

    def _device_news(self, readings: Readings, load: Tuple[Optional[float], Optional[int]]) -> Optional[DeviceChanged]:
        told = self._told
        over_current = readings.throttled == "over_current"
        self._over_current_left = THROTTLED_READINGS if over_current else max(0, self._over_current_left - 1)
        if readings.throttled and not over_current:
            self._throttled, self._throttled_left = readings.throttled, THROTTLED_READINGS
        elif self._throttled_left:
            self._throttled_left -= 1
            self._throttled = self._throttled if self._throttled_left else ""
        thermal, heat = self._thermal_level(readings)
        power = self._power_level(readings)
        block_bytes = readings.memory_block_bytes
        news = DeviceChanged(
            self.device,
            self._memory_news(readings.memory_free_bytes),
            heat if heat is not None and (told.heat is None or abs(heat - told.heat) >= HEAT_STEP) else None,
            readings.power_w if _differs(told.power_w, readings.power_w, POWER_STEP) else None,
            block_bytes if _differs(told.memory_block_bytes, block_bytes, BLOCK_STEP) else None,
            thermal if thermal != (told.thermal or NONE) else None,
            power if power != (told.power or NONE) else None,
            load[0],
            load[1],
        )
        if news == DeviceChanged(self.device):
            return None
        self._told = _after(told, news)
        return news

    def _thermal_level(self, readings: Readings) -> Tuple[str, Optional[float]]:
        """The level of heat, and heat as a share of the hard limit. A device that throttles because of heat is beyond
        its soft limit at least, for any values of its sensors."""
        heat_c = readings.heat_c
        soft_c = readings.heat_soft_c or HEAT_SOFT_C
        hard_c = max(soft_c, readings.heat_hard_c or HEAT_HARD_C)
        if heat_c is not None:
            before = LEVELS.index(self._thermal)
            level = 0
            for index, limit_c in ((1, soft_c), (2, hard_c)):
                if heat_c >= (limit_c - HYSTERESIS_C if before >= index else limit_c):
                    level = index
            self._thermal = LEVELS[level]
        return (
            SOFT if self._throttled == "thermal" and self._thermal == NONE else self._thermal,
            None if heat_c is None else round(min(1.0, max(0.0, heat_c / hard_c)), 2),
        )

    def _power_level(self, readings: Readings) -> str:
        cap_w = self.limits.power_cap_w
        if readings.power_w is not None:
            self._watts.append(readings.power_w)
        if cap_w and self._watts:
            share = sum(self._watts, 0.0) / len(self._watts) / cap_w
            if share > (1.0 if self._over_current_left else POWER_HARD):
                self._power = HARD
            elif share > POWER_ENTER:
                self._power = SOFT if self._power != HARD or share < 1.0 else HARD
            elif share < POWER_LEAVE:
                self._power = NONE
            elif self._power == HARD:
                self._power = SOFT
        return HARD if self._throttled == "power" else self._power

    def _memory_news(self, value: Optional[int]) -> Optional[int]:
        told = self._told.memory_free_bytes
        self._untold += 1
        if value is None or (
            told is not None and abs(value - told) < MEMORY_STEP_BYTES and self._untold < MEMORY_READINGS
        ):
            return None
        self._untold = 0
        return value


def _after(told: DeviceChanged, news: DeviceChanged) -> DeviceChanged:
    """The state after the news."""
    return DeviceChanged(
        told.device,
        told.memory_free_bytes if news.memory_free_bytes is None else news.memory_free_bytes,
        told.heat if news.heat is None else news.heat,
        told.power_w if news.power_w is None else news.power_w,
        told.memory_block_bytes if news.memory_block_bytes is None else news.memory_block_bytes,
        news.thermal or told.thermal,
        news.power or told.power,
    )


def _apart(clocks: Clocks, told: Clocks) -> float:
    """The larger share by which one of the two clocks differs from what was told of it; one that is known anew does."""
    return max([0.0 if not now else abs(now / before - 1.0) if before else 1.0 for now, before in zip(clocks, told)])


def _differs(told: Optional[float], value: Optional[float], step: float) -> bool:
    return value is not None and (told is None or abs(value - told) > step * max(told, value))
