"""The present speed of this machine: clocks and load. It reads and decides nothing."""

from __future__ import annotations

import os
from typing import Dict, NamedTuple, Sequence

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
    return os.getloadavg()[0]


class BusyTime(NamedTuple):
    """Seconds of processor time since their starts: of some cores, by all programs, and of this process and its
    children on any core."""

    all_s: float
    own_s: float


def busy_time(cores: Sequence[int]) -> BusyTime:
    """The time for which ``cores`` have been busy so far, and how much of it may be this process."""
    per_core = psutil.cpu_times(percpu=True)
    all_s = sum(
        sum(times)
        - times.idle
        - getattr(times, "iowait", 0.0)
        - getattr(times, "guest", 0.0)
        - getattr(times, "guest_nice", 0.0)
        for core, times in enumerate(per_core)
        if core in cores
    )
    me = psutil.Process()
    own_s = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it ended while we looked
        own_s += times.user + times.system
    return BusyTime(all_s, own_s)


def others_busy(before: BusyTime, after: BusyTime, elapsed_s: float) -> float:
    """The number of cores that other programs kept busy between two readings, on average."""
    spent_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return max(0.0, spent_s / elapsed_s) if elapsed_s > 0 else 0.0
