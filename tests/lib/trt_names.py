"""Names for both halves of the TensorRT double: the names of each version, models, loggers."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, NamedTuple, Set, Tuple

import numpy as np
import onnx

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "tensorrt_api.json"), encoding="utf-8") as _file:
    API: Dict[str, Any] = json.load(_file)

VERSIONS: Tuple[str, ...] = tuple(API["versions"])
MAGIC = b"trt-double\n"
ALIGNMENT = 256
CONTEXT_BYTES = 4096  # per batch row: what a context's working memory takes here
TACTIC_BYTES = 32 << 20  # that the builder needs for the least of its kernels
AUX_STREAMS = 2  # of a plan whose builder was not told how many it may have

CONTRACTS = ("11.4", "rtx")  # say on which part of a GPU a plan may run
NO_DLA = ("10.13", "10.16", "11.0", "11.1", "rtx")


class Model(NamedTuple):
    """The facts that are read from an ONNX file."""

    data: bytes
    inputs: List[Tuple[str, str, List[int]]]  # name, TensorRT's type, dims
    outputs: List[Tuple[str, str]]
    nodes: List[Tuple[str, str, str]]  # name, operator, domain
    axes: List[List[str]]  # of each input: the names of its open axes


TYPES = {
    onnx.TensorProto.FLOAT: "FLOAT",
    onnx.TensorProto.FLOAT16: "HALF",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.UINT8: "UINT8",
    onnx.TensorProto.INT8: "INT8",
}
DTYPES = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "INT64": np.int64,
    "INT32": np.int32,
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT8": np.int8,
}


def read_model(data: bytes) -> Model:
    proto = onnx.load_model_from_string(data)
    weights = {item.name for item in proto.graph.initializer}
    inputs = [
        (
            item.name,
            TYPES[item.type.tensor_type.elem_type],
            [dim.dim_value if dim.HasField("dim_value") else -1 for dim in item.type.tensor_type.shape.dim],
        )
        for item in proto.graph.input
        if item.name not in weights
    ]
    outputs = [(item.name, TYPES[item.type.tensor_type.elem_type]) for item in proto.graph.output]
    axes = [
        [dim.dim_param for dim in item.type.tensor_type.shape.dim]
        for item in proto.graph.input
        if item.name not in weights
    ]
    return Model(data, inputs, outputs, [(node.name, node.op_type, node.domain) for node in proto.graph.node], axes)


def names_of(owner: str, version: str) -> Set[str]:
    """The public names that a class has in a version."""
    return {name for name, versions in API["classes"][owner].items() if version in versions.split()}


def _restricted(owner: str, template: type, version: str) -> type:
    """``template`` without the names that the version does not have. Nothing else can be set on its objects."""
    names = names_of(owner, version)
    kept = {name: value for name, value in vars(template).items() if name.startswith("_") or name in names}
    kept.pop("__dict__", None)
    kept.pop("__weakref__", None)
    kept["_version"] = version

    def guard(self: Any, name: str, value: Any) -> None:
        if not name.startswith("_") and not hasattr(type(self), name):
            raise AttributeError(f"{owner} of TensorRT {version} has no attribute {name!r}")
        object.__setattr__(self, name, value)

    kept["__setattr__"] = guard
    return type(owner, (), kept)


class ILogger:
    """The base of loggers; ``log`` is the user's."""

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self) -> None:
        self.initialised = True

    def log(self, severity: int, message: str) -> None:
        raise NotImplementedError


class IProgressMonitor:
    """The base of progress monitors."""

    def __init__(self) -> None:
        self.initialised = True


class IProfiler:
    """The base of profilers of layers."""

    def __init__(self) -> None:
        self.initialised = True


class IOutputAllocator:
    """The base of allocators of outputs whose shape depends on values."""

    def __init__(self) -> None:
        self.initialised = True
