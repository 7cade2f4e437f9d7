"""Inputs that lie on the GPU already: what ``__cuda_array_interface__`` and ``__dlpack__`` of another library say of
them. Reads their description; no byte of them, and no CUDA call."""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn, Optional, Tuple

import numpy as np

from edgeserve.errors import BadInput

LEGACY_STREAM = 1
"""CUDA's handle of the legacy default stream, also in both protocols (array interface, version 3; DLPack)."""

DLPACK_CUDA = 2
_KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}  # DLPack's type codes as numpy's letters


class DeviceArray:
    """An array in a GPU's memory, in C order, at ``pointer``. ``stream`` is the CUDA stream behind which its values are
    there (``None``: they are there). ``owner`` is what it came from, which keeps the memory while this lives."""

    __slots__ = ("pointer", "shape", "dtype", "stream", "owner")

    def __init__(self, pointer: int, shape: Tuple[int, ...], dtype: Any, stream: Optional[int], owner: Any) -> None:
        self.pointer = pointer
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.stream = stream
        self.owner = owner

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Its bytes on the device."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> Any:
        """The array's interface for host functions that hand it on to a library of theirs."""
        about = {"shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False), "version": 3}
        return {**about, "strides": None, "stream": self.stream}

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "it lies on the GPU, and engine = 'tensorrt' or 'torch' there alone takes such inputs; send a copy on the "
            "host"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("an array on the GPU cannot leave its process; send a copy on the host")


def on_device(value: Any) -> Optional[DeviceArray]:
    """``value`` as an array on the GPU; ``None`` where it is none. Raises :class:`BadInput` for one that is not in C
    order, or of a type that numpy does not have."""
    if isinstance(value, DeviceArray):
        return value
    place = getattr(value, "__dlpack_device__", None)
    if place is not None and place()[0] == DLPACK_CUDA:
        return _by_dlpack(value)
    about = getattr(value, "__cuda_array_interface__", None)
    if about is None:
        return None
    shape, dtype = tuple(about["shape"]), np.dtype(about["typestr"])
    _check_order(shape, about.get("strides"), dtype.itemsize)
    # Before version 3 nothing says when the values are there: behind the default stream, as such libraries work.
    stream = about.get("stream") if about.get("version", 0) >= 3 else LEGACY_STREAM
    if stream is None and type(value).__module__.startswith("pycuda."):  # says "there", and means the default stream
        stream = LEGACY_STREAM
    return DeviceArray(int(about["data"][0]), shape, dtype, stream, value)


def _by_dlpack(value: Any) -> DeviceArray:
    """By DLPack, where a library has both: torch's array interface does not say on which of its streams the values
    are made."""
    try:
        capsule = value.__dlpack__(stream=LEGACY_STREAM)  # the other library orders its work before that stream's
    except Exception as error:  # torch's for one that needs gradients, and others
        raise BadInput(f"an array on the GPU that its library does not hand over: {error}") from error
    tensor = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if tensor.code not in _KINDS or tensor.lanes != 1:
        raise BadInput(f"an array on the GPU of DLPack's type {tensor.code} with {tensor.bits} bits; numpy has no such")
    dtype = np.dtype(f"{_KINDS[tensor.code]}{tensor.bits // 8}")
    if tensor.strides:
        strides = tuple(tensor.strides[axis] * dtype.itemsize for axis in range(tensor.ndim))
        _check_order(shape, strides, dtype.itemsize)
    return DeviceArray(tensor.data + tensor.byte_offset, shape, dtype, LEGACY_STREAM, capsule)


def _check_order(shape: Tuple[int, ...], strides: Any, item_bytes: int) -> None:
    wanted = item_bytes
    for length, stride in reversed(list(zip(shape, strides or ()))):
        if length > 1 and stride != wanted:
            raise BadInput(f"an array on the GPU of shape {list(shape)} that is not in C order; send a contiguous one")
        wanted *= length


class _DLTensor(ctypes.Structure):
    """``DLTensor`` of dlpack.h, with which a ``DLManagedTensor`` begins."""

    _fields_ = [
        ("data", ctypes.c_size_t),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def _pointer_of(capsule: Any, name: bytes) -> int:
    call = ctypes.pythonapi.PyCapsule_GetPointer
    call.restype, call.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found: int = call(capsule, name)
    return found
