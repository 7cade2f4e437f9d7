"""Clock and load of the integrated GPU, and of the memory controller, from ``devfreq``: no root needed for the GPU."""

from __future__ import annotations

import os
import re
from collections import deque
from typing import Deque, Optional, Tuple

from edgeserve.device.files import listing, read_text
from edgeserve.device.source import FAST_NS, FileSource
from edgeserve.device.state import DeviceState
from edgeserve.units import NS_PER_S

_NODE = re.compile(r"gv11b|ga10b|gp10b|gm20b|gb10b|gpu")
_FOLDER = re.compile(r".*\.(gv11b|ga10b|gp10b|gm20b|gb10b|gpu)$|gpu-gpc-[0-9]+$")

LOAD_ALIASES = (
    "sys/devices/gpu.0/load",
    "sys/devices/platform/gpu.0/load",
    "sys/devices/platform/17000000.gpu/load",
    "sys/devices/17000000.gv11b/load",
    "sys/devices/17000000.ga10b/load",
    "sys/devices/17000000.gp10b/load",
)

EMC_RATE = "sys/kernel/debug/bpmp/debug/clk/emc/rate"
EMC_RATE_MAX = "sys/kernel/debug/bpmp/debug/clk/emc/max_rate"
EMC_DEVFREQ = "sys/class/devfreq/bwmgr"
EMC_ACTIVITY = "sys/kernel/actmon_avg_activity/mc_all"

LOAD_FULL = 1000  # the load file counts in thousandths
LOAD_WINDOW_NS = NS_PER_S  # a load is that of one moment: the mean of some says what the GPU does

BUSY, HELD_BELOW, HELD_SAMPLES = 0.95, 0.9, 3
"""A busy GPU takes the highest clock that it may. One that stays below 0.9 of that in three readings is held down."""

HELD = "gpu_clock:held"


class GpuClockSource(FileSource):
    """The integrated GPU by its devfreq folder, under any release's name, and the memory controller."""

    name = "gpu devfreq"
    every_ns = FAST_NS

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        self.folder = gpu_folder(root)
        self.load_file = load_file(root, self.folder)
        self._top_hz = top_clock_hz(root, self.folder)
        self._loads: Deque[Tuple[int, float]] = deque(maxlen=64)
        self._held = 0

    def read(self, now_ns: int) -> DeviceState:
        """Clocks now; the load is the mean of the readings of the last second."""
        clock_hz = min_hz = max_hz = None
        if self.folder:
            clock_hz = self._hertz(f"{self.folder}/cur_freq")
            min_hz = self._files.integer(f"{self.folder}/min_freq")
            max_hz = self._hertz(f"{self.folder}/max_freq")
        now = self._load_now()
        if now is not None:
            self._loads.append((now_ns, now))
        while self._loads and self._loads[0][0] <= now_ns - LOAD_WINDOW_NS:
            self._loads.popleft()
        emc_hz, emc_max_hz, emc_load = self._emc()
        mean = sum(load for _, load in self._loads) / len(self._loads) if self._loads else None
        return DeviceState(
            gpu_load=mean,
            gpu_clock_hz=clock_hz,
            gpu_clock_min_hz=min_hz,
            gpu_clock_max_hz=max_hz,
            gpu_clock_top_hz=self._top_hz,
            emc_clock_hz=emc_hz,
            emc_clock_max_hz=emc_max_hz,
            emc_load=emc_load,
            throttles=self._throttles(clock_hz, max_hz, now),
        )

    def _hertz(self, path: str) -> Optional[int]:
        """A clock; None where there is none. 0: power-gated, which is no clock that work would run at."""
        return max(0, self._files.integer(path) or 0) or None

    def _load_now(self) -> Optional[float]:
        load = self._files.integer(self.load_file) if self.load_file else None
        return load / LOAD_FULL if load is not None and 0 <= load <= LOAD_FULL else None

    def _throttles(
        self, clock_hz: Optional[int], max_hz: Optional[int], load: Optional[float]
    ) -> Optional[Tuple[str, ...]]:
        """A clock that stays low although the GPU has all to do."""
        if clock_hz is None or max_hz is None or load is None:
            self._held = 0
            return None
        self._held = self._held + 1 if load >= BUSY and clock_hz < HELD_BELOW * max_hz else 0
        return (HELD,) if self._held >= HELD_SAMPLES else ()

    def _emc(self) -> Tuple[Optional[int], Optional[int], Optional[float]]:
        """Clock, highest clock and load of the memory controller; most of it is for root only."""
        hertz = self._hertz(EMC_RATE) or self._hertz(f"{EMC_DEVFREQ}/cur_freq")
        top_hz = self._hertz(EMC_RATE_MAX) or self._hertz(f"{EMC_DEVFREQ}/max_freq")
        activity = self._files.integer(EMC_ACTIVITY)
        if hertz is None or activity is None:
            return hertz, top_hz, None
        load = activity / (hertz / 1000) / 100  # percent times kHz, as jetson_stats reads the file
        return hertz, top_hz, load if 0.0 <= load <= 1.0 else None


def gpu_folder(root: str) -> str:
    """The GPU's folder below the root, ``""`` where there is none."""
    for folder in listing(root, "sys/class/devfreq/*"):
        node = read_text(root, f"{folder}/device/of_node/name").strip("\0\n ")
        if _NODE.fullmatch(node) or _FOLDER.match(os.path.basename(folder)):
            return folder
    return ""


def load_file(root: str, folder: str) -> str:
    """The file with the GPU's load, ``""`` where there is none (Thor)."""
    paths = [f"{folder}/device/load"] if folder else []
    return next((path for path in [*paths, *LOAD_ALIASES] if listing(root, path)), "")


def top_clock_hz(root: str, folder: str) -> Optional[int]:
    """The highest clock that the GPU's folder names."""
    words = read_text(root, f"{folder}/available_frequencies").split() if folder else []
    return max([int(word) for word in words if word.isdecimal() and len(word) < 20], default=0) or None
