"""``pycuda.driver`` as its source has it (``src/wrapper/wrap_cudadrv.cpp``), over the CUDA double: objects instead of
handles, errors by their texts. Only what EdgeServe's adapter calls."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from typing import Any

import numpy as np
from cuda_double import CudaDouble

from edgeserve.engines.cuda.errors import TEXTS
from edgeserve.errors import DeviceLost, EngineError, OutOfMemory


class Error(Exception):
    """Any failure of CUDA."""


class MemoryError(Error):
    """No room."""


ILLEGAL_ADDRESS = next(text for text, status in TEXTS.items() if status == 700)


def guarded(call: Any, *arguments: Any) -> Any:
    """The double's errors as pycuda raises them."""
    try:
        return call(*arguments)
    except OutOfMemory:
        raise MemoryError("cuMemAlloc failed: out of memory") from None
    except DeviceLost:
        raise Error(f"cuStreamSynchronize failed: {ILLEGAL_ADDRESS}") from None
    except EngineError as other:
        raise Error(str(other)) from None


class OnDouble:
    """What all objects below share: the double of the test that is running."""

    driver: CudaDouble


class Context(OnDouble):
    def __init__(self, index: int) -> None:
        self.index = index
        self.number = self.driver.retain(index)

    def push(self) -> None:
        self.driver.push(self.number)

    @classmethod
    def pop(cls) -> None:
        OnDouble.driver.pop()

    def detach(self) -> None:
        self.driver.release(self.index, self.number)


class Device(OnDouble):
    def __init__(self, index: int) -> None:
        self.index = index

    @staticmethod
    def count() -> int:
        return int(guarded(OnDouble.driver.device_count))

    def name(self) -> str:
        return self.driver.device_name(self.index)

    def get_attribute(self, attribute: str) -> int:
        return self.driver.attribute(self.index, attribute)

    def total_memory(self) -> int:
        return self.driver.total_bytes(self.index)

    def retain_primary_context(self) -> Context:
        return Context(self.index)


class DeviceAllocation(OnDouble):
    def __init__(self, size: int) -> None:
        self.pointer = guarded(self.driver.alloc_device, size)

    def __int__(self) -> int:
        return int(self.pointer)

    def free(self) -> None:
        guarded(self.driver.free_device, self.pointer)


class HostAllocation(OnDouble):
    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def free(self) -> None:
        guarded(self.driver.free_host, self.pointer)

    def get_device_pointer(self) -> int:
        return self.driver.device_pointer(self.pointer)


class Stream(OnDouble):
    def __init__(self, flags: int = 0) -> None:
        assert flags == 1, "a stream that waits for the default stream"
        self.own = self.driver
        self.handle = guarded(self.driver.create_stream, 0)

    def __del__(self) -> None:
        with contextlib.suppress(DeviceLost):  # as pycuda does on a context that is dead
            self.own.destroy_stream(self.handle)

    def synchronize(self) -> None:
        guarded(self.driver.synchronize_stream, self.handle)

    def is_done(self) -> bool:
        return bool(guarded(self.driver.stream_done, self.handle))

    def wait_for_event(self, event: Any) -> None:
        guarded(self.driver.stream_wait, self.handle, event.number)


class Event(OnDouble):
    def __init__(self, flags: int = 0) -> None:
        self.own = self.driver
        self.number = self.driver.create_event(not flags & 2, bool(flags & 1))

    def __del__(self) -> None:
        with contextlib.suppress(DeviceLost):
            self.own.destroy_event(self.number)

    def record(self, stream: Stream) -> None:
        guarded(self.driver.record, self.number, stream.handle)

    def query(self) -> bool:
        return bool(guarded(self.driver.event_done, self.number))

    def synchronize(self) -> None:
        guarded(self.driver.synchronize_event, self.number)

    def time_since(self, event: Event) -> float:
        return self.driver.elapsed_ms(event.number, self.number)


def pagelocked_empty(shape: int, dtype: Any, order: str = "C", mem_flags: int = 0) -> Any:
    """The two attributes of the array that the adapter looks at."""
    pointer = guarded(OnDouble.driver.alloc_host, shape, bool(mem_flags & 2))
    return types.SimpleNamespace(base=HostAllocation(pointer), ctypes=types.SimpleNamespace(data=pointer))


def address_of(buffer: Any) -> int:
    """Where a buffer's bytes lie."""
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def functions_of(driver: CudaDouble) -> Any:
    """The functions of the module, and its tables of flags."""
    return {
        "Error": Error,
        "MemoryError": MemoryError,
        "init": lambda: None,
        "get_driver_version": lambda: 11040,
        "Device": Device,
        "Context": Context,
        "Stream": Stream,
        "Event": Event,
        "mem_alloc": DeviceAllocation,
        "device_attribute": types.SimpleNamespace(**{name: name for name in driver.attributes}),
        "host_alloc_flags": types.SimpleNamespace(PORTABLE=1, DEVICEMAP=2),
        "event_flags": types.SimpleNamespace(BLOCKING_SYNC=1, DISABLE_TIMING=2),
        "mem_get_info": lambda: guarded(driver.memory),
        "pagelocked_empty": pagelocked_empty,
        "memcpy_htod_async": lambda dest, src, stream: guarded(
            driver.copy_to_device, dest, address_of(src), len(src), stream.handle
        ),
        "memcpy_dtoh_async": lambda dest, src, stream: guarded(
            driver.copy_to_host, address_of(dest), src, len(dest), stream.handle
        ),
        "memcpy_dtod_async": lambda dest, src, size, stream: guarded(
            driver.copy_on_device, dest, src, size, stream.handle
        ),
        "memset_d8_async": lambda dest, data, count, stream: guarded(driver.fill, dest, data, count, stream.handle),
    }


def installed(monkeypatch: Any, driver: CudaDouble) -> Any:
    """Put it in the place of pycuda, and give EdgeServe's adapter over it."""
    package, module = types.ModuleType("pycuda"), types.ModuleType("pycuda.driver")
    monkeypatch.setattr(OnDouble, "driver", driver, raising=False)
    vars(module).update(functions_of(driver))
    package.driver = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", module)
    name = "edgeserve.engines.cuda.by_pycuda"
    monkeypatch.delitem(sys.modules, name, raising=False)
    adapter = importlib.import_module(name)
    del sys.modules[name]  # nobody else may find the adapter of the double
    return adapter.make()
