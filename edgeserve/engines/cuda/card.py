"""The GPU of a lane, as a profile notes it: times measured on another one say nothing. Makes no context."""

from __future__ import annotations

import os
import re
from typing import Any, Dict

from edgeserve.config.schema import Config
from edgeserve.engines.cuda.device_info import device_info
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.errors import EngineError

KERNEL_MODULE = "proc/driver/nvidia/version"


def card(index: int, root: str = "/") -> Dict[str, Any]:
    """Name, compute capability, multiprocessors and driver of CUDA's device ``index``; nothing where no library can
    tell. The name alone says little: CUDA calls every Orin ``Orin``, from 4 multiprocessors to 16."""
    try:
        about = device_info(open_driver(), index)
    except EngineError:
        return {}
    return {
        "name": about.name,
        "compute_capability": ".".join(map(str, about.compute_capability)),
        "multiprocessors": about.multiprocessors,
        "driver": _release(root) or "CUDA " + ".".join(map(str, about.cuda)),
    }


def cards_of(config: Config) -> Dict[str, Dict[str, Any]]:
    """Lane -> its GPU, of lanes on one that can be told."""
    devices = {lane: config.devices[settings.device] for lane, settings in config.lanes.items()}
    found = {lane: card(device.index) for lane, device in devices.items() if device.kind == "cuda"}
    return {lane: about for lane, about in found.items() if about}


def _release(root: str) -> str:
    """The release of the driver's kernel module (``580.65.06``); a board has none of its own."""
    try:
        with open(os.path.join(root, KERNEL_MODULE), encoding="utf-8", errors="replace") as file:
            found = re.search(r"NVRM version:.*?\s(\d+(?:\.\d+)+)\s", file.read())
    except OSError:
        return ""
    return found.group(1) if found else ""
