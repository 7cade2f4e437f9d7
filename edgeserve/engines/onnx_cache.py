"""The folders where ONNX Runtime's providers keep built engines: one for each content.

TensorRT's provider names an engine by the model's file name, by names within the graph, by versions, precision and
compute capability. Weights, constants, shapes, the builder's other settings and the rest of the GPU are not in that
name: a model trained again would run the old engine. So the folder stands for all that an engine depends on. The
kernels that CUDA's driver keeps compiled are named by their content already.
"""

from __future__ import annotations

import glob
import json
import os
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from edgeserve.config.files import cache_directory, file_sha256, resolve_path, sha256_of
from edgeserve.config.machine import slug
from edgeserve.engines.cuda.device_info import device_info
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.tensorrt.plans import device_facts, l4t_release, power_mode
from edgeserve.engines.versions import ONNXRUNTIME_BUILDS, TENSORRT_BUILDS, installed
from edgeserve.errors import EngineError

Asked = Sequence[Tuple[str, Mapping[str, str]]]
"""Providers with their settings, as ONNX Runtime takes them."""

FORMAT = 1
"""Raised when engines that were kept must not be used any more."""

HASH_CHARACTERS = 16

TENSORRT = "TensorrtExecutionProvider"
ENGINES, TIMINGS, CALIBRATION = "trt_engine_cache_path", "trt_timing_cache_path", "trt_int8_calibration_table_name"
EXPORTS, EXPORT_PATH = "trt_dump_ep_context_model", "trt_ep_context_file_path"

PLACE_ENDINGS = ("cachepath", "cachedir", "cachedirectory")
"""The providers' names of a setting that names a folder for built engines (``nv_runtime_cache_path``, OpenVINO's
``cache_dir``), without ``_``."""

OF_ONE_RUN = ("device_id", "user_compute_stream")
"""Settings that change no engine. Which GPU it is says its description."""


def tensorrt_cache(root: str = "/") -> str:
    """The place of the TensorRT provider's folders: apart for each system release and power mode, for people to see."""
    about = f"{l4t_release(root)} {power_mode(root)}".strip()
    return os.path.join(cache_directory(), "onnxruntime-tensorrt", slug(about) if about else "")


def machine(index: int, cuda: str, version: str, root: str = "/") -> Dict[str, Any]:
    """The facts that a built engine depends on beside the model: libraries, GPU, system release, power mode. ``index``
    is CUDA's number of the device, ``cuda`` the library that is asked, ``version`` ONNX Runtime's."""
    try:
        device = device_facts(device_info(open_driver("auto" if cuda == "none" else cuda), index))
    except EngineError:
        device = {"index": index}  # no library to ask: devices are told apart by number
    folders = [os.path.join(root, "usr", "lib", "*"), *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    found = [glob.glob(os.path.join(folder, "libnvinfer.so.*")) for folder in folders if folder]
    return {
        "onnxruntime": version,
        "packages": installed((*ONNXRUNTIME_BUILDS, *TENSORRT_BUILDS)),
        "tensorrt": sorted({os.path.basename(path) for paths in found for path in paths}),
        "device": device,
        "release": l4t_release(root),
        "power_mode": power_mode(root),
    }


def placed(
    asked: Asked, name: str, content: Mapping[str, Any], here: Mapping[str, Any], directory: str
) -> List[Tuple[str, Dict[str, str]]]:
    """The providers with folders of their own for what they build. ``name`` begins a folder's name, for people;
    ``content`` is what the engine is built from (the model's files as they are given, the session's settings), ``here``
    is :func:`machine`. Relative paths are looked for in ``directory``. The folders are made."""
    placed_all = []
    for provider, given in asked:
        settings = _for_tensorrt(dict(given), directory) if provider == TENSORRT else dict(given)
        places = [key for key in settings if is_place(key)]
        told = {key: value for key, value in settings.items() if key not in places and key not in OF_ONE_RUN}
        files = {path: file_sha256(path) for value in told.values() for path in _files_in(value)}
        whole = _digest([FORMAT, provider, told, files, content, here])
        for key in places:
            own = _digest([FORMAT, provider, here]) if key == TIMINGS else whole  # of kernels, which models share
            folder = f"{slug(name)}-{own}" if own == whole else f"timings-{own}"
            settings[key] = _made(settings, key, folder, directory)
        placed_all.append((provider, settings))
    return placed_all


def _made(settings: Mapping[str, str], key: str, folder: str, directory: str) -> str:
    """The path of a folder, which is made. Where the provider exports the graph with its engine, engines lie below the
    folder of that export, and the path is relative to it."""
    if key == ENGINES and EXPORT_PATH in settings:
        export = settings[EXPORT_PATH]
        base = os.path.dirname(export) if export.endswith(".onnx") else export
        os.makedirs(os.path.join(base, folder), exist_ok=True)
        return folder
    path = os.path.join(resolve_path(settings[key], directory), folder)
    os.makedirs(path, exist_ok=True)
    return path


def _for_tensorrt(settings: Dict[str, str], directory: str) -> Dict[str, str]:
    """The settings of TensorRT's provider with whole paths of what it would look for where engines lie, or in the
    process's directory: the table of an int8 calibration, and the graph that it exports."""
    if settings.get(EXPORTS, "").lower() in ("1", "true"):
        settings[EXPORT_PATH] = resolve_path(settings.get(EXPORT_PATH) or settings.get(ENGINES, ""), directory)
    table = settings.get(CALIBRATION)
    if table:
        beside = os.path.join(resolve_path(settings.get(ENGINES, ""), directory), table)
        settings[CALIBRATION] = beside if os.path.isfile(beside) else resolve_path(table, directory)
    return settings


def is_place(key: str) -> bool:
    """True if a provider's setting names a folder for what it builds."""
    return key.lower().replace("_", "").endswith(PLACE_ENDINGS)


def _files_in(value: str) -> List[str]:
    """The files that a setting names: a table, plug-ins."""
    return [path for path in str(value).split(";") if os.path.isfile(path)]


def _digest(parts: Sequence[Any]) -> str:
    return sha256_of([json.dumps(parts, sort_keys=True, default=str).encode()])[:HASH_CHARACTERS]
