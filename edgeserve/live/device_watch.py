"""The device while serving: monitors on threads of their own, whose important changes reach the scheduler as mail for
the loop.

One monitor per GPU that the configuration names; a device of kind ``cpu`` is told of by the first. What changes enough
to matter (``device/filter.py``) becomes events; the rest is shown by ``stats()`` alone.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence

from edgeserve.config.profile_record import Clocks, Profile
from edgeserve.config.readers import AUTO
from edgeserve.config.schema import Config, DeviceConfig
from edgeserve.device.boards import Machine, detect_board
from edgeserve.device.circumstances import gpu_clocks
from edgeserve.device.events import DeviceEvents
from edgeserve.device.memory import MemorySource
from edgeserve.device.monitor import Monitor
from edgeserve.device.nvml import NvmlSource
from edgeserve.device.source import DeviceSource
from edgeserve.device.sources import sources_for
from edgeserve.device.state import DeviceState
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.errors import EngineError
from edgeserve.live.device_news import DeviceNews, board_table
from edgeserve.units import NS_PER_MS, NS_PER_S

log = logging.getLogger("edgeserve")

SourcesOf = Callable[[Machine, int], Sequence[DeviceSource]]
"""The sources of a board's GPU, by its index."""


INTERVAL_NS = 500 * NS_PER_MS
"""Between two readings while serving; slow sensors are read once a second at most."""


LASTS_NS = NS_PER_S
"""The time for which an end of throttling or another power mode must last before it is logged."""

HEADROOM_BYTES = 512 * 10**6
"""The memory of a board that stays free: its GPU takes from the same, and the system must have room to answer."""


class DeviceWatch:
    """All monitors of one runtime. ``post`` puts mail into the loop's mailbox. :meth:`start` and :meth:`stop` are for
    the loop's thread."""

    def __init__(
        self,
        config: Config,
        post: Callable[[Any], None],
        clock_ns: Callable[[], int],
        sources: Optional[SourcesOf] = None,
        board: Optional[Machine] = None,
        profiles: Sequence[Profile] = (),
    ) -> None:
        self._post = post
        self.board = board if board is not None else detect_board()
        has_gpu = self.board.kind.slug != "cpu"
        self._monitors: Dict[int, Monitor] = {}
        self._devices: Dict[int, List[DeviceConfig]] = {}
        if not (has_gpu or config.has_limits):
            return
        has_cuda = any(device.kind == "cuda" for device in config.devices.values())
        make = sources or (
            lambda board, gpu: sources_for(
                board, "/", gpu, "auto", bus_id_of(gpu) if has_cuda and not board.is_jetson else ""
            )
        )
        gpus = sorted({device.index for device in config.devices.values() if device.kind == "cuda"}) or [0]
        for gpu in gpus:
            self._devices[gpu] = [
                device
                for device in config.devices.values()
                if (device.index == gpu if device.kind == "cuda" else gpu == gpus[0])
            ]
            events = DeviceEvents(config, self._devices[gpu], not self.board.is_jetson, profiles)
            self._monitors[gpu] = Monitor(
                f"gpu{gpu}" if has_gpu else "cpu",
                make(self.board, gpu),
                partial(_tell, DeviceLog(), events, post),
                clock_ns,
                time.thread_time_ns,
                INTERVAL_NS,
            )

    def start(self) -> None:
        """Begin to read."""
        for monitor in self._monitors.values():
            monitor.start()

    def stop(self) -> None:
        """End the news, and close every source."""
        for monitor in self._monitors.values():
            monitor.stop()

    def table(self) -> Dict[str, Any]:
        """The board and, per monitor, what it read last and what reading costs: for ``stats()``."""
        return {
            **board_table(self.board),
            "monitors": {
                monitor.device: {
                    "devices": [device.name for device in self._devices[gpu]],
                    "readings": monitor.state.table() if monitor.state is not None else None,
                    **monitor.costs(),
                }
                for gpu, monitor in self._monitors.items()
            },
        }


def bus_id_of(index: int) -> str:
    """The PCI bus id of CUDA's device; ``""`` where no binding of CUDA reports it."""
    try:
        return open_driver().bus_id(index)
    except EngineError:
        return ""


def clocks_of(index: int) -> Clocks:
    """The clocks with which a CUDA device works now; 0.0 where nothing tells one."""
    return gpu_clocks("/", index, "" if detect_board().is_jetson else bus_id_of(index))


def card_free_bytes(index: int) -> Optional[int]:
    """The free bytes of a CUDA device's memory, read without a CUDA context: a board's is the host's. ``None`` where
    nothing tells."""
    on_board = detect_board().is_jetson
    bus_id = "" if on_board else bus_id_of(index)
    if not on_board and not bus_id:
        return None
    source: DeviceSource = MemorySource() if on_board else NvmlSource(bus_id=bus_id)
    try:
        state = source.read(0)
        return state.memory_available_bytes if on_board else state.gpu_memory_free_bytes
    finally:
        source.close()


def with_headroom(config: Config) -> Config:
    """The configuration with a size for ``headroom = "auto"``: none but for a GPU that shares the host's memory."""
    size = HEADROOM_BYTES if detect_board().is_jetson else 0
    devices = {
        name: replace(device, headroom_bytes=size if device.kind == "cuda" else 0)
        for name, device in config.devices.items()
        if device.headroom_bytes == AUTO
    }
    return replace(config, devices={**config.devices, **devices})


class DeviceLog:
    """Logs throttling, its end and the power mode of one device: a new cause of throttling at once, other changes once
    they last for :data:`LASTS_NS`."""

    def __init__(self) -> None:
        self._told: Dict[str, Any] = {"throttles": None, "power_mode": None}
        self._since_ns: Dict[str, int] = {}

    def note(self, state: DeviceState) -> None:
        """Log what is news in ``state``."""
        for name, before in self._told.items():
            value = getattr(state, name)
            if value == before:
                self._since_ns.pop(name, None)
                continue
            is_urgent = before is None or (name == "throttles" and set(value or ()) - set(before))
            if is_urgent or state.at_ns - self._since_ns.setdefault(name, state.at_ns) >= LASTS_NS:
                self._told[name] = value
                self._since_ns.pop(name, None)
                _log_change(name, value, before)


def _log_change(name: str, value: Any, before: Any) -> None:
    if name == "throttles" and value:
        log.warning("device: throttled by %s", ", ".join(value))
    elif name == "throttles" and before:
        log.info("device: no longer throttled")
    elif name == "power_mode" and value is not None:
        log.info("device: power mode %s", value)


def _tell(changes: DeviceLog, devices: DeviceEvents, post: Callable[[Any], None], state: DeviceState) -> None:
    """Translate one monitor's state for the devices of the configuration; on the monitor's thread."""
    changes.note(state)
    events = devices.events(state)
    if events:
        post(DeviceNews(events))
