"""The start of the sensors (``device_watch.py``), which are imported where something reads them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence

from edgeserve.config.schema import Config
from edgeserve.device import signs
from edgeserve.live.device_news import board_table

if TYPE_CHECKING:
    from edgeserve.config.profile_record import Profile
    from edgeserve.live.device_watch import DeviceWatch


def started_watch(
    config: Config, post: Callable[[Any], None], clock_ns: Callable[[], int], profiles: Sequence[Profile]
) -> Optional[DeviceWatch]:
    """The monitors, begun; None where nothing shows a board or a GPU, and no device has a limit that needs one."""
    if signs.has_none() and not config.has_limits:
        return None
    from edgeserve.live.device_watch import DeviceWatch

    watch = DeviceWatch(config, post, clock_ns, profiles=profiles)
    watch.start()
    return watch


def device_table(watch: Optional[DeviceWatch]) -> Dict[str, Any]:
    """The device's part of ``stats``."""
    return {**_board()} if watch is None else watch.table()


@lru_cache(maxsize=1)
def _board() -> Dict[str, Any]:
    """The board alone, looked at once: the loop's thread asks."""
    from edgeserve.device.boards import detect_board

    return board_table(detect_board())


def with_headroom(config: Config) -> Config:
    """See :func:`edgeserve.live.device_watch.with_headroom`."""
    if all(device.kind != "cuda" for device in config.devices.values()):
        return config
    from edgeserve.live import device_watch

    return device_watch.with_headroom(config)


def card_free_bytes(index: int) -> Optional[int]:
    """See :func:`edgeserve.live.device_watch.card_free_bytes`."""
    from edgeserve.live import device_watch

    return device_watch.card_free_bytes(index)
