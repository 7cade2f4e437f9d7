"""Devices, streams, events, memory and graphs, as engines use them.

A :class:`CudaDevice` retains the primary context. CUDA calls need it current on the calling thread: work happens inside
``with device.current():``, which may be nested. What a device makes (streams, events, buffers, graphs) is freed by
its ``free``, which makes the context current itself, or at the latest by ``CudaDevice.close``. Freeing twice does
nothing. No clock, no thread; the thread that frees something makes sure that nothing still uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.cuda.device_info import device_info
from edgeserve.engines.cuda.driver import Driver
from edgeserve.engines.cuda.multiprocessors import Share, shares_of
from edgeserve.engines.cuda.status import CudaError, out_of_memory
from edgeserve.errors import DeviceLost, DeviceMissing, EngineError, OutOfMemory


class MemoryInfo(NamedTuple):
    """Bytes of a device. On an integrated device memory that the kernel could reclaim does not count as free."""

    free: int
    total: int


class Resource:
    """Something that a device made and that must be freed."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._freed = False

    @property
    def freed(self) -> bool:
        """True if it was freed."""
        return self._freed

    def free(self) -> None:
        """Give it back. On a lost device, where nothing can be given back, this does nothing."""
        if self._freed:
            return
        self._freed = True
        self.device.forget(self)
        try:
            with self.device.current():
                self._free(self.device.driver)
        except DeviceLost:
            pass  # the memory goes with the context

    def _free(self, driver: Driver) -> None:
        raise NotImplementedError


MadeT = TypeVar("MadeT", bound=Resource)


class Event(Resource):
    """A mark in a stream. ``timing``: :meth:`elapsed_ms` can be asked."""

    def __init__(self, device: CudaDevice, timing: bool) -> None:
        super().__init__(device)
        self.timing = timing
        self.handle: int = device.driver.create_event(timing)

    def record(self, stream: CudaStream) -> None:
        """Enqueue the mark behind everything that was enqueued on the stream."""
        self.device.driver.record(self.handle, stream.handle)

    def done(self) -> bool:
        """True if the device has passed the last record. Raises what the work before it failed with."""
        return self.device.driver.event_done(self.handle)

    def synchronize(self) -> None:
        """Block the thread until the device has passed the last record."""
        self.device.driver.synchronize_event(self.handle)

    def elapsed_ms(self, since: Event) -> float:
        """Milliseconds from ``since`` to this one (a 32-bit float of the device's clock, about 0.5 us fine). Both were
        recorded and are over."""
        return self.device.driver.elapsed_ms(since.handle, self.handle)

    def _free(self, driver: Driver) -> None:
        driver.destroy_event(self.handle)


class Buffer(Resource):
    """``size`` bytes of memory."""

    def __init__(self, device: CudaDevice, size: int) -> None:
        super().__init__(device)
        self.size = size

    def within(self, size: Optional[int]) -> int:
        """``size``, or everything. Raises :class:`CudaError` when it is more than there is, or the buffer was freed."""
        wanted = self.size if size is None else size
        if self.freed:
            raise CudaError(f"a buffer of {self.size} bytes was used after it was freed")
        if not 0 <= wanted <= self.size:
            raise CudaError(f"{wanted} bytes were asked of a buffer of {self.size}")
        return wanted


class DeviceBuffer(Buffer):
    """Memory of the device, at ``pointer``."""

    def __init__(self, device: CudaDevice, size: int) -> None:
        super().__init__(device, size)
        self.pointer = device.driver.alloc_device(max(size, 1))

    def _free(self, driver: Driver) -> None:
        driver.free_device(self.pointer)


class HostBuffer(Buffer):
    """Page-locked memory of the host, at ``host_pointer``: the only host memory that copies run from and to while the
    host and the device go on."""

    def __init__(self, device: CudaDevice, size: int, mapped: bool) -> None:
        super().__init__(device, size)
        self.host_pointer = device.driver.alloc_host(max(size, 1), mapped)

    def array(self, shape: Sequence[int], dtype: Any, offset: int = 0) -> NDArray[Any]:
        """A view of the bytes from ``offset`` on. It must not be used after :meth:`free`."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        if self.freed:
            raise CudaError(f"a host buffer of {self.size} bytes was used after it was freed")
        if offset < 0 or offset + count * kind.itemsize > self.size:
            raise CudaError(f"{kind}{list(shape)} at byte {offset} does not fit a host buffer of {self.size} bytes")
        raw: Any = (ctypes.c_ubyte * max(self.size, 1)).from_address(self.host_pointer)  # numpy takes any buffer
        view: NDArray[Any] = np.frombuffer(raw, kind, count, offset).reshape(tuple(shape))
        return view

    def _free(self, driver: Driver) -> None:
        driver.free_host(self.host_pointer)


class PinnedBuffer(HostBuffer):
    """Page-locked host memory, to copy from and to."""

    def __init__(self, device: CudaDevice, size: int) -> None:
        super().__init__(device, size, mapped=False)


class MappedBuffer(HostBuffer):
    """Host memory that the device reads and writes in place, at ``pointer``: no copies on an integrated device. On
    another every access crosses the bus. From compute capability 7.2 on the host's side is cached."""

    def __init__(self, device: CudaDevice, size: int) -> None:
        super().__init__(device, size, mapped=True)
        self.pointer = device.driver.device_pointer(self.host_pointer)


