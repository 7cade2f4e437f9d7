"""The working memory of a lane: one block for the contexts of all its models, since they run one after the other.

It is as large as the largest of them needs, and larger when such a model comes: then it moves, and what was captured
with the old place is captured again.
"""

from __future__ import annotations

import threading
from typing import List, Optional, Protocol

from edgeserve.engines.base import LaneInfo
from edgeserve.engines.cuda.device import CudaDevice, DeviceBuffer
from edgeserve.engines.cuda.driver import Driver

NAME = "tensorrt scratch"
"""The key of a lane's block in ``LaneInfo.common``."""


class User(Protocol):
    """The contexts of one model on the lane."""

    def moved(self, block: DeviceBuffer) -> None:
        """Use this block from now on; nothing uses the old one when it returns."""


class Scratch:
    """Taken on the lane's thread, left on any. It keeps the device's context for as long as there is a user: the lane
    may end before its models."""

    def __init__(self, driver: Driver, index: int) -> None:
        self._driver, self._index = driver, index
        self._lock = threading.Lock()
        self._users: List[User] = []
        self._device: Optional[CudaDevice] = None
        self._block: Optional[DeviceBuffer] = None

    def take(self, user: User, size: int) -> DeviceBuffer:
        """A block of ``size`` bytes at least, for a user."""
        with self._lock:
            block = self._block
            if block is None or block.size < size:
                self._device = self._device or CudaDevice(self._driver, self._index)
                try:
                    with self._device.current():
                        block = self._device.buffer(size)
                        for other in self._users:
                            other.moved(block)
                        if self._block is not None:
                            self._block.free()
                except BaseException:
                    self._give_back_unused()
                    raise
                self._block = block
            self._users.append(user)
            return block

    def leave(self, user: User) -> None:
        """The user has no context any more. Idempotent."""
        with self._lock:
            self._users = [other for other in self._users if other is not user]
            self._give_back_unused()

    def close(self) -> None:
        """The lane ends. The block stays until the last user has left."""

    def _give_back_unused(self) -> None:
        if not self._users and self._device is not None:
            device, self._device, self._block = self._device, None, None
            device.close()


def scratch_of(lane: LaneInfo, driver: Driver) -> Scratch:
    """The block of ``lane``, made at first use."""
    common = lane.common if lane.common is not None else {}
    found: Scratch = common.setdefault(NAME, Scratch(driver, lane.device_index))
    return found
