"""How fast this machine runs now: clocks and load. It reads and decides nothing."""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

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


def power_mode(root: str = "/") -> str:
    """The name of the power mode that a Jetson is in, as nvpmodel wrote it down; ``""`` where there are no modes. The
    numbers mean different modes on different boards, so a mode without a name in the board's file has none here."""
    status = re.search(r"pmode:(\d+)", _text(root, "var/lib/nvpmodel/status"))
    modes = dict(re.findall(r"(?m)^\s*<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=([^\s>]+)", _text(root, "etc/nvpmodel.conf")))
    return modes.get(str(int(status.group(1))), "") if status else ""


def governors(root: str = "/") -> List[str]:
    """The governors of the CPU's clocks, each once; none where the system does not tell."""
    return sorted({_text(root, path).strip() for path in _clock_files(root, "scaling_governor")} - {""})


def clocks_locked(root: str = "/") -> Optional[bool]:
    """Whether the CPU's clocks cannot vary (``jetson_clocks``, governor ``performance``); None where nothing tells."""
    files = _clock_files(root, "scaling_governor")
    if not files:
        return None
    for path in files:
        folder = os.path.dirname(path)
        bounds = [_text(root, f"{folder}/scaling_{which}_freq").strip() for which in ("min", "max")]
        if _text(root, path).strip() != "performance" and (not bounds[0] or bounds[0] != bounds[1]):
            return False
    return True


def circumstances(root: str = "/") -> Dict[str, Any]:
    """What a measurement should say of the device that it was made on: power mode, governors, whether clocks are
    locked, the hottest temperature in degrees Celsius. What is not known is left out."""
    found: Dict[str, Any] = {"power_mode": power_mode(root), "governors": governors(root)}
    found = {name: value for name, value in found.items() if value}
    locked = clocks_locked(root)
    if locked is not None:
        found["clocks_locked"] = locked
    degrees = _temperatures_c(root)
    if degrees:
        found["temperature_c"] = max(degrees)
    return found


def _temperatures_c(root: str) -> List[float]:
    """What the thermal zones say; zones that are off cannot be read, say less than zero, or a constant far above."""
    texts = [_text(root, path).strip() for path in _below(root, "sys/class/thermal/thermal_zone*/temp")
             if not _text(root, f"{os.path.dirname(path)}/type").startswith("PMIC")]
    return [int(text) / 1000 for text in texts if text.isdigit() and 0 < int(text) < 150_000]


def _clock_files(root: str, name: str) -> List[str]:
    return _below(root, f"sys/devices/system/cpu/cpu[0-9]*/cpufreq/{name}")


def _below(root: str, pattern: str) -> List[str]:
    """Paths that match below ``root``, relative to it."""
    return sorted(os.path.relpath(path, root) for path in glob.glob(os.path.join(root, pattern)))


def _text(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""  # absent, or of a part that is off


def load_average() -> float:
    """Runnable threads in the last minute: above the number of cores, measurements here wait for others."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


class BusyTime(NamedTuple):
    """Seconds of processor time since their starts: of some cores, by all programs, and of this process and its
    children on any core."""

    all_s: float
    own_s: float


def busy_time(cores: Sequence[int]) -> BusyTime:
    """How long ``cores`` have been busy so far, and how much of it may be this process."""
    per_core = psutil.cpu_times(percpu=True)
    all_s = sum(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
                - getattr(times, "guest_nice", 0.0) for core, times in enumerate(per_core) if core in cores)
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
    """How many cores other programs kept busy between two readings, on average."""
    spent_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return max(0.0, spent_s / elapsed_s) if elapsed_s > 0 else 0.0
