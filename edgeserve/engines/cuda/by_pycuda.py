"""The CUDA driver API through ``pycuda``: for JetPack 5, whose Python 3.8 has no cuda-bindings.

pycuda has objects where the protocol has integers; this adapter keeps them in tables. ``pycuda.autoinit`` is never
imported: it makes a second context beside the primary one, whose pointers torch and ONNX Runtime cannot use. pycuda
knows neither stream priorities nor graphs.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from typing import Any, Dict, Iterator, Tuple

import numpy as np
import pycuda.driver as cu

from edgeserve.engines.cuda.driver import Driver
from edgeserve.engines.cuda.errors import DRIVER_MEND, MISSING, OUT_OF_MEMORY, STICKY, Unsupported, error_of, status_of
from edgeserve.errors import DeviceMissing, EngineError

STREAM_NON_BLOCKING = 1


def make() -> Driver:
    """The registry's entry. Raises :class:`DeviceMissing` where the driver cannot start."""
    return PycudaDriver()


class PycudaDriver:
    """Follows :class:`edgeserve.engines.cuda.driver.Driver`."""

    name = "pycuda"
    graphs = False

    def __init__(self) -> None:
        try:
            cu.init()
        except cu.Error as error:
            raise DeviceMissing(f"{error}; {DRIVER_MEND}") from None
        self._numbers = itertools.count(1)
        self._contexts: Dict[int, Any] = {}
        self._device_memory: Dict[int, Any] = {}
        self._host_memory: Dict[int, Any] = {}
        self._streams: Dict[int, Any] = {}
        self._events: Dict[int, Any] = {}

    def version(self) -> Tuple[int, int]:
        number = int(cu.get_driver_version())
        return number // 1000, number % 1000 // 10

    def device_count(self) -> int:
        with _translated():
            return int(cu.Device.count())

    def device_name(self, index: int) -> str:
        with _translated():
            return str(cu.Device(index).name())

    def attribute(self, index: int, name: str) -> int:
        with _translated():
            return int(cu.Device(index).get_attribute(getattr(cu.device_attribute, name)))

    def total_bytes(self, index: int) -> int:
        with _translated():
            return int(cu.Device(index).total_memory())

    # --- contexts ---

    def retain(self, index: int) -> int:
        with _translated():
            context = cu.Device(index).retain_primary_context()
        number = next(self._numbers)
        self._contexts[number] = context
        return number

    def release(self, index: int, context: int) -> None:
        with _translated():
            self._contexts.pop(context).detach()

    def push(self, context: int) -> None:
        with _translated():
            self._contexts[context].push()

    def pop(self) -> None:
        with _translated():
            cu.Context.pop()

    # --- memory ---

    def memory(self) -> Tuple[int, int]:
        with _translated():
            free, total = cu.mem_get_info()
        return int(free), int(total)

    def alloc_device(self, size: int) -> int:
        with _translated():
            allocation = cu.mem_alloc(size)
        pointer = int(allocation)
        self._device_memory[pointer] = allocation
        return pointer

    def free_device(self, pointer: int) -> None:
        with _translated():
            self._device_memory.pop(pointer).free()

    def alloc_host(self, size: int, mapped: bool) -> int:
        flags = cu.host_alloc_flags.PORTABLE | (cu.host_alloc_flags.DEVICEMAP if mapped else 0)
        with _translated():
            array = cu.pagelocked_empty(size, np.uint8, mem_flags=flags)
        pointer = int(array.ctypes.data)
        self._host_memory[pointer] = array.base
        return pointer

    def free_host(self, pointer: int) -> None:
        with _translated():
            self._host_memory.pop(pointer).free()

    def device_pointer(self, host_pointer: int) -> int:
        with _translated():
            return int(self._host_memory[host_pointer].get_device_pointer())

    def copy_to_device(self, to: int, host: int, size: int, stream: int) -> None:
        with _translated():
            cu.memcpy_htod_async(to, _bytes_at(host, size), self._stream(stream))

    def copy_to_host(self, host: int, source: int, size: int, stream: int) -> None:
        with _translated():
            cu.memcpy_dtoh_async(_bytes_at(host, size), source, self._stream(stream))

    def copy_on_device(self, to: int, source: int, size: int, stream: int) -> None:
        with _translated():
            cu.memcpy_dtod_async(to, source, size, self._stream(stream))

    def fill(self, pointer: int, byte: int, size: int, stream: int) -> None:
        with _translated():
            cu.memset_d8_async(pointer, byte, size, self._stream(stream))

    # --- streams ---

    def create_stream(self, priority: int) -> int:
        with _translated():
            stream = cu.Stream(STREAM_NON_BLOCKING)
        self._streams[int(stream.handle)] = stream
        return int(stream.handle)

    def destroy_stream(self, stream: int) -> None:
        with _translated():
            del self._streams[stream]  # pycuda destroys it with the last reference

    def synchronize_stream(self, stream: int) -> None:
        with _translated():
            self._stream(stream).synchronize()

    def stream_done(self, stream: int) -> bool:
        with _translated():
            return bool(self._stream(stream).is_done())

    def stream_wait(self, stream: int, event: int) -> None:
        with _translated():
            self._stream(stream).wait_for_event(self._events[event])

    def _stream(self, handle: int) -> Any:
        if handle not in self._streams:
            raise Unsupported(f"pycuda cannot use the stream {handle:#x}, which another library made")
        return self._streams[handle]

    # --- events ---

    def create_event(self, timing: bool, blocking: bool) -> int:
        flags = (0 if timing else cu.event_flags.DISABLE_TIMING) | (cu.event_flags.BLOCKING_SYNC if blocking else 0)
        with _translated():
            event = cu.Event(flags)
        number = next(self._numbers)
        self._events[number] = event
        return number

    def destroy_event(self, event: int) -> None:
        with _translated():
            del self._events[event]

    def record(self, event: int, stream: int) -> None:
        with _translated():
            self._events[event].record(self._stream(stream))

    def event_done(self, event: int) -> bool:
        with _translated():
            return bool(self._events[event].query())

    def synchronize_event(self, event: int) -> None:
        with _translated():
            self._events[event].synchronize()

    def elapsed_ms(self, start: int, end: int) -> float:
        with _translated():
            return float(self._events[end].time_since(self._events[start]))

    # --- graphs ---

    def begin_capture(self, stream: int) -> None:
        raise Unsupported("pycuda cannot capture CUDA graphs; use cuda-bindings (Python 3.10 and later)")

    def end_capture(self, stream: int) -> int:
        raise Unsupported("pycuda cannot capture CUDA graphs")

    def instantiate(self, graph: int) -> int:
        raise Unsupported("pycuda cannot instantiate CUDA graphs")

    def launch(self, executable: int, stream: int) -> None:
        raise Unsupported("pycuda cannot launch CUDA graphs")

    def destroy_graph(self, graph: int) -> None:
        raise Unsupported("pycuda has no CUDA graphs")

    def destroy_executable(self, executable: int) -> None:
        raise Unsupported("pycuda has no CUDA graphs")


def _bytes_at(pointer: int, size: int) -> Any:
    """A writable buffer over host memory: what pycuda copies from and to."""
    return (ctypes.c_ubyte * size).from_address(pointer)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """pycuda's exceptions as EdgeServe's."""
    try:
        yield
    except cu.Error as error:
        raise _error_of(error) from error


def _error_of(error: Exception) -> EngineError:
    """``cuMemAlloc failed: out of memory`` with its code, which the text tells."""
    call, _, text = str(error).partition(" failed: ")
    text = text or call
    status = status_of(text)
    if status is None and isinstance(error, cu.MemoryError):
        status = OUT_OF_MEMORY
    names = {**STICKY, **MISSING, OUT_OF_MEMORY: "OUT_OF_MEMORY"}
    shown = f"CUDA_ERROR_{names[status]}, {text}" if status in names else text
    return error_of(call if text != call else "a CUDA call", status, shown)