class ForeignMemory(Buffer):
    """Memory of the device that another library owns, and frees."""

    def __init__(self, device: CudaDevice, pointer: int, size: int) -> None:
        super().__init__(device, size)
        self.pointer = pointer

    def _free(self, driver: Driver) -> None:
        pass


DeviceMemory = Union[DeviceBuffer, MappedBuffer, ForeignMemory]
"""Memory that the device reads and writes at ``pointer``."""


class Graph(Resource):
    """The calls that a stream captured, ready to be launched again and again with the same pointers."""

    def __init__(self, device: CudaDevice, executable: int) -> None:
        super().__init__(device)
        self.handle: int = executable

    def launch(self, stream: CudaStream) -> None:
        """Enqueue it."""
        self.device.driver.launch(self.handle, stream.handle)

    def _free(self, driver: Driver) -> None:
        driver.destroy_executable(self.handle)


class CudaStream(Resource):
    """Works run one after the other, beside those of other streams. ``priority``: whose kernels the device begins first
    where several streams have some, from 0; more than the device knows counts as its highest."""

    def __init__(self, device: CudaDevice, priority: int = 0) -> None:
        super().__init__(device)
        least, greatest = device.driver.stream_priorities() if priority else (0, 0)
        self.handle: int = device.driver.create_stream(max(least - priority, greatest), device.green)

    def done(self) -> bool:
        """True if everything that was enqueued is over."""
        return self.device.driver.stream_done(self.handle)

    def synchronize(self) -> None:
        """Block the thread until everything that was enqueued is over."""
        self.device.driver.synchronize_stream(self.handle)

    def wait(self, event: Event) -> None:
        """Let later work of the stream wait for the event's last record, on the device."""
        self.device.driver.stream_wait(self.handle, event.handle)

    def to_device(self, to: DeviceMemory, source: HostBuffer, size: Optional[int] = None) -> None:
        """Enqueue a copy of the first ``size`` bytes. ``source`` must not change before it is over."""
        self.device.driver.copy_to_device(to.pointer, source.host_pointer, _common(to, source, size), self.handle)

    def to_host(self, to: HostBuffer, source: DeviceMemory, size: Optional[int] = None) -> None:
        """Enqueue a copy of the first ``size`` bytes. ``to`` must not be read before it is over."""
        self.device.driver.copy_to_host(to.host_pointer, source.pointer, _common(to, source, size), self.handle)

    def on_device(self, to: DeviceMemory, source: DeviceMemory) -> None:
        """Enqueue a copy within the device."""
        self.device.driver.copy_on_device(to.pointer, source.pointer, _common(to, source, None), self.handle)

    def fill(self, buffer: DeviceMemory, byte: int = 0, size: Optional[int] = None) -> None:
        """Enqueue setting the first ``size`` bytes."""
        self.device.driver.fill(buffer.pointer, byte, buffer.within(size), self.handle)

    @contextlib.contextmanager
    def captured(self) -> Iterator[Captured]:
        """Record what the block enqueues on this stream, instead of running it; afterwards ``.graph`` has it.

        Nothing inside may allocate, free, synchronise or use another stream. Raises :class:`CudaError` when something
        in the block cannot be captured.
        """
        driver = self.device.driver
        captured = Captured()
        driver.begin_capture(self.handle)
        try:
            yield captured
        except BaseException:
            with contextlib.suppress(EngineError):  # a capture that failed must be ended all the same
                driver.destroy_graph(driver.end_capture(self.handle))
            raise
        graph = driver.end_capture(self.handle)
        try:
            captured.graph = self.device.keep(Graph(self.device, driver.instantiate(graph)))
        finally:
            driver.destroy_graph(graph)

    def _free(self, driver: Driver) -> None:
        driver.destroy_stream(self.handle)


