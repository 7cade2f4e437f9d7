"""The base of a source of readings: a name, how often it is worth asking, and a ``read`` that never raises or waits."""

from __future__ import annotations

from typing import Protocol

from edgeserve.device.files import PolledFiles
from edgeserve.device.state import DeviceState
from edgeserve.units import NS_PER_S

FAST_NS, SLOW_NS, RARE_NS = 0, NS_PER_S, 10 * NS_PER_S
"""Pauses between two readings of a source: clocks and load at each turn of the monitor; heat and power, whose sensors
answer over a slow bus, once a second; a power mode, which people change, once in ten."""


class DeviceSource(Protocol):
    """One way to learn something about a device. A source belongs to one thread, which reads it in turns; what reading
    costs is counted by the monitor (``Monitor.costs``), the same for every source.

    ``read`` returns a partial state: what the source cannot tell, now or ever, is None. It never raises, never sleeps
    and never waits for another program.
    """

    name: str
    every_ns: int  # the least pause between two readings

    def read(self, now_ns: int) -> DeviceState:
        """The quantities that this source knows now; ``now_ns`` is the monitor's clock."""

    def close(self) -> None:
        """Give everything back: files, processes, libraries."""


class FileSource:
    """A source that holds nothing but the kernel's files below a root."""

    def __init__(self, root: str) -> None:
        self._files = PolledFiles(root)

    def close(self) -> None:
        """Give the files back."""
        self._files.close()
