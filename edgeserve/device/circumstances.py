"""The circumstances of a measurement on its device; a profile holds for these circumstances alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from edgeserve.config.profile_record import Clocks
from edgeserve.config.schema import DeviceConfig
from edgeserve.device.files import listing, read_text
from edgeserve.device.power_mode import current_mode

if TYPE_CHECKING:
    from edgeserve.device.state import DeviceState

NOTED = (
    "gpu_clock_hz",
    "gpu_clock_max_hz",
    "emc_clock_hz",
    "emc_clock_max_hz",
    "temperature_c",
    "temperature_zone",
    "power_w",
    "throttles",
)
"""Quantities of a :class:`~edgeserve.device.state.DeviceState` that a measurement notes, where they are known."""


def power_mode(root: str = "/") -> str:
    """The name of the power mode that a Jetson is in; ``""`` where there are no modes. The numbers mean different modes
    on different boards, so a mode without a name in the board's file has none here."""
    mode = current_mode(root)
    return mode.name if mode is not None else ""


def governors(root: str = "/") -> List[str]:
    """The governors of the CPU's clocks, each once; none where the system does not tell."""
    return sorted({read_text(root, path).strip() for path in _governor_files(root)} - {""})


def clocks_locked(root: str = "/", gpu: Optional[bool] = None) -> Optional[bool]:
    """True if no clock of CPU and GPU can vary (``jetson_clocks``, governor ``performance``); None where nothing tells.
    ``gpu`` is what is known of the GPU's."""
    known = [_is_locked(root, os.path.dirname(path)) for path in _governor_files(root)]
    known += [] if gpu is None else [gpu]
    return all(known) if known else None


def device_state(root: str = "/", gpu: int = 0, bus_id: str = "") -> DeviceState:
    """Every source of the device, read once; no program is started for it. ``gpu`` and ``bus_id``: see
    :func:`~edgeserve.device.sources.sources_for`."""
    from edgeserve.device.sources import sources_for  # the power mode needs none of it
    from edgeserve.device.state import merged

    sources = sources_for(root=root, gpu=gpu, tegrastats="never", bus_id=bus_id)
    try:
        return merged([source.read(0) for source in sources])
    finally:
        for source in sources:
            source.close()


def circumstances(root: str = "/") -> Dict[str, Any]:
    """Power mode, governors, whether clocks are locked, and :data:`NOTED`, now. What is not known is left out."""
    state = device_state(root)
    found: Dict[str, Any] = {"power_mode": power_mode(root), "governors": governors(root)}
    found.update({name: getattr(state, name) for name in NOTED})
    found["throttles"] = list(state.throttles or ())
    found = {name: value for name, value in found.items() if value not in (None, "", [])}
    locked = clocks_locked(root, state.clocks_locked)
    return found if locked is None else {**found, "clocks_locked": locked}


def gpu_clocks(root: str = "/", gpu: int = 0, bus_id: str = "") -> Clocks:
    """The clocks with which a GPU works now, as a server's monitor takes them; 0.0 where nothing tells one."""
    from edgeserve.device.events import readings_of  # what serves without a GPU needs none of it
    from edgeserve.device.filter import BUSY_LOAD, working_clocks

    readings = readings_of(device_state(root, gpu, bus_id), DeviceConfig("gpu", "cuda"), on_card=False)
    return working_clocks(readings, readings.load is not None and readings.load >= BUSY_LOAD)


def _governor_files(root: str) -> List[str]:
    return listing(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")


def _is_locked(root: str, folder: str) -> bool:
    low, high = [read_text(root, f"{folder}/scaling_{which}_freq").strip() for which in ("min", "max")]
    return read_text(root, f"{folder}/scaling_governor").strip() == "performance" or (low != "" and low == high)
