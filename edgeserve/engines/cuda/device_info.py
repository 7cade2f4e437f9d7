"""The properties of a GPU, by its attributes; makes no context."""

from __future__ import annotations

from typing import NamedTuple, Tuple

from edgeserve.engines.cuda.driver import Driver


class DeviceInfo(NamedTuple):
    """The properties of a device. ``integrated``: it shares the host's memory, as on a Jetson."""

    number: int
    name: str
    compute_capability: Tuple[int, int]
    integrated: bool
    can_map_host_memory: bool
    multiprocessors: int
    copy_engines: int
    total_bytes: int
    cuda: Tuple[int, int]


def device_info(driver: Driver, index: int) -> DeviceInfo:
    """The properties of a device, from its attributes."""

    def ask(name: str) -> int:
        return driver.attribute(index, name)

    return DeviceInfo(
        index,
        driver.device_name(index),
        (ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")),
        bool(ask("INTEGRATED")),
        bool(ask("CAN_MAP_HOST_MEMORY")),
        ask("MULTIPROCESSOR_COUNT"),
        ask("ASYNC_ENGINE_COUNT"),
        driver.total_bytes(index),
        driver.version(),
    )
