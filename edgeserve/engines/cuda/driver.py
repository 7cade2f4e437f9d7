"""The CUDA calls that engines need, through NVIDIA's own binding of the driver API.

Handles and pointers are plain integers, sizes are bytes. Calls that take
no device need a current context on the calling thread. Failures are those of
:func:`edgeserve.engines.cuda.status.error_of`. The binding is ``cuda.bindings.driver`` of cuda-bindings, or
``cuda.cuda`` of cuda-python, which Python 3.8 has; without both the driver's library is called as it is
(:mod:`edgeserve.engines.cuda.bare_library`). A call of it returns ``(status, value...)``.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from edgeserve.engines.cuda.bare_library import PlainBinding
from edgeserve.engines.cuda.status import DRIVER_MEND, NOT_READY, CudaError, error_of
from edgeserve.errors import NOT_IMPORTED, ConfigError, DeviceMissing, EngineError, nearest

LIBRARY = "cuda-bindings"
"""The name of the library in ``options.cuda``."""

BINDINGS = ("cuda.bindings.driver", "cuda.cuda")
"""Modules of the binding, in the order in which they are tried: of cuda-bindings, and of cuda-python before 12.8."""

INSTALL_MEND = "pip install 'edgeserve-runtime[gpu]' (cuda-bindings; cuda-python for Python 3.8)"

NAME_LENGTH_MAX = 256

_open: Dict[str, Any] = {}  # LIBRARY -> the driver of this process


def open_driver(choice: str = "auto") -> Driver:
    """The driver, one per process. ``choice``: ``"auto"`` or :data:`LIBRARY`.

    Raises :class:`ConfigError` for another name, :class:`DeviceMissing` when the library is not installed, or the
    driver is missing or too old.
    """
    if choice not in ("auto", LIBRARY):
        raise ConfigError(f"options.cuda = {choice!r} is no library for CUDA{nearest(choice, (LIBRARY, 'auto'))}")
    if LIBRARY not in _open:
        _open[LIBRARY] = Driver(binding())
    driver: Driver = _open[LIBRARY]
    return driver


def binding() -> Any:
    """The module of the binding, else the library itself. Raises :class:`DeviceMissing` where neither is there."""
    missing = []
    for name in BINDINGS:
        try:
            return importlib.import_module(name)
        except NOT_IMPORTED as error:
            missing.append(f"{name}: {error}")
    try:
        return PlainBinding()
    except OSError as error:
        missing.append(str(error))
        mend = DRIVER_MEND
    except AttributeError as error:  # of a driver before CUDA 11.4
        missing.append(str(error))
        mend = INSTALL_MEND
    raise DeviceMissing(f"no library for CUDA can be imported ({'; '.join(missing)}); {mend}")


def is_available() -> bool:
    """True if the library and a device are there: for tests and scripts that can do without."""
    try:
        return open_driver().device_count() > 0
    except EngineError:
        return False


GREEN_SINCE = 12, 5
"""CUDA's release whose green contexts have streams, and several groups of multiprocessors: 12.4 has contexts alone."""

GREEN_MEND = (
    "a share of the multiprocessors needs a driver of CUDA 12.5 or later and its binding (pip install "
    "'edgeserve-runtime[gpu]'), on a GPU that can be parted; leave [lane.NAME] sms out, or order lanes by priority"
)


class Group(NamedTuple):
    """Multiprocessors that CUDA parts no further: ``resource`` is the binding's, ``size`` how many."""

    resource: Any
    size: int