class Captured:
    """The result of :meth:`Stream.captured`: ``graph`` is there when the block is over."""

    graph: Optional[Graph] = None


_FREED_FIRST = (Graph, Event, Buffer, CudaStream)


class CudaDevice:
    """One device, through its primary context. ``close`` frees what it made and is not freed yet. ``lane`` and ``sms``:
    its streams run on so many multiprocessors, which are that lane's alone."""

    def __init__(self, driver: Driver, index: int = 0, lane: str = "", sms: int = 0) -> None:
        count = driver.device_count()
        if not 0 <= index < count:
            raise DeviceMissing(
                f"device {index} does not exist: CUDA shows {count} device(s); mend "
                "[device.NAME] kind, or CUDA_VISIBLE_DEVICES"
            )
        self.driver = driver
        self.index = index
        self.info = device_info(driver, index)
        self._context: Optional[int] = driver.retain(index)
        self._made: Dict[int, Resource] = {}
        self.share: Optional[Share] = None
        if sms:
            try:
                with self.current():
                    self.share = shares_of(driver, index).take(lane, sms)
            except BaseException:
                self.close()
                raise

    @property
    def green(self) -> int:
        """The green context of its streams, 0 without one."""
        return self.share.context if self.share is not None else 0

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current on this thread while the block runs."""
        if self._context is None:
            raise CudaError(f"device {self.index} was used after it was closed")
        self.driver.push(self._context)
        try:
            yield
        finally:
            self.driver.pop()

    def is_foreign(self, pointer: int) -> bool:
        """True if memory of the GPU belongs to another context than this one, where it means something else."""
        owner = self.driver.context_of(pointer)
        return owner not in (0, self._context)

    def memory(self) -> MemoryInfo:
        """Free and total bytes now. Needs no current context."""
        with self.current():
            return MemoryInfo(*self.driver.memory())

    def stream(self, priority: int = 0) -> CudaStream:
        """A new stream; ``priority`` as :class:`CudaStream` says."""
        return self.keep(CudaStream(self, priority))

    def event(self, timing: bool = True) -> Event:
        """An event, not recorded."""
        return self.keep(Event(self, timing))

    def buffer(self, size: int) -> DeviceBuffer:
        """Device memory. Raises :class:`~edgeserve.errors.OutOfMemory` with the bytes asked and free."""
        try:
            return self.keep(DeviceBuffer(self, size))
        except OutOfMemory as error:
            raise self._no_room("device memory", size) from error

    def pinned(self, size: int) -> PinnedBuffer:
        """Page-locked host memory. Raises :class:`~edgeserve.errors.OutOfMemory`."""
        try:
            return self.keep(PinnedBuffer(self, size))
        except OutOfMemory as error:
            raise self._no_room("page-locked host memory", size) from error

    def mapped(self, size: int) -> MappedBuffer:
        """Host memory that the device uses in place. Raises :class:`CudaError` where the device cannot."""
        if not self.info.can_map_host_memory:
            raise CudaError(f"device {self.index} ({self.info.name}) cannot map host memory; use pinned buffers")
        try:
            return self.keep(MappedBuffer(self, size))
        except OutOfMemory as error:
            raise self._no_room("mapped host memory", size) from error

    def close(self) -> None:
        """Free the remaining memory, then release the context. Nothing runs any more. Idempotent."""
        if self._context is None:
            return
        for kind in _FREED_FIRST:
            for resource in [made for made in self._made.values() if isinstance(made, kind)]:
                resource.free()
        share, self.share = self.share, None
        with contextlib.suppress(DeviceLost):
            if share is not None:
                with self.current():
                    shares_of(self.driver, self.index).leave(share)
        context, self._context = self._context, None
        with contextlib.suppress(DeviceLost):
            self.driver.release(self.index, context)

    def keep(self, resource: MadeT) -> MadeT:
        """Remember something that was made, until it is freed."""
        self._made[id(resource)] = resource
        return resource

    def forget(self, resource: Resource) -> None:
        """It was freed."""
        self._made.pop(id(resource), None)

    def _no_room(self, what: str, size: int) -> OutOfMemory:
        try:
            free, total = self.driver.memory()
        except EngineError:
            return out_of_memory(what, size, None, None)
        return out_of_memory(what, size, free, total)


def _common(to: Buffer, source: Buffer, size: Optional[int]) -> int:
    """The bytes that a copy moves: ``size``, or as many as both have. Raises :class:`CudaError` when one has less."""
    wanted = min(to.size, source.size) if size is None else size
    return min(to.within(wanted), source.within(wanted))
