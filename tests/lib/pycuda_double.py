"""``pycuda.gpuarray.GPUArray`` on the CUDA double: device memory that says where it lies as pycuda's does. It names no
stream, and its values are made on the legacy default stream. Source: ``pycuda/gpuarray.py``
(``__cuda_array_interface__``, version 3 of the protocol, ``stream`` ``None``)."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np


class GPUArray:
    """An array on the device of ``cuda``, the double. ``autoinit``: of a context that ``pycuda.autoinit`` made."""

    __module__ = "pycuda.gpuarray"

    def __init__(self, cuda: Any, values: Any, autoinit: bool = False) -> None:
        array = np.ascontiguousarray(values)
        self.shape, self.dtype, self._cuda = array.shape, array.dtype, cuda
        cuda.push(cuda.retain(0))
        self.gpudata = cuda.alloc_device(array.nbytes)
        cuda.pop()
        cuda.memory_at(self.gpudata, array.nbytes)[:] = array.view(np.uint8).ravel()
        if autoinit:
            cuda.foreign.add(self.gpudata)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        data = (self.gpudata, False)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": data,
            "version": 3,
            "strides": None,
            "stream": None,
        }

    def free(self) -> None:
        self._cuda.push(0x1000)
        self._cuda.free_device(self.gpudata)
        self._cuda.pop()
        self._cuda.release(0, 0x1000)
