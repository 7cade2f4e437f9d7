"""The libraries that run a model, with their versions: for profiles, and for people. Nothing is imported to find
out."""

from __future__ import annotations

import platform
from typing import Dict, Iterable, Mapping, Tuple

from edgeserve import __version__
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.lm import backend_of

ONNXRUNTIME_BUILDS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
"""All of them install the same module: two at once overwrite each other's files."""

TENSORRT_BUILDS = ("tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-rtx-cu13")

_BUILDS_OF: Mapping[str, Mapping[str, Tuple[str, ...]]] = {
    "onnx": {"onnxruntime": ONNXRUNTIME_BUILDS},
    "torch": {"torch": ("torch",)},
    "tensorrt": {"tensorrt": TENSORRT_BUILDS},
    "lm onnx": {"onnxruntime": ONNXRUNTIME_BUILDS},
    "lm torch": {"torch": ("torch",), "transformers": ("transformers",)},
    "lm llama.cpp": {"llama-cpp-python": ("llama-cpp-python",)},
    "sentence onnx": {"onnxruntime": ONNXRUNTIME_BUILDS},
    "sentence llama.cpp": {"llama-cpp-python": ("llama-cpp-python",)},
    "whisper": {"ctranslate2": ("ctranslate2",)},
}
"""Engine kind, with its back end where it has several -> its libraries, and the packages that bring each."""


def installed(names: Iterable[str]) -> Dict[str, str]:
    """The installed ones of the packages, with their versions."""
    from importlib import metadata  # a megabyte that a server without profiles spares

    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def engine_versions(model: ModelConfig) -> Dict[str, str]:
    """Library -> version, of what runs a model: this package, Python, numpy, and the engine's own libraries where they
    are installed as packages."""
    found = {"edgeserve": __version__, "python": platform.python_version(), **installed(("numpy",))}
    kind = f"{model.engine} {backend_of(model)}" if model.engine in ("lm", "sentence") else model.engine
    for library, builds in _BUILDS_OF.get(kind, {}).items():
        for version in installed(builds).values():
            found[library] = version
    return found
