"""The start of the sensors (``device_watch.py``), which are imported where something reads them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence

from edgeserve.config.profile_record import Profile
from edgeserve.config.readers import AUTO
from edgeserve.config.schema import Config
from edgeserve.device import signs
from edgeserve.live.device_news import board_table

if TYPE_CHECKING:
    from edgeserve.live.device_watch import DeviceWatch


def started_watch(
    config: Config, post: Callable[[Any], None], clock_ns: Callable[[], int], profiles: Sequence[Profile]
) -> Optional[DeviceWatch]:
    """The monitors that ``[monitor]`` asks for, begun; None where it asks for none, or nothing shows a board or a
    GPU."""
    if config.monitor.enabled == "never" or (config.monitor.enabled == "auto" and signs.has_none()):
        return None
    from edgeserve.live.device_watch import DeviceWatch

    watch = DeviceWatch(config, post, clock_ns, profiles=profiles)
    watch.start()
    return watch


def device_table(watch: Optional[DeviceWatch]) -> Dict[str, Any]:
    """What ``stats`` tells of the device."""
    return {**_board()} if watch is None else watch.table()


@lru_cache(maxsize=1)
def _board() -> Dict[str, Any]:
    """The board alone, looked at once: the loop's thread asks."""
    from edgeserve.device.boards import detect_board

    return board_table(detect_board())


HEADROOM_BYTES = 512 * 10**6
"""The memory of a board that stays free: its GPU takes from the same, and the system must have room to answer."""


def with_headroom(config: Config) -> Config:
    """The configuration with a size for ``headroom = "auto"``: none but for a GPU that shares the host's memory."""
    from edgeserve.device.boards import detect_board

    shares = any(device.kind == "cuda" for device in config.devices.values()) and detect_board().is_jetson
    devices = {
        name: replace(device, headroom_bytes=HEADROOM_BYTES if shares and device.kind == "cuda" else 0)
        if device.headroom_bytes == AUTO
        else device
        for name, device in config.devices.items()
    }
    return replace(config, devices=devices)


def card_free_bytes(index: int) -> Optional[int]:
    """See :func:`edgeserve.live.device_watch.card_free_bytes`."""
    from edgeserve.live import device_watch

    return device_watch.card_free_bytes(index)
