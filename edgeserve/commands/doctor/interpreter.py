"""The interpreter and what it can import: packages, the compiled core, ONNX Runtime, and known-bad pairs."""

from __future__ import annotations

import importlib
import os
import sys
from typing import List, Mapping, Optional, Sequence, Tuple

from edgeserve import compiled
from edgeserve.commands.doctor.finding import Finding, dotted, good, note, wrong
from edgeserve.device.boards import Machine
from edgeserve.engines.versions import installed
from edgeserve.errors import NOT_IMPORTED

PYTHON_MIN, PYTHON_MAX = (3, 8), (3, 13)

PACKAGES = {"numpy": "numpy", "zmq": "pyzmq", "msgpack": "msgpack", "psutil": "psutil", "rich": "rich"}
"""Module -> package that the run time needs."""


def check_python(python: Tuple[int, int], versions: Mapping[str, Optional[str]]) -> List[Finding]:
    """The interpreter, and the packages the run time needs (module -> version, ``None`` = cannot be imported)."""
    name = f"Python {dotted(python)}"
    if python < PYTHON_MIN:
        found = wrong(
            "python",
            f"{name} is older than {dotted(PYTHON_MIN)}",
            f"use Python {dotted(PYTHON_MIN)} to {dotted(PYTHON_MAX)}",
        )
    elif python > PYTHON_MAX:
        found = note(
            "python", f"{name} is newer than what is tested", f"use Python {dotted(PYTHON_MIN)} to {dotted(PYTHON_MAX)}"
        )
    else:
        found = good("python", name)
    present = [f"{PACKAGES[module]} {version}" for module, version in versions.items() if version is not None]
    absent = [PACKAGES[module] for module, version in versions.items() if version is None]
    if absent:
        found += wrong(
            "packages",
            f"cannot be imported: {', '.join(absent)}",
            f"{sys.executable} -m pip install {' '.join(absent)}",
        )
    elif present:
        found += good("packages", ", ".join(present))
    return found


def check_core(core: compiled.Core, is_stale: bool) -> List[Finding]:
    """Find whether the scheduler runs compiled, and from these sources."""
    again = f"EDGESERVE_COMPILE=1 {sys.executable} -m pip install ., from the checkout"
    if core.kind == "interpreted":
        return good("core", "interpreted (docs/guide/compiled.md: how to compile it)")
    if is_stale:
        return wrong("core", "compiled from other sources than lie beside it", again)
    if core.kind == "mixed":
        return note("core", f"{core.compiled} of {core.of} modules compiled, the others interpreted", again)
    return good("core", f"compiled ({core.of} modules)")


def check_onnxruntime(builds: Mapping[str, str], providers: Optional[Sequence[str]], has_gpu: bool) -> List[Finding]:
    """``builds``: installed packages that bring the module; ``providers``: what it offers, ``None`` = no import."""
    if len(builds) > 1:
        return wrong(
            "onnxruntime",
            f"{' and '.join(sorted(builds))} overwrite each other's files",
            f"{sys.executable} -m pip uninstall -y {' '.join(sorted(builds))}, then install one of them",
        )
    if providers is None:
        return note(
            "onnxruntime",
            "not installed: models with engine = 'onnx' cannot be served",
            f"{sys.executable} -m pip install 'edgeserve-runtime[onnx]'",
        )
    text = (
        f"{' '.join(f'{name} {version}' for name, version in builds.items()) or 'onnxruntime'}: {', '.join(providers)}"
    )
    if has_gpu and not {"CUDAExecutionProvider", "TensorrtExecutionProvider"} & set(providers):
        return note(
            "onnxruntime",
            f"{text}; this machine has an NVIDIA GPU that this build cannot use",
            "install a build with CUDA (onnxruntime-gpu; on a Jetson, NVIDIA's own build) instead",
        )
    return good("onnxruntime", text)


