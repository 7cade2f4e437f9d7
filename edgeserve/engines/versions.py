"""The libraries that run a model, with their versions: for profiles, and for people. Nothing is imported to find
out."""

from __future__ import annotations

import platform
from typing import Dict, Iterable

from edgeserve import __version__

ONNXRUNTIME_BUILDS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
"""All of them install the same module: two at once overwrite each other's files."""

TENSORRT_BUILDS = ("tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-rtx-cu13")

_BUILDS_OF = {
    "onnx": ("onnxruntime", ONNXRUNTIME_BUILDS),
    "torch": ("torch", ("torch",)),
    "tensorrt": ("tensorrt", TENSORRT_BUILDS),
}
"""Engine kind -> its library's module, and the packages that bring it."""


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


def engine_versions(engine: str) -> Dict[str, str]:
    """Library -> version, of what runs the models of an engine kind: this package, Python, numpy, and the engine's own
    library where it is installed as a package."""
    found = {"edgeserve": __version__, "python": platform.python_version(), **installed(("numpy",))}
    module, builds = _BUILDS_OF.get(engine, ("", ()))
    for version in installed(builds).values():
        found[module] = version
    return found
