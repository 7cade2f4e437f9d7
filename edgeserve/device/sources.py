"""Which sources a machine has, in the order in which they are believed. sysfs first: it needs no root for most, starts
no program and is the same in containers."""

from __future__ import annotations

import os
from typing import List, Optional

from edgeserve.device.boards import Machine, detect_board
from edgeserve.device.cpu import CpuSource
from edgeserve.device.fan import FanSource
from edgeserve.device.gpu_clock import GpuClockSource
from edgeserve.device.memory import MemorySource
from edgeserve.device.nvml import NvmlSource
from edgeserve.device.power_mode import PowerModeSource
from edgeserve.device.rails import RailsSource
from edgeserve.device.source import DeviceSource
from edgeserve.device.tegrastats import TegrastatsSource
from edgeserve.device.thermal import ThermalSource
from edgeserve.device.throttling import ThrottlingSource

TEGRASTATS = ("auto", "never", "always")
"""When tegrastats runs beside the other sources; ``auto``: on a Jetson where sysfs tells no GPU load or no power."""


def sources_for(
    board: Optional[Machine] = None, root: str = "/", gpu: int = 0, tegrastats: str = "auto", bus_id: str = ""
) -> List[DeviceSource]:
    """The sources of a machine, or of the files below ``root``: there neither a program nor a library is asked, which
    would tell of this machine. ``gpu`` is NVML's index of a discrete GPU, ``bus_id`` where it lies on the PCI bus."""
    board = board if board is not None else detect_board(root)
    is_here = os.path.realpath(root) == "/"
    found: List[DeviceSource] = []
    missing = False
    if board.is_jetson:
        clock, rails = GpuClockSource(root), RailsSource(root)
        missing = not clock.load_file or not rails.rails
        found += [clock, rails, PowerModeSource(root)]
        if is_here and not clock.load_file:
            found.append(NvmlSource(gpu, integrated=True))
    elif is_here and board.kind.slug == "desktop-gpu":
        found.append(NvmlSource(gpu, bus_id=bus_id))
    found += [ThermalSource(root), ThrottlingSource(root), FanSource(root), MemorySource(root), CpuSource(root)]
    if is_here and (tegrastats == "always" or (tegrastats == "auto" and missing)):
        found.append(TegrastatsSource())
    return found
