"""The causes that slow the device down now: cooling that is active, and over-current events. No root needed."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Tuple

from edgeserve.device.files import listing, read_text
from edgeserve.device.source import SLOW_NS, FileSource
from edgeserve.device.state import DeviceState

COOLING, OVER_CURRENT, CAPPED = "cooling", "over_current", "gpu_clock:capped"
UNDER_VOLTAGE = f"{OVER_CURRENT}:oc1"

_NO_CLOCK = re.compile(r"fan|hot-surface|tcc offset|lcd|iwlwifi|pch", re.IGNORECASE)
"""Cooling devices that lower no clock of what serves: fans, the notice of a hot surface, offsets, displays, radios.
``*-throttle-alert`` is a notice too; NVIDIA's device trees bind it only to trip points at which clocks fall."""

OVER_CURRENT_NAME = "soctherm_oc"

CAP_SHARE = 0.98  # below this share of what the power mode allows a bound is lowered, not rounded


class ThrottlingSource(FileSource):
    """``cooling_device*`` and the counters of ``soctherm_oc`` (Orin, Thor). The counters count since the board started:
    only what was added between two readings is news."""

    name = "throttling"
    every_ns = SLOW_NS

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        self.cooling = cooling_devices(root)
        self.counters = over_current_counters(root)
        self._counts: Dict[str, int] = {}

    def read(self, now_ns: int) -> DeviceState:
        """The present causes of throttling; the first reading of a counter is only remembered."""
        active = [f"{COOLING}:{kind}" for kind, path in self.cooling if (self._files.integer(path) or 0) > 0]
        for kind, path in self.counters:
            count = self._files.integer(path)
            if count is None:
                continue
            if count > self._counts.get(kind, count):
                active.append(f"{OVER_CURRENT}:{kind}")
            self._counts[kind] = count
        seen = self.cooling or self.counters
        return DeviceState(throttles=tuple(dict.fromkeys(active)) if seen else None)


def cooling_devices(root: str) -> List[Tuple[str, str]]:
    """(type, file with the state) of each cooling device that lowers clocks."""
    found = []
    for folder in listing(root, "sys/class/thermal/cooling_device*"):
        kind = read_text(root, f"{folder}/type").strip()
        if kind and lowers_clocks(kind):
            found.append((kind, f"{folder}/cur_state"))
    return found


def lowers_clocks(kind: str) -> bool:
    """True if a cooling device of this type lowers clocks of what serves. A type that is not known does."""
    return not _NO_CLOCK.search(kind)


def over_current_counters(root: str) -> List[Tuple[str, str]]:
    """(``oc1``, file) per counter: oc1 under-voltage, oc2 average over-current, oc3 instantaneous over-current."""
    for folder in listing(root, "sys/class/hwmon/hwmon*"):
        if read_text(root, f"{folder}/name").strip() == OVER_CURRENT_NAME:
            return [(path[len(folder) + 1 :].split("_")[0], path) for path in listing(root, f"{folder}/oc*_event_cnt")]
    return []


def capped_clock(state: DeviceState) -> Optional[str]:
    """The flag of a GPU whose highest clock was lowered below what its power mode allows; None where it was not, or
    where the power mode's clock is not known."""
    if state.gpu_clock_max_hz is None or state.power_mode_gpu_clock_hz is None:
        return None
    return CAPPED if state.gpu_clock_max_hz < CAP_SHARE * state.power_mode_gpu_clock_hz else None
