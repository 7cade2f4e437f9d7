"""CUDA's status codes as EdgeServe's errors.

Codes and names are those of the driver API's ``CUresult``; the codes that the runtime API shares with it are equal.
"""

from __future__ import annotations

import re
from typing import Dict, Optional

from edgeserve.errors import DeviceLost, DeviceMissing, EngineError, OutOfMemory

NOT_READY = 600
"""A query's answer that the work is not over: no error."""

OUT_OF_MEMORY = 2

STICKY: Dict[int, str] = {
    4: "DEINITIALIZED",
    214: "ECC_UNCORRECTABLE",
    220: "NVLINK_UNCORRECTABLE",
    226: "CONTAINED",
    700: "ILLEGAL_ADDRESS",
    702: "LAUNCH_TIMEOUT",
    709: "CONTEXT_IS_DESTROYED",
    710: "ASSERT",
    714: "HARDWARE_STACK_ERROR",
    715: "ILLEGAL_INSTRUCTION",
    716: "MISALIGNED_ADDRESS",
    717: "INVALID_ADDRESS_SPACE",
    718: "INVALID_PC",
    719: "LAUNCH_FAILED",
    999: "UNKNOWN",
}
"""Codes after which every further call of the process fails: the context is lost (CUDA driver API, CUresult: "the
process must be terminated and relaunched")."""

MISSING: Dict[int, str] = {
    3: "NOT_INITIALIZED",
    34: "STUB_LIBRARY",
    35: "INSUFFICIENT_DRIVER",
    46: "DEVICE_UNAVAILABLE",
    100: "NO_DEVICE",
    101: "INVALID_DEVICE",
    803: "SYSTEM_DRIVER_MISMATCH",
    804: "COMPAT_NOT_SUPPORTED_ON_DEVICE",
}
"""Codes that say that there is no device to begin with."""

TEXTS: Dict[str, int] = {
    "out of memory": OUT_OF_MEMORY,
    "device not ready": NOT_READY,
    "driver shutting down": 4,
    "uncorrectable ECC error encountered": 214,
    "an illegal memory access was encountered": 700,
    "the launch timed out and was terminated": 702,
    "context is destroyed": 709,
    "device-side assert triggered": 710,
    "hardware stack error": 714,
    "an illegal instruction was encountered": 715,
    "misaligned address": 716,
    "operation not supported on global/shared address space": 717,
    "invalid program counter": 718,
    "unspecified launch failure": 719,
    "unknown error": 999,
    "initialization error": 3,
    "no CUDA-capable device is detected": 100,
    "invalid device ordinal": 101,
    "CUDA driver version is insufficient for CUDA runtime version": 35,
    "CUDA-capable device(s) is/are busy or unavailable": 46,
}
"""The driver's texts of its codes (``cuGetErrorString``): exceptions of libraries carry the text alone."""

BEFORE_TEXT = r"CUDA (?:driver )?error: |CUDA failed with error |Triton Error \[CUDA\]: |Cuda (?:Runtime|Driver) \("
"""The words that stand before such a text in messages of torch, CTranslate2, Triton's kernels and TensorRT."""

NO_ROOM = (
    r"out of memory|OutOfMemory|bad_alloc|CU\w+_STATUS_ALLOC_FAILED|"
    r"of GPU memory \(\d+ bytes\) could not be allocated|"  # TensorRT
    r"(?:unable|[Ff]ailed) to allocate \w+ buffer|"  # llama.cpp
    r"NVML_SUCCESS == r INTERNAL ASSERT FAILED"  # torch on a Jetson, whose NVML knows no memory
)
"""Words of libraries that found no room."""

DRIVER_MEND = (
    "check that the NVIDIA driver is installed and that this user and container may use it (edgeserve "
    "doctor; nvidia-smi on a desktop, /dev/nvhost-* on a Jetson), or use a device of kind 'cpu'"
)


class CudaError(EngineError):
    """A CUDA call failed, and the device goes on. ``code`` is stable for the bus; ``status`` is CUDA's, None where the
    library does not say."""

    code = "cuda"

    def __init__(self, message: str, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.status = status


def error_of(call: str, status: Optional[int], text: str) -> EngineError:
    """The error for a failed ``call`` (``"cuMemAlloc"``) with CUDA's ``status`` and its ``text``."""
    shown = f"{call} failed: {text}" + (f" ({status})" if status is not None else "")
    if status == OUT_OF_MEMORY:
        return OutOfMemory(shown)
    if status in STICKY:
        return DeviceLost(f"{shown}. The CUDA context of this process is lost; restart the server")
    if status in MISSING:
        return DeviceMissing(f"{shown}; {DRIVER_MEND}")
    return CudaError(shown, status)


def status_of(text: str) -> Optional[int]:
    """The code that the driver describes so."""
    return next((status for known, status in TEXTS.items() if text.startswith(known)), None)


def status_in(said: str) -> Optional[int]:
    """The code of the failure that a library's message tells; ``None`` where it tells none of CUDA."""
    number = re.search(r"CUDA (?:failure|error|initialization failure with error:) (\d+)", said)
    if number:
        return int(number.group(1))
    texts = [status_of(said[found.end() :]) for found in re.finditer(BEFORE_TEXT, said)]
    known = next((status for status in texts if status is not None), None)
    return OUT_OF_MEMORY if known is None and re.search(NO_ROOM, said) else known


def out_of_memory(what: str, asked_bytes: int, free_bytes: Optional[int], total_bytes: Optional[int]) -> OutOfMemory:
    """The error for ``what`` (``"device memory"``), with the numbers that tell what would help."""
    known = "" if free_bytes is None else f"; {free_bytes:,} of {total_bytes or 0:,} bytes are free"
    return OutOfMemory(
        f"{asked_bytes:,} bytes of {what} cannot be had{known}. Load fewer models at a time "
        "([device.NAME] memory), use smaller batch sizes, or end other programs that use the device",
        asked_bytes,
        free_bytes,
    )


def of_model(name: str, error: Exception) -> EngineError:
    """The same error, of the same kind, with the model's name in front where it has none: what a client reads. What a
    library raised becomes an :class:`EngineError`."""
    if not isinstance(error, EngineError):
        return EngineError(f"model {name!r}: {type(error).__name__}: {error}")
    if f"model {name!r}" in str(error):
        return error
    message = f"model {name!r}: {error}"
    if isinstance(error, OutOfMemory):
        return OutOfMemory(message, error.asked_bytes, error.free_bytes)
    if isinstance(error, CudaError):
        return type(error)(message, error.status)
    if isinstance(error, (DeviceLost, DeviceMissing)):
        return type(error)(message)
    return EngineError(message)
