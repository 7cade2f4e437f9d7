"""ONNX Runtime's providers: which ones a model asks for, with which settings."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import onnxruntime

from edgeserve.engines.base import LaneInfo
from edgeserve.engines.onnx_cache import tensorrt_cache
from edgeserve.engines.onnx_libraries import missing_library
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, EngineError

PROVIDER_NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}

GPU_PROVIDERS = ("CUDAExecutionProvider", "TensorrtExecutionProvider")

CUDA_DEFAULTS = {"arena_extend_strategy": "kSameAsRequested", "cudnn_conv_algo_search": "HEURISTIC"}
"""ONNX Runtime would double its memory each time it grows: on a device that several models share, what one does not
need another does. And it would time every algorithm of a convolution for each new batch size, 300 to 1,300 ms
(PaddlePaddle/PaddleX#5057); cuDNN's own choice is there at once and as fast."""


def asked_providers(options: Options, lane: LaneInfo) -> List[Tuple[str, Dict[str, Any]]]:
    """The providers that the options or the lane ask for, with their settings, in order of preference."""
    short = options.texts("providers") or (("cuda",) if lane.device_kind == "cuda" else ("cpu",))
    settings = options.table("provider_options")
    asked = []
    for name in short:
        own = dict(settings.get(name, {}))
        if name in ("cuda", "tensorrt"):
            own.setdefault("device_id", lane.device_index)
            if str(own.get("enable_cuda_graph", "0")) not in ("0", "False"):
                raise ConfigError(
                    f"{options.where('provider_options')}.{name}.enable_cuda_graph: a graph needs the "
                    "same memory in each run, and each batch has its own; leave it out, or use "
                    "engine = 'tensorrt'"
                )
        if name == "cuda":
            own = {**CUDA_DEFAULTS, **own}
        if name == "tensorrt":  # else it builds its engines anew at every start, minutes on a board
            own = {"trt_engine_cache_enable": True, "trt_engine_cache_path": tensorrt_cache(), **own}
        asked.append((PROVIDER_NAMES.get(name, name), {key: str(value) for key, value in own.items()}))
    return asked


Asked = Sequence[Tuple[str, Mapping[str, Any]]]


def check_available(name: str, asked: Asked) -> None:
    """Raise :class:`EngineError` for a provider that this build of ONNX Runtime does not have."""
    available = onnxruntime.get_available_providers()
    for provider, _ in asked:
        if provider not in available:
            raise EngineError(
                f"model {name!r}: provider {provider} is not in this build of onnxruntime "
                f"{onnxruntime.__version__} (it has {', '.join(available)}); install a build that "
                f"has it, or set [model.{name}] options.providers = ['cpu']"
            )


def check_used(name: str, session: Any, asked: Asked) -> None:
    """Raise :class:`EngineError` where a session fell back to other providers than it was asked for."""
    got = session.get_providers()
    wanted = [provider for provider, _ in asked]
    if got[: len(wanted)] != wanted:
        library = next(filter(None, map(missing_library, wanted)), "")
        what = (
            f"{library} cannot be found"
            if library
            else "its libraries (CUDA, cuDNN, TensorRT) or the device are missing"
        )
        raise EngineError(
            f"model {name!r}: asked for {', '.join(wanted)} but onnxruntime "
            f"{onnxruntime.__version__} fell back to {', '.join(got)}; {what}. Mend that (pip install "
            f"'onnxruntime-gpu[cuda,cudnn]' brings CUDA and cuDNN), or set [model.{name}] "
            "options.providers = ['cpu']"
        )
