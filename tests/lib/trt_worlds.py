"""Parts for tests of the TensorRT engine: the double in place of the library and of CUDA, and engines on it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List

import trt_double
import trt_names
from cuda_double import CudaDouble

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Engine, LaneInfo
from edgeserve.engines.cuda import driver
from edgeserve.engines.tensorrt import build_process, plan_source

MODULE = """import os
import trt_double
globals().update(trt_double.library(os.environ["TRT_DOUBLE_VERSION"]))
"""
LANE = LaneInfo("cuda", depth=2)


class Quiet(build_process.Reporter):
    """Keeps the lines instead of writing them."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.lines: List[Dict[str, Any]] = []

    def write(self, line: Dict[str, Any]) -> None:
        self.lines.append(line)


def build_here(
    library: str, request: Any, where: str, plan: str, timing_cache: str, limits: Any, tell: Any, device_index: int = 0
) -> Dict[str, Any]:
    """``build_plan`` without a process of its own."""
    asked = {
        "library": library,
        "request": request._asdict(),
        "where": where,
        "plan": plan,
        "timing_cache": timing_cache,
    }
    answer = build_process.build(asked, Quiet())
    if "built" not in answer:
        raise engine_error(answer)
    built: Dict[str, Any] = answer["built"]
    return built


def engine_error(answer: Dict[str, Any]) -> Exception:
    from edgeserve.engines.tensorrt.build_errors import KINDS

    return KINDS[answer["error"]](answer["message"])


@contextlib.contextmanager
def world(patch: Any, version: str, in_process: bool = True, **settings: Any) -> Iterator[trt_double.RecordingCuda]:
    """The double of a TensorRT version on a new CUDA double; ``in_process``: builds do not start a process."""
    cuda = trt_double.RecordingCuda(**settings)
    patch.setattr(trt_double, "cuda", cuda)
    patch.setitem(driver._open, "cuda-bindings", cuda)
    patch.setenv("TRT_DOUBLE_VERSION", version)
    patch.delitem(sys.modules, "tensorrt", raising=False)
    if in_process:
        patch.setattr(plan_source, "build_plan", build_here)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "tensorrt.py"), "w", encoding="ascii") as file:
            file.write(MODULE)  # what `import tensorrt` finds, here and in the process that builds
        patch.syspath_prepend(folder)
        try:
            yield cuda
        finally:
            sys.modules.pop("tensorrt", None)


def new_lane(**changes: Any) -> LaneInfo:
    return LANE._replace(**{"clock_ns": time.monotonic_ns, "common": {}, **changes})


def close(lane: LaneInfo) -> None:
    for shared in (lane.common or {}).values():
        if hasattr(shared, "close"):
            shared.close()


def made(directory: str, file: str, lanes: int = 1, **settings: Any) -> Engine:
    """An engine for ``file``, which lies in ``directory``; ``options.plans`` there too unless given."""
    options = {"plans": os.path.join(directory, "plans"), **settings.pop("options", {})}
    model = ModelConfig(settings.pop("name", "m"), engine="tensorrt", file=file, options=options, **settings)
    return make_engine(model, [LANE] * lanes, directory)


@contextlib.contextmanager
def loaded(
    patch: Any, directory: str, file: str, version: str = "10.3", depth: int = 2, cuda: Any = None, **settings: Any
) -> Iterator[Any]:
    """``(cuda, lane, engine, session)`` of a model on a double of this version, unloaded and closed at the end, when
    nothing may be left. ``cuda``: settings of the CUDA double."""
    with world(patch, version, **(cuda or {})) as double:
        model, lane = made(directory, file, **settings), new_lane(depth=depth)
        model.load()
        try:
            yield double, lane, model, model.open(lane)
        finally:
            model.unload()
            close(lane)
        assert double.leaks() == []


def plan_file(
    directory: str,
    file: str,
    profiles: List[Dict[str, Any]],
    name: str = "given.engine",
    version: str = "10.3",
    before: bytes = b"",
    **about: Any,
) -> str:
    """A plan that was built elsewhere, of the ONNX file ``file``: input -> [smallest, usual, largest] per profile.
    ``before`` is what an exporter writes in front of it; ``about`` has the tensors' ``locations`` and ``formats``."""
    header = {
        "version": version,
        "profiles": profiles,
        "flags": [],
        "network_flags": 0,
        "dla_core": -1,
        "share": version not in ("8.5", "8.6"),
        **about,
    }
    with open(os.path.join(directory, file), "rb") as onnx, open(os.path.join(directory, name), "wb") as out:
        out.write(before + trt_names.MAGIC + json.dumps(header).encode() + b"\n" + onnx.read())
    return name


__all__ = ["LANE", "CudaDouble", "build_here", "close", "loaded", "made", "new_lane", "plan_file", "world"]
