"""Tensors that go to the device and come back: one object for the host's side and the device's.

On a device of its own memory: page-locked host memory, device memory, and copies between them. On an integrated
device, which shares the host's memory: mapped memory, and no copies.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

from numpy.typing import NDArray

from edgeserve.engines.cuda.device import CudaDevice, CudaStream, DeviceBuffer, DeviceMemory, HostBuffer


class Staged:
    """``size`` bytes on the host (:meth:`array`) and on the device (``pointer``). ``mapped=None`` decides by the
    device; a network whose first layers read their input again and again is faster with copies also on an integrated
    device, whose GPU does not cache mapped memory."""

    def __init__(self, device: CudaDevice, size: int, mapped: Optional[bool] = None) -> None:
        if mapped is None:
            mapped = device.info.integrated and device.info.can_map_host_memory
        self.size = size
        self.mapped = mapped
        self.host: HostBuffer
        self._device_side: DeviceMemory
        if mapped:
            shared = device.mapped(size)
            self.host, self._device_side = shared, shared
            return
        pinned = device.pinned(size)
        try:
            self._device_side = device.buffer(size)
        except BaseException:
            pinned.free()
            raise
        self.host = pinned

    @property
    def pointer(self) -> int:
        """The device's pointer."""
        return self._device_side.pointer

    def array(self, shape: Sequence[int], dtype: Any, offset: int = 0) -> NDArray[Any]:
        """The host's view."""
        return self.host.array(shape, dtype, offset)

    def to_device(self, stream: CudaStream, size: Optional[int] = None) -> None:
        """Enqueue the copy of the first ``size`` bytes to the device, where one is needed."""
        if isinstance(self._device_side, DeviceBuffer):
            stream.to_device(self._device_side, self.host, size)

    def to_host(self, stream: CudaStream, size: Optional[int] = None) -> None:
        """Enqueue the copy of the first ``size`` bytes to the host, where one is needed."""
        if isinstance(self._device_side, DeviceBuffer):
            stream.to_host(self.host, self._device_side, size)

    def free(self) -> None:
        """Free both sides. Idempotent."""
        self._device_side.free()
        self.host.free()
