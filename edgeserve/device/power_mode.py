"""The power mode of a Jetson (nvpmodel), by name: numbers mean different modes on different boards."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Pattern, Tuple

from edgeserve.device.files import listing, read_text
from edgeserve.device.gpu_clock import gpu_folder, top_clock_hz
from edgeserve.device.source import RARE_NS
from edgeserve.device.state import DeviceState

STATUS = "var/lib/nvpmodel/status"
CONF = "etc/nvpmodel.conf"

_MODEL = re.compile(r"<\s*POWER_MODEL\s+ID=([0-9]{1,4})\s+NAME=(\S+?)\s*>")
_SETTING = re.compile(r"\s*([A-Za-z0-9_]+)\s+([A-Za-z0-9_]+)\s+(-?[0-9]{1,18})\s*(?:#.*)?$")
_STATUS = re.compile(r"pmode:([0-9]{1,4})")

NO_BOUND = (-1, 0, 2**31 - 1)
"""Values of a clock that mean: as high as the hardware can."""

_GPU_GROUP, _EMC_GROUP = re.compile(r"GPU(_.*)?$"), re.compile(r"EMC$")


@dataclass(frozen=True)
class PowerMode:
    """One mode of the file: ``settings`` are (group, key) -> number, such as ``("GPU", "MAX_FREQ") -> 612000000``."""

    number: int
    name: str
    settings: Mapping[Tuple[str, str], int] = field(default_factory=dict)

    @property
    def gpu_clock_hz(self) -> Optional[int]:
        """The highest GPU clock of this mode; None where the mode does not bound it."""
        return self._bound_hz(_GPU_GROUP)

    @property
    def emc_clock_hz(self) -> Optional[int]:
        """The same of the memory controller."""
        return self._bound_hz(_EMC_GROUP)

    def _bound_hz(self, wanted: Pattern[str]) -> Optional[int]:
        for (group, key), value in self.settings.items():
            if wanted.match(group) and key == "MAX_FREQ":
                return None if value in NO_BOUND else value
        return None

    @property
    def is_full(self) -> bool:
        """True if it bounds nothing (MAXN, MAXN_SUPER)."""
        return self.name.upper().startswith("MAXN")


@dataclass(frozen=True)
class PowerModes:
    """All modes of a board."""

    modes: Tuple[PowerMode, ...]

    def by_number(self, number: int) -> Optional[PowerMode]:
        """The mode of that number in this file."""
        return next((mode for mode in self.modes if mode.number == number), None)

    @property
    def full(self) -> Optional[PowerMode]:
        """The strongest mode, by name."""
        full = [mode for mode in self.modes if mode.is_full]
        return max(full, key=lambda mode: (len(mode.name), -mode.number)) if full else None


def parse_conf(text: str) -> PowerModes:
    """The modes of an nvpmodel configuration. What is not understood is left out."""
    modes: List[Tuple[int, str, Dict[Tuple[str, str], int]]] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        model, setting = _MODEL.search(line), _SETTING.match(line)
        if model:
            modes.append((int(model.group(1)), model.group(2), {}))
        elif setting and modes:
            modes[-1][2][setting.group(1), setting.group(2)] = int(setting.group(3))
    return PowerModes(tuple(PowerMode(*mode) for mode in modes))


def status_number(text: str) -> Optional[int]:
    """The mode's number in nvpmodel's status file; None where the file does not tell."""
    match = _STATUS.search(text)
    return int(match.group(1)) if match else None


def read_conf(root: str) -> PowerModes:
    """The board's modes; the file is where nvpmodel's link leads, or the only one of its folder."""
    text = read_text(root, CONF)
    if not text:
        others = listing(root, "etc/nvpmodel/nvpmodel*.conf")
        text = read_text(root, others[0]) if len(others) == 1 else ""
    return parse_conf(text)


def current_mode(root: str) -> Optional[PowerMode]:
    """The mode that the board is in; None where nothing tells."""
    number = status_number(read_text(root, STATUS))
    return None if number is None else read_conf(root).by_number(number)


class PowerModeSource:
    """nvpmodel's status file with the names and clocks of its configuration: no program is started. A mode that the
    configuration does not have is known by its number alone."""

    name = "nvpmodel"
    every_ns = RARE_NS

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self.modes = read_conf(root)
        self._top_hz = top_clock_hz(root, gpu_folder(root))

    def read(self, now_ns: int) -> DeviceState:
        """The mode's name and the highest GPU clock that it allows."""
        number = status_number(read_text(self._root, STATUS))  # no file of the kernel: another may take its place
        if number is None:
            return DeviceState()
        mode = self.modes.by_number(number)
        if mode is None:
            return DeviceState(power_mode=f"number {number}")
        bound_hz = mode.gpu_clock_hz if mode.gpu_clock_hz is not None else self._top_hz
        if bound_hz is not None and self._top_hz is not None:
            bound_hz = min(bound_hz, self._top_hz)
        return DeviceState(
            power_mode=mode.name, power_mode_gpu_clock_hz=bound_hz, power_mode_emc_clock_hz=mode.emc_clock_hz
        )

    def close(self) -> None:
        """Nothing stays open."""
