"""The temperature of a device and its distance from the limits: the thermal zones of the kernel."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from edgeserve.device.files import integer_of, listing, read_integer, read_text
from edgeserve.device.parse import is_gated
from edgeserve.device.source import SLOW_NS, FileSource
from edgeserve.device.state import DeviceState
from edgeserve.device.throttling import lowers_clocks

SOFT_BELOW_TRIP_C, HARD_BELOW_TRIP_C = 7.0, 2.0
"""Limits below the first trip point at which the kernel lowers clocks: before that happens is the time to do less."""

SOFT_DEFAULT_C, HARD_DEFAULT_C = 85.0, 95.0
"""Limits where no such trip point can be read. Orin throttles at 99 degrees."""

BELOW_CRITICAL_C_MAX = 20.0
"""The distance below a zone's critical trip point at which its clocks may fall, where no binding can be read. NVIDIA's
device trees say 5.5 degrees (Xavier, Orin); the trip point of Orin's ``hot-surface-alert`` lies 34.5 degrees below."""

TRIP_C_MIN, TRIP_C_MAX = 40.0, 130.0  # a trip point outside is switched off (-127, 0 or 1000 degrees were seen)

JUNCTION = "tj"
"""The zone that is the hottest spot of the chip; not every board has it."""

_CHIP = re.compile(r"(cpu|gpu|soc)[0-9]*|[bm]cpu")
_SUFFIX = re.compile(r"[-_](therm|thermal|tegra)$")
_ALIASES = {"x86_pkg_temp": "cpu", "cpu_thermal": "cpu"}


class TripPoint(NamedTuple):
    """One trip point of a zone: its number, its type (``passive``, ``critical``, ...) and its degrees Celsius."""

    number: int
    kind: str
    celsius: float


class HeatLimits(NamedTuple):
    """The zone that is nearest to its hard limit, its temperature and its limits, in degrees Celsius."""

    zone: str
    now_c: float
    soft_c: float
    hard_c: float


def zone_name(kind: str) -> str:
    """One name for a zone on every release: ``CPU-therm``, ``cpu-thermal`` and tegrastats' ``CPU`` are ``cpu``."""
    name = kind.strip().lower()
    return _ALIASES.get(name, _SUFFIX.sub("", name))


def judge(temperatures_c: Mapping[str, float], trips_c: Mapping[str, float]) -> Optional[HeatLimits]:
    """Which zone counts, and its limits; None where no zone of the chip is known.

    ``trips_c`` is each zone's first trip point at which clocks fall. The junction counts alone where it is known, else
    the zone of CPU, GPU or SoC that is nearest to its limit. Others never count: some are constants (PMIC), some are
    the board's.
    """
    chip = {zone: value for zone, value in temperatures_c.items() if zone == JUNCTION or _CHIP.fullmatch(zone)}
    if JUNCTION in chip:
        chip = {JUNCTION: chip[JUNCTION]}
    lowest = min((trip for zone, trip in trips_c.items() if _CHIP.fullmatch(zone)), default=None)
    found: List[Tuple[float, str, HeatLimits]] = []
    for zone, now_c in chip.items():
        trip = trips_c.get(zone, lowest)
        soft_c = SOFT_DEFAULT_C if trip is None else trip - SOFT_BELOW_TRIP_C
        hard_c = HARD_DEFAULT_C if trip is None else trip - HARD_BELOW_TRIP_C
        found.append((hard_c - now_c, zone, HeatLimits(zone, now_c, soft_c, hard_c)))
    return min(found)[2] if found else None


def heat_state(temperatures_c: Mapping[str, float], trips_c: Mapping[str, float]) -> DeviceState:
    """A partial state of temperatures alone. Zones that are off must not be among them."""
    limits = judge(temperatures_c, trips_c)
    if limits is None:
        return DeviceState(temperatures_c=temperatures_c)
    return DeviceState(
        temperatures_c=temperatures_c,
        temperature_c=limits.now_c,
        temperature_zone=limits.zone,
        temperature_soft_c=limits.soft_c,
        temperature_hard_c=limits.hard_c,
    )


class ThermalSource(FileSource):
    """``/sys/class/thermal/thermal_zone*``. A zone is known by its type, never by its number. Zones whose part of the
    chip is switched off cannot be read, or read far below zero: they are left out."""

    name = "thermal zones"
    every_ns = SLOW_NS

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        self._zones: Dict[str, str] = {}  # name -> file
        self.trips_c: Dict[str, float] = {}
        bound = clock_trips(root)
        for folder in listing(root, "sys/class/thermal/thermal_zone*"):
            name = zone_name(read_text(root, f"{folder}/type"))
            if not name or name in self._zones:
                continue
            self._zones[name] = f"{folder}/temp"
            trip = first_clock_trip(root, folder, bound)
            if trip is not None:
                self.trips_c[name] = trip

    def read(self, now_ns: int) -> DeviceState:
        """Temperatures of the zones that can be read now."""
        found: Dict[str, float] = {}
        for name, path in self._zones.items():
            millidegrees = self._files.integer(path)
            if millidegrees is not None and not is_gated(millidegrees / 1000):
                found[name] = millidegrees / 1000
        return heat_state(found, self.trips_c)


def clock_trips(root: str) -> Optional[Set[Tuple[str, int]]]:
    """(folder of the zone, number) of each trip point to which a cooling device that lowers clocks is bound; None where
    no binding of any zone can be read."""
    bindings = []
    for path in listing(root, "sys/class/thermal/thermal_zone*/cdev*_trip_point"):
        number = read_integer(root, path)
        kind = read_text(root, f"{path[: -len('_trip_point')]}/type").strip()
        if number is not None and kind:
            bindings.append((os.path.dirname(path), number, kind))
    if not bindings:
        return None
    return {(folder, number) for folder, number, kind in bindings if lowers_clocks(kind)}


def first_clock_trip(root: str, folder: str, bound: Optional[Set[Tuple[str, int]]]) -> Optional[float]:
    """The lowest temperature at which a zone begins to lower clocks; None when none can be read. ``bound`` is what
    :func:`clock_trips` found; where it is None, passive trip points count that lie near the critical one."""
    trips = trip_points(root, folder)
    passive = [trip for trip in trips if trip.kind == "passive"]
    if bound is None:
        critical_c = min((trip.celsius for trip in trips if trip.kind == "critical"), default=TRIP_C_MIN)
        counting = [trip.celsius for trip in passive if trip.celsius >= critical_c - BELOW_CRITICAL_C_MAX]
    else:
        counting = [trip.celsius for trip in passive if (folder, trip.number) in bound]
    return min(counting, default=None)


def trip_points(root: str, folder: str) -> List[TripPoint]:
    """The trip points of a zone that are switched on and can be read."""
    found = []
    for path in listing(root, f"{folder}/trip_point_*_type"):
        number, millidegrees = integer_of(path.split("_")[-2]), read_integer(root, path[: -len("type")] + "temp")
        if number is not None and millidegrees is not None and TRIP_C_MIN <= millidegrees / 1000 <= TRIP_C_MAX:
            found.append(TripPoint(number, read_text(root, path).strip(), millidegrees / 1000))
    return found
