"""The GPU of this machine as a library can use it, or the reason why the tests of ``tests/gpu`` are skipped."""

from __future__ import annotations

import ctypes
import importlib

from edgeserve.engines.cuda.driver import open_driver
from edgeserve.errors import NOT_IMPORTED, EngineError


def why_no_torch() -> str:
    """``""`` where torch has a CUDA device."""
    try:
        import torch
    except ImportError as error:
        return f"torch is not installed ({error}); make test-torch"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} has no CUDA device here"
    return ""


def why_no_driver() -> str:
    """``""`` where cuda-bindings reaches a device."""
    try:
        return "" if open_driver().device_count() else "CUDA shows no device"
    except EngineError as error:
        return str(error)


def why_no_kernels() -> str:
    """``""`` where a device is there, and NVIDIA's binding, which compiles kernels: the driver alone does not."""
    try:
        importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        return why_no_driver() or f"kernels are compiled by cuda-bindings, which is not installed ({error})"
    return why_no_driver()


def why_no_llama() -> str:
    """``""`` where llama.cpp was built for a GPU, and one is there."""
    try:
        llama_cpp = importlib.import_module("llama_cpp")
        importlib.import_module("gguf")
    except NOT_IMPORTED as error:
        return f"llama.cpp, or the package gguf that makes the test's model, cannot be imported ({error})"
    if not llama_cpp.llama_supports_gpu_offload():
        return "this build of llama-cpp-python uses no GPU; CMAKE_ARGS=-DGGML_CUDA=on builds one"
    return why_no_driver()


def why_no_transformers() -> str:
    """``""`` where transformers is installed, and torch has a CUDA device."""
    try:
        importlib.import_module("transformers")
    except NOT_IMPORTED as error:
        return f"transformers is not installed ({error}); pip install -e '.[lm-torch]'"
    return why_no_torch()


def why_no_onnxruntime(provider: str = "CUDAExecutionProvider") -> str:
    """``""`` where ONNX Runtime has the provider and a device is there."""
    try:
        import onnxruntime
    except ImportError as error:
        return f"onnxruntime is not installed ({error})"
    if provider not in onnxruntime.get_available_providers():
        return f"this build of onnxruntime {onnxruntime.__version__} has no {provider}; install onnxruntime-gpu"
    try:
        if provider == "TensorrtExecutionProvider":  # of the wheel; the library comes from elsewhere
            ctypes.CDLL("libnvinfer.so.10")
    except OSError as error:
        return f"ONNX Runtime's provider for TensorRT needs its library ({error})"
    return why_no_torch() and why_no_driver()


def why_no_tensorrt() -> str:
    """``""`` where TensorRT, its engine here and a device are there."""
    from edgeserve.engines import ENGINES

    if "tensorrt" not in ENGINES:
        return "this EdgeServe has no engine 'tensorrt'"
    missing = []
    for name in ("tensorrt", "tensorrt_rtx"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
        else:
            return why_no_driver()
    return f"TensorRT is not installed ({'; '.join(missing)}); on a Jetson: apt install python3-libnvinfer"
