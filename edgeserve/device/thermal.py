"""How hot a device is and how far that is from its limits: the thermal zones of the kernel."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from edgeserve.device.files import PolledFiles, listing, read_integer, read_text
from edgeserve.device.parse import is_gated
from edgeserve.device.source import SLOW_NS
from edgeserve.device.state import DeviceState

SOFT_BELOW_TRIP_C, HARD_BELOW_TRIP_C = 7.0, 2.0
"""Limits below the first passive trip point, where the kernel begins to lower clocks: before that happens is the time
to do less."""

SOFT_DEFAULT_C, HARD_DEFAULT_C = 85.0, 95.0
"""Limits where no passive trip point can be read. Orin throttles at about 99 degrees."""

TRIP_C_MIN, TRIP_C_MAX = 40.0, 130.0  # a trip point outside is switched off (-127, 0 or 1000 degrees were seen)

JUNCTION = "tj"
"""The zone that is the hottest spot of the chip; not every board has it."""

_CHIP = re.compile(r"(cpu|gpu|soc)[0-9]*|[bm]cpu")
_SUFFIX = re.compile(r"[-_](therm|thermal|tegra)$")
_ALIASES = {"x86_pkg_temp": "cpu", "cpu_thermal": "cpu"}


class Limits(NamedTuple):
    """The zone that is nearest to its hard limit, its temperature and its limits, in degrees Celsius."""

    zone: str
    now_c: float
    soft_c: float
    hard_c: float


def zone_name(kind: str) -> str:
    """One name for a zone on every release: ``CPU-therm``, ``cpu-thermal`` and tegrastats' ``CPU`` are ``cpu``."""
    name = kind.strip().lower()
    return _ALIASES.get(name, _SUFFIX.sub("", name))


def judge(temperatures_c: Mapping[str, float], trips_c: Mapping[str, float]) -> Optional[Limits]:
    """Which zone counts, and its limits; None where no zone of the chip is known.

    ``trips_c`` is each zone's first passive trip point. The junction counts alone where it is known, else the zone of
    CPU, GPU or SoC that is nearest to its limit. Others never count: some are constants (PMIC), some are the board's.
    """
    chip = {zone: value for zone, value in temperatures_c.items() if zone == JUNCTION or _CHIP.fullmatch(zone)}
    if JUNCTION in chip:
        chip = {JUNCTION: chip[JUNCTION]}
    lowest = min((trip for zone, trip in trips_c.items() if _CHIP.fullmatch(zone)), default=None)
    found: List[Tuple[float, str, Limits]] = []
    for zone, now_c in chip.items():
        trip = trips_c.get(zone, lowest)
        soft_c = SOFT_DEFAULT_C if trip is None else trip - SOFT_BELOW_TRIP_C
        hard_c = HARD_DEFAULT_C if trip is None else trip - HARD_BELOW_TRIP_C
        found.append((hard_c - now_c, zone, Limits(zone, now_c, soft_c, hard_c)))
    return min(found)[2] if found else None


def heat_state(temperatures_c: Mapping[str, float], trips_c: Mapping[str, float]) -> DeviceState:
    """A partial state of temperatures alone. Zones that are off must not be among them."""
    limits = judge(temperatures_c, trips_c)
    if limits is None:
        return DeviceState(temperatures_c=temperatures_c)
    return DeviceState(temperatures_c=temperatures_c, temperature_c=limits.now_c, temperature_zone=limits.zone,
                       temperature_soft_c=limits.soft_c, temperature_hard_c=limits.hard_c)


class ThermalSource:
    """``/sys/class/thermal/thermal_zone*``. A zone is known by its type, never by its number. Zones whose part of the
    chip is switched off cannot be read, or read far below zero: they are left out."""

    name = "thermal zones"
    every_ns = SLOW_NS

    def __init__(self, root: str = "/") -> None:
        self._files = PolledFiles(root)
        self._zones: Dict[str, str] = {}  # name -> file
        self.trips_c: Dict[str, float] = {}
        for folder in listing(root, "sys/class/thermal/thermal_zone*"):
            name = zone_name(read_text(root, f"{folder}/type"))
            if not name or name in self._zones:
                continue
            self._zones[name] = f"{folder}/temp"
            trip = first_passive_trip(root, folder)
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

    def close(self) -> None:
        self._files.close()


def first_passive_trip(root: str, folder: str) -> Optional[float]:
    """The lowest temperature at which a zone begins to lower clocks; None when none can be read."""
    trips = []
    for path in listing(root, f"{folder}/trip_point_*_type"):
        if read_text(root, path).strip() == "passive":
            millidegrees = read_integer(root, path[:-len("type")] + "temp")
            if millidegrees is not None and TRIP_C_MIN <= millidegrees / 1000 <= TRIP_C_MAX:
                trips.append(millidegrees / 1000)
    return min(trips) if trips else None
