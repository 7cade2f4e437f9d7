"""The device while serving: monitors on threads of their own, and what is news for the scheduler as mail for the loop.

One monitor per GPU that the configuration names; a device of kind ``cpu`` is told of by the first. What changes enough
to matter (``device/changes.py``) becomes events; the rest is shown by ``stats()`` alone.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from edgeserve.config.schema import Config, DeviceConfig
from edgeserve.device.boards import Board, detect_board
from edgeserve.device.changes import ChangeFilter
from edgeserve.device.monitor import Monitor
from edgeserve.device.source import Source
from edgeserve.device.sources import sources_for
from edgeserve.device.state import DeviceReport, DeviceState
from edgeserve.sched.protocol.events import DeviceChanged, Event

log = logging.getLogger("edgeserve")

SourcesOf = Callable[[Board, int], Sequence[Source]]
"""The sources of a board's GPU, by its index."""


class DeviceNews:
    """Events from a monitor's thread."""

    __slots__ = ("events",)

    def __init__(self, events: List[Event]) -> None:
        self.events = events


class DeviceWatch:
    """All monitors of one runtime. ``post`` puts mail into the loop's mailbox. :meth:`start` and :meth:`stop` are for
    the loop's thread."""

    def __init__(self, config: Config, post: Callable[[Any], None], clock_ns: Callable[[], int],
                 sources: Optional[SourcesOf] = None, board: Optional[Board] = None) -> None:
        self._post = post
        self.board = board if board is not None else detect_board()
        setting = config.monitor
        has_gpu = self.board.kind.slug != "cpu"
        self._monitors: Dict[int, Monitor] = {}
        self._devices: Dict[int, List[DeviceConfig]] = {}
        if setting.enabled == "never" or (setting.enabled == "auto" and not has_gpu):
            return
        make = sources or (lambda board, gpu: sources_for(board, "/", gpu, setting.tegrastats))
        gpus = sorted({device.index for device in config.devices.values() if device.kind == "cuda"}) or [0]
        for gpu in gpus:
            self._devices[gpu] = [device for device in config.devices.values() if (
                device.index == gpu if device.kind == "cuda" else gpu == gpus[0])]
            listener = _Listener(self._devices[gpu], self.board, post)
            self._monitors[gpu] = Monitor(f"gpu{gpu}" if has_gpu else "cpu", make(self.board, gpu), listener.tell,
                                          clock_ns, time.thread_time_ns, setting.interval_ns)

    def start(self) -> None:
        """Begin to read."""
        for monitor in self._monitors.values():
            monitor.start()

    def stop(self) -> None:
        """No more news, and every source is closed."""
        for monitor in self._monitors.values():
            monitor.stop()

    def table(self) -> Dict[str, Any]:
        """The board and, per monitor, what it read last and what reading costs: for ``stats()``."""
        return {"board": self.board.kind.slug, "model": self.board.model, "l4t": self.board.l4t,
                "jetpack": self.board.jetpack, "monitors": {
                    monitor.device: {"devices": [device.name for device in self._devices[gpu]],
                                     "readings": monitor.state.table() if monitor.state is not None else None,
                                     **monitor.costs()} for gpu, monitor in self._monitors.items()}}


class _Listener:
    """What one monitor's states mean for the devices of the configuration; on the monitor's thread."""

    def __init__(self, devices: Sequence[DeviceConfig], board: Board, post: Callable[[Any], None]) -> None:
        self._devices = devices
        self._board = board
        self._post = post
        self._changes = ChangeFilter("device")

    def tell(self, state: DeviceState) -> None:
        report = self._changes.update(state)
        if report is None:
            return
        _log_changes(report)
        events = [event for event in (device_changed(report, device, self._board) for device in self._devices)
                  if event is not None]
        if events:
            self._post(DeviceNews(list(events)))


def device_changed(report: DeviceReport, device: DeviceConfig, board: Board) -> Optional[DeviceChanged]:
    """What a report means for one device of the configuration; None where it means nothing. Heat is the share of the
    hard limit. A discrete GPU's memory is its card's, an integrated one's the host's."""
    state, changed = report.state, set(report.changed)
    on_card = device.kind == "cuda" and not board.is_jetson
    memory = "gpu_memory_free_bytes" if on_card else "memory_available_bytes"
    heat = None
    if changed & {"temperature_c", "temperature_hard_c"} and state.temperature_c is not None \
            and state.temperature_hard_c:
        heat = max(0.0, min(1.0, round(state.temperature_c / state.temperature_hard_c, 2)))
    found = DeviceChanged(device.name, getattr(state, memory) if memory in changed else None, heat,
                          state.power_w if "power_w" in changed else None)
    return None if found == DeviceChanged(device.name) else found


def _log_changes(report: DeviceReport) -> None:
    """What people want to know of later: throttling and its end, and the power mode."""
    state = report.state
    if "throttles" in report.changed and state.throttles:
        log.warning("device: throttled by %s", ", ".join(state.throttles))
    elif report.before.get("throttles"):
        log.info("device: no longer throttled")
    if "power_mode" in report.changed and state.power_mode is not None:
        log.info("device: power mode %s", state.power_mode)
