"""The processor: how busy its cores are, which are online and at which clocks."""

from __future__ import annotations

import os
import re
from typing import Dict, Optional, Tuple

import psutil

from edgeserve.device.files import listing
from edgeserve.device.source import SLOW_NS, FileSource
from edgeserve.device.state import DeviceState

CPUS = "sys/devices/system/cpu"
CORES_MAX = 1024  # a list of cores that names more is not believed


class CpuSource(FileSource):
    """Load by psutil, cores and clocks by sysfs. The load is a mean since the reading before, so the first one has
    none. Below a root that is not this machine's, psutil is not asked: it would tell of this machine."""

    name = "cpu"
    every_ns = SLOW_NS

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        self._is_here = os.path.realpath(root) == "/"
        self._clocks = {
            path.split("/")[-3]: path for path in listing(root, f"{CPUS}/cpu[0-9]*/cpufreq/scaling_cur_freq")
        }
        self._before: Optional[Tuple[float, float]] = None

    def read(self, now_ns: int) -> DeviceState:
        """Load since the last reading, clocks now."""
        clocks: Dict[str, int] = {}
        for core, path in self._clocks.items():
            kilohertz = self._files.integer(path)
            if kilohertz:
                clocks[core] = kilohertz * 1000
        return DeviceState(
            cpu_load=self._load(),
            cpu_clocks_hz=clocks,
            cpu_cores_online=count_cores(self._files.text(f"{CPUS}/online")),
            cpu_cores=count_cores(self._files.text(f"{CPUS}/present")),
        )

    def _load(self) -> Optional[float]:
        if not self._is_here:
            return None
        try:
            times = psutil.cpu_times()
        except (OSError, ValueError, TypeError, LookupError):  # no descriptor is left, or lxcfs has nothing to say
            return None
        # user and nice hold guest and guest_nice already
        all_s: float = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle_s: float = times.idle + getattr(times, "iowait", 0.0)
        before, self._before = self._before, (all_s, idle_s)
        if before is None or all_s <= before[0]:
            return None
        return max(0.0, min(1.0, 1.0 - (idle_s - before[1]) / (all_s - before[0])))


def count_cores(text: str) -> Optional[int]:
    """The number of cores that a list such as ``0-3,6`` names; None where it is none."""
    count = 0
    for part in text.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None:
            return None
        count += int(match.group(2) or match.group(1)) - int(match.group(1)) + 1
    return count if 0 < count <= CORES_MAX else None
