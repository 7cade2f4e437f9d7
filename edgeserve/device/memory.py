"""The host's memory, which an integrated GPU shares: what can still be had, in how large pieces, and whether programs
wait for it."""

from __future__ import annotations

import os
import re
from typing import Dict, Optional, Tuple

import psutil

from edgeserve.control_groups import ControlGroups
from edgeserve.device.source import FAST_NS, FileSource
from edgeserve.device.state import DeviceState

MEMINFO, BUDDYINFO, PRESSURE = "proc/meminfo", "proc/buddyinfo", "proc/pressure/memory"

_FIELD = re.compile(r"^(MemTotal|MemAvailable|SwapFree|NvMapMemUsed):\s*([0-9]{1,15}) kB", re.MULTILINE)
_SOME = re.compile(r"^some avg10=([0-9]{1,3}(?:\.[0-9]{1,4})?)", re.MULTILINE)


class MemorySource(FileSource):
    """``/proc/meminfo`` (with NvMap's share of an integrated GPU), ``/proc/buddyinfo`` and, where the kernel has it,
    ``/proc/pressure/memory``. ``MemAvailable`` counts, not ``MemFree``: the page cache can be had. The bound of
    a container or a service counts where it leaves less."""

    name = "memory"
    every_ns = FAST_NS

    def __init__(self, root: str = "/", page_bytes: Optional[int] = None) -> None:
        super().__init__(root)
        self._groups = ControlGroups(root, self._files.text)
        self._is_here = os.path.realpath(root) == "/"
        self._page_bytes = page_bytes or os.sysconf("SC_PAGE_SIZE")

    def read(self, now_ns: int) -> DeviceState:
        """Memory now."""
        fields = meminfo_bytes(self._files.text(MEMINFO))
        available = fields.get("MemAvailable")
        if available is None and self._is_here:
            available = _available()  # kernels before 3.14 do not tell; psutil adds it up
        group = self._groups.memory_free_bytes()
        if group is not None:
            available = group if available is None else min(available, group)
        block_bytes, count = largest_block(self._files.text(BUDDYINFO), self._page_bytes)
        return DeviceState(
            memory_available_bytes=available,
            memory_total_bytes=fields.get("MemTotal"),
            swap_free_bytes=fields.get("SwapFree"),
            gpu_memory_used_bytes=fields.get("NvMapMemUsed"),
            memory_pressure=some_pressure(self._files.text(PRESSURE)),
            largest_free_block_bytes=block_bytes,
            free_blocks=count,
        )


def _available() -> Optional[int]:
    try:
        return int(psutil.virtual_memory().available)
    except (OSError, KeyError, ValueError):
        return None


def meminfo_bytes(text: str) -> Dict[str, int]:
    """The fields of /proc/meminfo that count here, in bytes."""
    return {name: int(kib) * 1024 for name, kib in _FIELD.findall(text)}


def some_pressure(text: str) -> Optional[float]:
    """Share of the last ten seconds in which at least one program waited for memory."""
    match = _SOME.search(text)
    return float(match.group(1)) / 100 if match else None


def largest_block(text: str, page_bytes: int) -> Tuple[Optional[int], Optional[int]]:
    """The size of the largest free blocks of memory and their number, over all zones of /proc/buddyinfo: what
    tegrastats calls lfb. (None, None) where the file does not tell."""
    counts: Dict[int, int] = {}
    seen = False
    for line in text.splitlines():
        for order, word in enumerate(line.partition("zone")[2].split()[1:]):
            if word.isdecimal() and len(word) < 16:
                seen = True
                counts[order] = counts.get(order, 0) + int(word)
    orders = [order for order, count in counts.items() if count]
    if not seen:
        return None, None
    return (page_bytes << max(orders), counts[max(orders)]) if orders else (0, 0)
