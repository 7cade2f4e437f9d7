"""How fast this machine runs now: clocks and load. Reads, decides nothing."""

from __future__ import annotations

import os
from typing import Dict

import psutil


def clocks_mhz() -> Dict[str, float]:
    """The CPU's present, lowest and highest clock in MHz; empty where the system does not tell."""
    try:
        clocks = psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError):
        return {}  # containers and some boards have no such files
    if clocks is None:
        return {}
    return {"current": round(clocks.current), "min": round(clocks.min), "max": round(clocks.max)}


def load_average() -> float:
    """Runnable threads in the last minute: above the number of cores, measurements here wait for others."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
