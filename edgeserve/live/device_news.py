"""News of the device for the loop."""

from __future__ import annotations

from typing import List

from edgeserve.sched.protocol.events import Event


class DeviceNews:
    """Events from a monitor's thread."""

    __slots__ = ("events",)

    def __init__(self, events: List[Event]) -> None:
        self.events = events