def check_system_packages(
    board: Machine, python: Tuple[int, int], paths: Sequence[str], root: str = "/"
) -> List[Finding]:
    """JetPack's own packages (TensorRT) lie in the system Python's folder: a virtual environment must see that.
    ``paths`` is ``sys.path``."""
    folder = (
        "usr/lib/python3/dist-packages"
        if board.system_python is None or board.system_python >= (3, 10)
        else f"usr/lib/python{dotted(board.system_python)}/dist-packages"
    )
    folders = [folder, "usr/lib/python3/dist-packages"]
    place = next((item for item in folders if os.path.isdir(os.path.join(root, item, "tensorrt"))), "")
    if not board.is_jetson:
        return []
    if not place:
        return note(
            "tensorrt files", "JetPack's TensorRT for Python is not installed", "sudo apt install python3-libnvinfer"
        )
    if board.system_python is not None and python != board.system_python:
        return []  # check_board says so already
    if not any(os.path.normpath(path) == os.path.normpath(os.path.join(root, place)) for path in paths):
        return note(
            "tensorrt files",
            f"/{place} has TensorRT, and this Python does not look there",
            f"{sys.executable} -m venv --system-site-packages .venv, from the system's Python",
        )
    return good("tensorrt files", f"/{place}")


def check_known_bad(board: Machine, versions: Mapping[str, str]) -> List[Finding]:
    """Pairs that are known not to work together. ``versions``: of numpy, tensorrt and torch, as installed."""
    found = []
    if board.l4t == "36.4.7":
        found += note(
            "known trouble",
            "L4T 36.4.7: large allocations of GPU memory fail while much memory is free "
            "(NvMapMemAllocInternalTagged, error 12)",
            "sudo apt update && sudo apt install --only-upgrade 'nvidia-l4t-*' "
            "(36.5 or later), or echo 3 | sudo tee /proc/sys/vm/drop_caches before models are loaded",
        )
    major = board.l4t_major
    tensorrt, numpy = _major(versions.get("tensorrt", "")), _major(versions.get("numpy", ""))
    if (
        board.is_jetson
        and tensorrt is not None
        and tensorrt >= 11
        and major is not None
        and _release(board.l4t) < (39, 2)
    ):
        found += wrong(
            "known trouble",
            f"TensorRT {versions['tensorrt']} supports no JetPack before 7.2.2; this is L4T {board.l4t}",
            f"{sys.executable} -m pip uninstall tensorrt, then use JetPack's own (python3-libnvinfer)",
        )
    if major in (35, 36) and numpy is not None and numpy >= 2:
        found += note(
            "known trouble",
            f"numpy {versions['numpy']} with the packages of JetPack {board.jetpack}, which were built for numpy 1",
            f"{sys.executable} -m pip install 'numpy<2'",
        )
    torch = versions.get("torch", "")
    if board.kind.soc == "tegra234" and major in (35, 36) and torch and "nv" not in torch and "+cu" in torch:
        found += note(
            "known trouble",
            f"torch {torch} is a general build: it has no code for this GPU "
            f"(compute capability {board.kind.capability})",
            "install NVIDIA's build for this JetPack (docs/start/jetson.md)",
        )
    return found


def _major(version: str) -> Optional[int]:
    head = version.split(".")[0]
    return int(head) if head.isdecimal() else None


def _release(l4t: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in l4t.split("."))


def module_version(module: str) -> Optional[str]:
    """The version of a module that is imported for it; None where it cannot be imported."""
    try:
        return str(getattr(importlib.import_module(module), "__version__", "")) or installed([PACKAGES[module]]).get(
            PACKAGES[module], "of unknown version"
        )
    except NOT_IMPORTED:
        return None


def onnxruntime_providers() -> Optional[List[str]]:
    """The execution providers that ONNX Runtime offers; None where it is not installed."""
    try:
        return list(importlib.import_module("onnxruntime").get_available_providers())
    except ImportError:
        return None
