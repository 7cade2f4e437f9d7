"""The CUDA driver API through NVIDIA's ``cuda-bindings`` (Python 3.10 and later).

A call returns ``(status, value...)``. Integers are taken for handles and pointers.
"""

from __future__ import annotations

from typing import Any, Tuple

from cuda.bindings import driver as cu

from edgeserve.engines.cuda.driver import Driver
from edgeserve.engines.cuda.errors import DRIVER_MEND, NOT_READY, error_of
from edgeserve.errors import DeviceMissing

NAME_LENGTH_MAX = 256


def make() -> Driver:
    """The registry's entry. Raises :class:`DeviceMissing` where the driver is missing or cannot start."""
    return BindingsDriver()


class BindingsDriver:
    """Follows :class:`edgeserve.engines.cuda.driver.Driver`."""

    name = "cuda-bindings"
    graphs = True

    def __init__(self) -> None:
        try:
            done = cu.cuInit(0)
        except RuntimeError as error:  # the driver's library is not there
            raise DeviceMissing(f"the CUDA driver cannot be loaded: {error}; {DRIVER_MEND}") from None
        self._checked("cuInit", done)
        self._thread_local = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

    def version(self) -> Tuple[int, int]:
        number = self._checked("cuDriverGetVersion", cu.cuDriverGetVersion())
        return number // 1000, number % 1000 // 10

    def device_count(self) -> int:
        return int(self._checked("cuDeviceGetCount", cu.cuDeviceGetCount()))

    def device_name(self, index: int) -> str:
        name = self._checked("cuDeviceGetName", cu.cuDeviceGetName(NAME_LENGTH_MAX, self._device(index)))
        return bytes(name).split(b"\0")[0].decode("utf-8", "replace")

    def attribute(self, index: int, name: str) -> int:
        key = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._checked("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(key, self._device(index))))

    def total_bytes(self, index: int) -> int:
        return int(self._checked("cuDeviceTotalMem", cu.cuDeviceTotalMem(self._device(index))))

    # --- contexts ---

    def retain(self, index: int) -> int:
        return int(self._checked("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(self._device(index))))

    def release(self, index: int, context: int) -> None:
        self._checked("cuDevicePrimaryCtxRelease", cu.cuDevicePrimaryCtxRelease(self._device(index)))

    def push(self, context: int) -> None:
        self._checked("cuCtxPushCurrent", cu.cuCtxPushCurrent(context))

    def pop(self) -> None:
        self._checked("cuCtxPopCurrent", cu.cuCtxPopCurrent())

    # --- memory ---

    def memory(self) -> Tuple[int, int]:
        free, total = self._checked("cuMemGetInfo", cu.cuMemGetInfo())
        return int(free), int(total)

    def alloc_device(self, size: int) -> int:
        return int(self._checked("cuMemAlloc", cu.cuMemAlloc(size)))

    def free_device(self, pointer: int) -> None:
        self._checked("cuMemFree", cu.cuMemFree(pointer))

    def alloc_host(self, size: int, mapped: bool) -> int:
        flags = cu.CU_MEMHOSTALLOC_PORTABLE | (cu.CU_MEMHOSTALLOC_DEVICEMAP if mapped else 0)
        return int(self._checked("cuMemHostAlloc", cu.cuMemHostAlloc(size, flags)))

    def free_host(self, pointer: int) -> None:
        self._checked("cuMemFreeHost", cu.cuMemFreeHost(pointer))

    def device_pointer(self, host_pointer: int) -> int:
        return int(self._checked("cuMemHostGetDevicePointer", cu.cuMemHostGetDevicePointer(host_pointer, 0)))

    def copy_to_device(self, to: int, host: int, size: int, stream: int) -> None:
        self._checked("cuMemcpyHtoDAsync", cu.cuMemcpyHtoDAsync(to, host, size, stream))

    def copy_to_host(self, host: int, source: int, size: int, stream: int) -> None:
        self._checked("cuMemcpyDtoHAsync", cu.cuMemcpyDtoHAsync(host, source, size, stream))

    def copy_on_device(self, to: int, source: int, size: int, stream: int) -> None:
        self._checked("cuMemcpyDtoDAsync", cu.cuMemcpyDtoDAsync(to, source, size, stream))

    def fill(self, pointer: int, byte: int, size: int, stream: int) -> None:
        self._checked("cuMemsetD8Async", cu.cuMemsetD8Async(pointer, byte, size, stream))

    # --- streams ---

    def create_stream(self, priority: int) -> int:
        flags = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        return int(self._checked("cuStreamCreateWithPriority", cu.cuStreamCreateWithPriority(flags, priority)))

    def destroy_stream(self, stream: int) -> None:
        self._checked("cuStreamDestroy", cu.cuStreamDestroy(stream))

    def synchronize_stream(self, stream: int) -> None:
        self._checked("cuStreamSynchronize", cu.cuStreamSynchronize(stream))

    def stream_done(self, stream: int) -> bool:
        return self._is_ready("cuStreamQuery", cu.cuStreamQuery(stream))

    def stream_wait(self, stream: int, event: int) -> None:
        self._checked("cuStreamWaitEvent", cu.cuStreamWaitEvent(stream, event, 0))

    # --- events ---

    def create_event(self, timing: bool, blocking: bool) -> int:
        flags = (0 if timing else int(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)) | (
            int(cu.CUevent_flags.CU_EVENT_BLOCKING_SYNC) if blocking else 0
        )
        return int(self._checked("cuEventCreate", cu.cuEventCreate(flags)))

    def destroy_event(self, event: int) -> None:
        self._checked("cuEventDestroy", cu.cuEventDestroy(event))

    def record(self, event: int, stream: int) -> None:
        self._checked("cuEventRecord", cu.cuEventRecord(event, stream))

    def event_done(self, event: int) -> bool:
        return self._is_ready("cuEventQuery", cu.cuEventQuery(event))

    def synchronize_event(self, event: int) -> None:
        self._checked("cuEventSynchronize", cu.cuEventSynchronize(event))

    def elapsed_ms(self, start: int, end: int) -> float:
        return float(self._checked("cuEventElapsedTime", cu.cuEventElapsedTime(start, end)))

    # --- graphs ---

    def begin_capture(self, stream: int) -> None:
        self._checked("cuStreamBeginCapture", cu.cuStreamBeginCapture(stream, self._thread_local))

    def end_capture(self, stream: int) -> int:
        return int(self._checked("cuStreamEndCapture", cu.cuStreamEndCapture(stream)))

    def instantiate(self, graph: int) -> int:
        return int(self._checked("cuGraphInstantiate", cu.cuGraphInstantiate(graph, 0)))

    def launch(self, executable: int, stream: int) -> None:
        self._checked("cuGraphLaunch", cu.cuGraphLaunch(executable, stream))

    def destroy_graph(self, graph: int) -> None:
        self._checked("cuGraphDestroy", cu.cuGraphDestroy(graph))

    def destroy_executable(self, executable: int) -> None:
        self._checked("cuGraphExecDestroy", cu.cuGraphExecDestroy(executable))

    # --- status ---

    def _device(self, index: int) -> Any:
        return self._checked("cuDeviceGet", cu.cuDeviceGet(index))

    def _checked(self, call: str, returned: Tuple[Any, ...]) -> Any:
        """What a call returned besides its status: nothing, one value or a tuple."""
        status = int(returned[0])
        if status:
            raise error_of(call, status, _name(returned[0]))
        values = returned[1:]
        return values[0] if len(values) == 1 else values

    def _is_ready(self, call: str, returned: Tuple[Any, ...]) -> bool:
        if int(returned[0]) == NOT_READY:
            return False
        self._checked(call, returned)
        return True


def _name(status: Any) -> str:
    """``CUDA_ERROR_ILLEGAL_ADDRESS``, also for codes that this release of the library does not know."""
    return str(getattr(status, "name", f"status {int(status)}"))