class Driver:
    """The calls, over the module ``binding``. Knows no tensor and no engine."""

    def __init__(self, binding: Any) -> None:
        self._cu = binding
        try:
            self._call("cuInit", 0)
        except RuntimeError as error:  # the driver's library is not there
            raise DeviceMissing(f"the CUDA driver cannot be loaded: {error}; {DRIVER_MEND}") from None
        self._thread_local = binding.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        # Bindings of CUDA 11 have both, and their cuGraphInstantiate takes other arguments.
        with_flags = hasattr(binding, "cuGraphInstantiateWithFlags")
        self._instantiate = "cuGraphInstantiateWithFlags" if with_flags else "cuGraphInstantiate"

    def version(self) -> Tuple[int, int]:
        """The CUDA version that the driver supports: ``(12, 6)``."""
        number = self._call("cuDriverGetVersion")
        return number // 1000, number % 1000 // 10

    def device_count(self) -> int:
        """The number of devices."""
        return int(self._call("cuDeviceGetCount"))

    def device_name(self, index: int) -> str:
        """The device's name: ``"Orin"``."""
        name = self._call("cuDeviceGetName", NAME_LENGTH_MAX, self._device(index))
        return bytes(name).split(b"\0")[0].decode("utf-8", "replace")

    def bus_id(self, index: int) -> str:
        """The device's id on the PCI bus: ``"0000:01:00.0"``."""
        found = self._call("cuDeviceGetPCIBusId", NAME_LENGTH_MAX, self._device(index))
        return bytes(found).split(b"\0")[0].decode("ascii", "replace")

    def attribute(self, index: int, name: str) -> int:
        """A device attribute, named as in ``CU_DEVICE_ATTRIBUTE_*`` without that prefix."""
        key = getattr(self._cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", key, self._device(index)))

    def total_bytes(self, index: int) -> int:
        """The device's memory."""
        return int(self._call("cuDeviceTotalMem", self._device(index)))

    # --- contexts ---

    def retain(self, index: int) -> int:
        """A handle of the device's primary context, kept alive until :meth:`release`."""
        return int(self._call("cuDevicePrimaryCtxRetain", self._device(index)))

    def release(self, index: int, context: int) -> None:
        """Give back one :meth:`retain`."""
        self._call("cuDevicePrimaryCtxRelease", self._device(index))

    def push(self, context: int) -> None:
        """Make the context current on the calling thread."""
        self._call("cuCtxPushCurrent", context)

    def pop(self) -> None:
        """Make the context before it current again."""
        self._call("cuCtxPopCurrent")

    # --- shares of the multiprocessors ---

    def split_multiprocessors(self, index: int) -> List[Group]:
        """The device's multiprocessors in groups of its smallest size. Raises :class:`EngineError` where there are no
        green contexts."""
        if not hasattr(self._cu, "cuGreenCtxStreamCreate"):
            raise EngineError(f"this binding of CUDA has no green contexts; {GREEN_MEND}")
        if self.version() < GREEN_SINCE:
            raise EngineError(f"this driver is of CUDA {'.'.join(map(str, self.version()))}; {GREEN_MEND}")
        kind = self._cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        try:
            whole = self._call("cuDeviceGetDevResource", self._device(index), kind)
            groups, count, _ = self._call("cuDevSmResourceSplitByCount", whole.sm.smCount, whole, 0, 1)
        except CudaError as error:
            raise EngineError(f"{error}; {GREEN_MEND}") from error
        return [Group(each, int(each.sm.smCount)) for each in groups[: int(count)]]

    def create_green(self, index: int, groups: Sequence[Group]) -> int:
        """A green context of these groups. It keeps the device's primary context, whose memory it shares."""
        described = self._call("cuDevResourceGenerateDesc", [each.resource for each in groups], len(groups))
        flag = self._cu.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        return int(self._call("cuGreenCtxCreate", described, self._device(index), flag))

    def destroy_green(self, green: int) -> None:
        """Destroy it; it has no stream any more."""
        self._call("cuGreenCtxDestroy", green)

    # --- memory ---

    def memory(self) -> Tuple[int, int]:
        """Free and total bytes of the current context's device."""
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    def alloc_device(self, size: int) -> int:
        """A device pointer, aligned to 256 bytes at least."""
        return int(self._call("cuMemAlloc", size))

    def free_device(self, pointer: int) -> None:
        """Free what :meth:`alloc_device` gave."""
        self._call("cuMemFree", pointer)

    def alloc_host(self, size: int, mapped: bool) -> int:
        """A host pointer to page-locked memory; ``mapped``: the device can use it in place."""
        flags = self._cu.CU_MEMHOSTALLOC_PORTABLE | (self._cu.CU_MEMHOSTALLOC_DEVICEMAP if mapped else 0)
        return int(self._call("cuMemHostAlloc", size, flags))

    def free_host(self, pointer: int) -> None:
        """Free what :meth:`alloc_host` gave."""
        self._call("cuMemFreeHost", pointer)

    def context_of(self, pointer: int) -> int:
        """The context that device memory belongs to; 0 where CUDA does not say, as of memory pools."""
        try:
            found = self._call(
                "cuPointerGetAttribute", self._cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT, pointer
            )
        except CudaError:
            return 0
        return int(found or 0)

    def device_pointer(self, host_pointer: int) -> int:
        """The device's pointer to mapped host memory."""
        return int(self._call("cuMemHostGetDevicePointer", host_pointer, 0))

    def copy_to_device(self, to: int, host: int, size: int, stream: int) -> None:
        """Enqueue a copy from host to device memory."""
        self._call("cuMemcpyHtoDAsync", to, host, size, stream)

    def copy_to_host(self, host: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy from device to host memory."""
        self._call("cuMemcpyDtoHAsync", host, source, size, stream)

    def copy_on_device(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy within the device."""
        self._call("cuMemcpyDtoDAsync", to, source, size, stream)

    def fill(self, pointer: int, byte: int, size: int, stream: int) -> None:
        """Enqueue setting every byte of device memory."""
        self._call("cuMemsetD8Async", pointer, byte, size, stream)

    # --- streams ---

    def stream_priorities(self) -> Tuple[int, int]:
        """Priorities of streams on the current context's device, the least and the greatest: ``(0, -5)``. Equal where
        it has none."""
        least, greatest = self._call("cuCtxGetStreamPriorityRange")
        return int(least), int(greatest)

    def create_stream(self, priority: int = 0, green: int = 0) -> int:
        """A stream that does not wait for the default stream. ``priority`` is CUDA's: a lower number goes first.
        ``green``: the green context whose multiprocessors it uses."""
        flags = int(self._cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        if green:
            return int(self._call("cuGreenCtxStreamCreate", green, flags, priority))
        return int(self._call("cuStreamCreateWithPriority", flags, priority))

    def destroy_stream(self, stream: int) -> None:
        """Destroy it; what was enqueued still runs."""
        self._call("cuStreamDestroy", stream)

    def synchronize_stream(self, stream: int) -> None:
        """Wait until everything enqueued is over."""
        self._call("cuStreamSynchronize", stream)

    def stream_done(self, stream: int) -> bool:
        """True if everything enqueued is over."""
        return self._is_ready("cuStreamQuery", stream)

    def stream_wait(self, stream: int, event: int) -> None:
        """Let later work of the stream wait for the event's last record."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    # --- events ---

    def create_event(self, timing: bool) -> int:
        """An event; ``timing``: for :meth:`elapsed_ms`."""
        flags = 0 if timing else int(self._cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        return int(self._call("cuEventCreate", flags))

    def destroy_event(self, event: int) -> None:
        """Destroy it."""
        self._call("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        """Enqueue the event: it is done when everything enqueued before it is."""
        self._call("cuEventRecord", event, stream)

    def event_done(self, event: int) -> bool:
        """True if the last record is over (also when there was none)."""
        return self._is_ready("cuEventQuery", event)

    def synchronize_event(self, event: int) -> None:
        """Wait for the last record."""
        self._call("cuEventSynchronize", event)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds between two records that are over."""
        return float(self._call("cuEventElapsedTime", start, end))

    # --- graphs ---

    def begin_capture(self, stream: int) -> None:
        """Record this thread's later work on the stream instead of running it. Other threads go on
        (the mode is thread-local)."""
        self._call("cuStreamBeginCapture", stream, self._thread_local)

    def end_capture(self, stream: int) -> int:
        """The captured graph."""
        return int(self._call("cuStreamEndCapture", stream))

    def instantiate(self, graph: int) -> int:
        """An executable graph, which does not need ``graph`` any more."""
        return int(self._call(self._instantiate, graph, 0))

    def launch(self, executable: int, stream: int) -> None:
        """Enqueue an executable graph."""
        self._call("cuGraphLaunch", executable, stream)

    def destroy_graph(self, graph: int) -> None:
        """Destroy what :meth:`end_capture` gave."""
        self._call("cuGraphDestroy", graph)

    def destroy_executable(self, executable: int) -> None:
        """Destroy what :meth:`instantiate` gave; it is not running."""
        self._call("cuGraphExecDestroy", executable)

    # --- status ---

    def _device(self, index: int) -> Any:
        return self._call("cuDeviceGet", index)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._checked(name, getattr(self._cu, name)(*arguments))

    def _checked(self, call: str, returned: Tuple[Any, ...]) -> Any:
        """The values that a call returned besides its status: nothing, one value or a tuple."""
        status = int(returned[0])
        if status:
            # The status has no name where this release of the library does not know it.
            raise error_of(call, status, str(getattr(returned[0], "name", f"status {status}")))
        values = returned[1:]
        return values[0] if len(values) == 1 else values

    def _is_ready(self, name: str, handle: int) -> bool:
        returned = getattr(self._cu, name)(handle)
        if int(returned[0]) == NOT_READY:
            return False
        self._checked(name, returned)
        return True
