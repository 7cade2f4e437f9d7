"""The shared libraries of ONNX Runtime's GPU providers: CUDA, cuDNN and TensorRT, loaded where packages have them, and
named where they are missing.

A provider's library is loaded when a session is made. ONNX Runtime then looks on the system's paths alone, and tells
its log, not its caller, which library it did not find.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re

import onnxruntime

LIBRARY_OF = {
    "CUDAExecutionProvider": "libonnxruntime_providers_cuda.so",
    "TensorrtExecutionProvider": "libonnxruntime_providers_tensorrt.so",
}


def preload() -> None:
    """Load CUDA and cuDNN from the packages of NVIDIA that are installed beside ONNX Runtime; nothing before 1.21. What
    it prints of libraries that are missing :func:`missing_library` says where it matters."""
    load = getattr(onnxruntime, "preload_dlls", None)
    if load is not None:
        with contextlib.redirect_stdout(io.StringIO()):
            load()


def missing_library(provider: str) -> str:
    """The first shared library that ``provider`` needs and this process cannot load; empty where none is known."""
    path = os.path.join(os.path.dirname(onnxruntime.__file__), "capi", LIBRARY_OF.get(provider, ""))
    if not os.path.isfile(path):
        return ""
    try:
        ctypes.CDLL(path)
    except OSError as error:  # another reason than a missing library is the provider's own
        found = re.match(r"(\S+): cannot open shared object file", str(error))
        return found.group(1) if found else ""
    return ""
