"""The driver's library called as it is, where no binding of NVIDIA's is installed, as beside pycuda: a stand-in for the
module ``cuda.bindings.driver``, with the calls that :class:`~edgeserve.engines.cuda.driver.Driver` makes of it.

pycuda itself has neither priorities of streams nor graphs. An application of its own shares the primary context with
this package where it imports ``pycuda.autoprimaryctx``, not ``pycuda.autoinit``.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_void_p
from typing import Any, Callable, Dict, Sequence, Tuple

LIBRARY = "libcuda.so.1"

POINTER_OF_DEVICE = c_ulonglong
"""``CUdeviceptr`` (``cuda.h``); contexts, streams, events and graphs are pointers."""

CALLS: Dict[str, Tuple[str, Sequence[Any], Sequence[Any]]] = {
    "cuInit": ("cuInit", [], [c_uint]),
    "cuDriverGetVersion": ("cuDriverGetVersion", [c_int], []),
    "cuDeviceGetCount": ("cuDeviceGetCount", [c_int], []),
    "cuDeviceGet": ("cuDeviceGet", [c_int], [c_int]),
    "cuDeviceGetAttribute": ("cuDeviceGetAttribute", [c_int], [c_int, c_int]),
    "cuDeviceTotalMem": ("cuDeviceTotalMem_v2", [c_size_t], [c_int]),
    "cuDevicePrimaryCtxRetain": ("cuDevicePrimaryCtxRetain", [c_void_p], [c_int]),
    "cuDevicePrimaryCtxRelease": ("cuDevicePrimaryCtxRelease_v2", [], [c_int]),
    "cuCtxPushCurrent": ("cuCtxPushCurrent_v2", [], [c_void_p]),
    "cuCtxPopCurrent": ("cuCtxPopCurrent_v2", [c_void_p], []),
    "cuCtxGetStreamPriorityRange": ("cuCtxGetStreamPriorityRange", [c_int, c_int], []),
    "cuMemGetInfo": ("cuMemGetInfo_v2", [c_size_t, c_size_t], []),
    "cuMemAlloc": ("cuMemAlloc_v2", [POINTER_OF_DEVICE], [c_size_t]),
    "cuMemFree": ("cuMemFree_v2", [], [POINTER_OF_DEVICE]),
    "cuMemHostAlloc": ("cuMemHostAlloc", [c_void_p], [c_size_t, c_uint]),
    "cuMemFreeHost": ("cuMemFreeHost", [], [c_void_p]),
    "cuMemHostGetDevicePointer": ("cuMemHostGetDevicePointer_v2", [POINTER_OF_DEVICE], [c_void_p, c_uint]),
    "cuPointerGetAttribute": ("cuPointerGetAttribute", [c_void_p], [c_int, POINTER_OF_DEVICE]),
    "cuMemcpyHtoDAsync": ("cuMemcpyHtoDAsync_v2", [], [POINTER_OF_DEVICE, c_void_p, c_size_t, c_void_p]),
    "cuMemcpyDtoHAsync": ("cuMemcpyDtoHAsync_v2", [], [c_void_p, POINTER_OF_DEVICE, c_size_t, c_void_p]),
    "cuMemcpyDtoDAsync": ("cuMemcpyDtoDAsync_v2", [], [POINTER_OF_DEVICE, POINTER_OF_DEVICE, c_size_t, c_void_p]),
    "cuMemsetD8Async": ("cuMemsetD8Async", [], [POINTER_OF_DEVICE, c_ubyte, c_size_t, c_void_p]),
    "cuStreamCreateWithPriority": ("cuStreamCreateWithPriority", [c_void_p], [c_uint, c_int]),
    "cuStreamDestroy": ("cuStreamDestroy_v2", [], [c_void_p]),
    "cuStreamSynchronize": ("cuStreamSynchronize", [], [c_void_p]),
    "cuStreamQuery": ("cuStreamQuery", [], [c_void_p]),
    "cuStreamWaitEvent": ("cuStreamWaitEvent", [], [c_void_p, c_void_p, c_uint]),
    "cuStreamBeginCapture": ("cuStreamBeginCapture_v2", [], [c_void_p, c_int]),
    "cuStreamEndCapture": ("cuStreamEndCapture", [c_void_p], [c_void_p]),
    "cuEventCreate": ("cuEventCreate", [c_void_p], [c_uint]),
    "cuEventDestroy": ("cuEventDestroy_v2", [], [c_void_p]),
    "cuEventRecord": ("cuEventRecord", [], [c_void_p, c_void_p]),
    "cuEventQuery": ("cuEventQuery", [], [c_void_p]),
    "cuEventSynchronize": ("cuEventSynchronize", [], [c_void_p]),
    "cuEventElapsedTime": ("cuEventElapsedTime", [c_float], [c_void_p, c_void_p]),
    "cuGraphInstantiateWithFlags": ("cuGraphInstantiateWithFlags", [c_void_p], [c_void_p, c_ulonglong]),
    "cuGraphLaunch": ("cuGraphLaunch", [], [c_void_p, c_void_p]),
    "cuGraphDestroy": ("cuGraphDestroy", [], [c_void_p]),
    "cuGraphExecDestroy": ("cuGraphExecDestroy", [], [c_void_p]),
}
"""The binding's name -> the library's symbol, the types of what it returns through its first arguments, and those of
the arguments behind them (``cuda.h``). Symbols with a version are those of CUDA 11.4 and later."""

RETURNS_BEHIND = ("cuStreamEndCapture",)
"""Symbols whose returned values are the last arguments."""

TEXTS = {"cuDeviceGetName": "cuDeviceGetName", "cuDeviceGetPCIBusId": "cuDeviceGetPCIBusId"}
"""Calls that fill a text of a given length."""


class _Status(int):
    """A ``CUresult`` with its name."""

    name = ""


class CUdevice_attribute:  # noqa: N801 the binding's name
    """Numbers of attributes."""

    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18
    CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class CUpointer_attribute:  # noqa: N801 the binding's name
    """Numbers of attributes."""

    CU_POINTER_ATTRIBUTE_CONTEXT = 1


class CUstreamCaptureMode:
    """Numbers of modes."""

    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1


class CUstream_flags:  # noqa: N801 the binding's name
    """Numbers of flags."""

    CU_STREAM_NON_BLOCKING = 1


class CUevent_flags:  # noqa: N801 the binding's name
    """Numbers of flags."""

    CU_EVENT_DISABLE_TIMING = 2


class PlainBinding:
    """The calls, as attributes. Raises :class:`OSError` where the driver's library is not there."""

    CUdevice_attribute = CUdevice_attribute
    CUpointer_attribute = CUpointer_attribute
    CUstreamCaptureMode = CUstreamCaptureMode
    CUstream_flags = CUstream_flags
    CUevent_flags = CUevent_flags
    CU_MEMHOSTALLOC_PORTABLE = 1
    CU_MEMHOSTALLOC_DEVICEMAP = 2

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        for name, (symbol, returned, given) in CALLS.items():
            setattr(self, name, self._call(symbol, returned, given))
        for name, symbol in TEXTS.items():
            setattr(self, name, self._text(symbol))

    def _call(self, symbol: str, returned: Sequence[Any], given: Sequence[Any]) -> Callable[..., Tuple[Any, ...]]:
        function = getattr(self._library, symbol)
        function.restype = c_int
        behind, pointers = symbol in RETURNS_BEHIND, [POINTER(kind) for kind in returned]
        function.argtypes = [*given, *pointers] if behind else [*pointers, *given]

        def call(*arguments: Any) -> Tuple[Any, ...]:
            places = [kind() for kind in returned]
            back = [byref(place) for place in places]
            status = function(*arguments, *back) if behind else function(*back, *arguments)
            return (self._status(status), *[place.value or 0 for place in places])

        return call

    def _text(self, symbol: str) -> Callable[..., Tuple[Any, ...]]:
        function = getattr(self._library, symbol)
        function.restype, function.argtypes = c_int, [c_char_p, c_int, c_int]

        def call(length: int, device: int) -> Tuple[Any, ...]:
            text = ctypes.create_string_buffer(length)
            return self._status(function(text, length, device)), text.raw

        return call

    def _status(self, number: int) -> _Status:
        status = _Status(number)
        if number:
            name = c_char_p()
            self._library.cuGetErrorName(number, byref(name))
            status.name = (name.value or b"").decode() or f"status {number}"
        return status
