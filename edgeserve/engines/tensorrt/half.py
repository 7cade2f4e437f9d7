"""``precision = "fp16"`` where the builder chooses no types itself (TensorRT 11, TensorRT for RTX): casts in the graph.

Each float32 tensor that depends on an input becomes float16. Inputs and outputs keep their types. What stays float32:

* operators whose sums or powers pass float16's bounds, or that are exact only in float32 (:data:`KEPT`);
* nodes with a constant that float16 cannot hold (an epsilon of 1e-12, a mask of -3e38, divisors below 6e-5), and
  divisions by what is computed, which may be as small;
* sizes computed from shapes, control flow with the graphs inside it, and operators without a schema (plugins).

A tensor has up to two forms: ``NAME`` is float32, ``NAME/half`` float16. A node reads the form that it computes in; the
first reader of the missing form gets a cast. A cast to float16 saturates, so that a mask of -3e38 does not become an
infinity, which softmax turns into NaN.

The ``onnx`` package's own structures and schemas are enough: onnxconverter-common has lists of operators instead of
schemas, casts around each float32 node, and clips constants without a word.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgeserve.engines.tensorrt.build_errors import ParseFailed
from edgeserve.errors import EngineError

SUFFIX = "/half"
"""Ends the name of a tensor's float16 form."""

HALF_MAX = float(np.finfo(np.float16).max)

KEPT: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "Cosh",
            "CumSum",
            "Exp",
            "GlobalLpPool",
            "LpNormalization",
            "LpPool",
            "MeanVarianceNormalization",
            "Pow",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMean",
            "ReduceProd",
            "ReduceSum",
            "ReduceSumSquare",
            "Sinh",
            "Tan",
        ),
        "its result passes 65504 where its inputs do not",
    ),
    **dict.fromkeys(("Log", "Reciprocal", "Sqrt"), "its input may be smaller than float16's smallest number"),
    **dict.fromkeys(("Range", "NonMaxSuppression"), "whole numbers above 2048 are rounded in float16"),
    **dict.fromkeys(("Cast", "CastLike", "EyeLike", "Constant", "ConstantOfShape"), "an attribute says its type"),
    **dict.fromkeys(("RandomNormalLike", "RandomUniformLike", "Bernoulli"), "an attribute says its type"),
}
"""Operator -> why it stays float32."""

ONE_BY_ONE = ("BatchNormalization", "Div", "Mul")
"""Each number of a constant of these scales numbers by itself; in a sum only those near the largest count."""

ROUNDING = 2.0**-10
"""What float16 may change of a number, as a share of it: no number above 6e-5 changes by more."""

QUANTIZING = ("QuantizeLinear", "DequantizeLinear")

QUANTIZING_OPSET = 19
"""The first opset whose QuantizeLinear takes float16. Casts around older ones keep TensorRT from int8 kernels."""

ONE_FILE_BYTES = 1 << 30
"""Weights above this are written beside the graph: a protobuf message has 2 GB at most."""

SMALL = 1024
"""Elements of constants that shape inference may need."""


class Halved(NamedTuple):
    """The written file, and the nodes that stay float32: operator -> how many."""

    path: str
    kept: Dict[str, int]


def half_file(path: str, folder: str, where: str) -> Halved:
    """The network of ``path`` computing in float16, written into ``folder``. Raises :class:`ParseFailed` for a file
    that cannot be read, :class:`EngineError` for quantization that would lose its kernels."""
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf raises a type of its own, a missing weights file OSError
        raise ParseFailed(f"{where}: {path} cannot be read as an ONNX model: {error}") from error
    weights = sum(len(item.raw_data) for item in model.graph.initializer)
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 0)
    if opset < QUANTIZING_OPSET and any(node.op_type in QUANTIZING for node in model.graph.node):
        raise EngineError(
            f"{where}: options.precision = 'fp16' with quantization of opset {opset}, which takes float32 alone; "
            f"export the model with opset {QUANTIZING_OPSET} or later, or leave precision out"
        )
    try:
        made = _Pass(model, opset)
    except onnx.shape_inference.InferenceError as error:
        raise ParseFailed(f"{where}: the types of tensors in {path} cannot be told: {error}") from error
    made.run()
    written = os.path.join(folder, f"half-{os.path.basename(path)}")
    onnx.save_model(model, written, save_as_external_data=weights > ONE_FILE_BYTES)
    return Halved(written, dict(made.kept))


class _Pass:
    """One walk through a graph's nodes, in their order. Knows the top graph alone: those inside nodes stay."""

    def __init__(self, model: onnx.ModelProto, opset: int) -> None:
        self._model = model
        self._graph = model.graph
        self._opset = opset
        self._constants = _taken_constants(model.graph)
        self._types = _types(model, self._constants)
        fixed = {item.name for item in self._graph.initializer}
        self._inputs = {port.name for port in self._graph.input if port.name not in fixed}
        self._data = set(self._inputs)
        self._nodes: List[onnx.NodeProto] = []
        self._full = self._inputs | fixed  # the forms that are there
        self._half: Set[str] = set()
        self.kept: Counter[str] = Counter()

    def run(self) -> None:
        """Replace the graph's nodes and constants."""
        for node in list(self._graph.node):
            inside = [name for name in _names_inside(node) if name in self._types]
            reads = [*node.input, *inside]
            if node.op_type not in ("Shape", "Size") and self._has_data(node, reads):
                self._data.update(node.output)
            halved = self._halved(node)
            computes = any(self._is_float(name) for name in (*reads, *node.output))
            if not halved and computes and node.op_type not in ("Cast", "CastLike"):
                self.kept[node.op_type] += 1
            self._write(node, halved, inside)
        for port in self._graph.output:
            self._need_full(port.name)
        _keep(self._graph.node, self._nodes)
        del self._graph.value_info[:]  # they tell the old types
        for name, array in self._constants.items():
            if name in self._full:
                self._graph.initializer.append(numpy_helper.from_array(array, name))
            if name in self._half:
                half = array.astype(np.float16)
                self._graph.initializer.append(numpy_helper.from_array(half, name + SUFFIX))

    def _halved(self, node: onnx.NodeProto) -> Set[str]:
        """The type variables of the node's schema that become float16; none where it stays as it is."""
        names = [name for name in (*node.input, *node.output) if name]
        if (
            node.op_type in KEPT
            or (node.op_type == "Div" and node.input[1] not in self._constants)
            or node.domain not in ("", "ai.onnx")
            or any(item.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for item in node.attribute)
            or any(name not in self._types for name in names)
            or not self._has_data(node, node.input)
            or not onnx.defs.has(node.op_type)
        ):
            return set()
        schema = onnx.defs.get_schema(node.op_type, self._opset)
        allowed = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}
        found = set()
        for place, name in enumerate(node.input):
            if not name or not self._is_float(name):
                continue
            variable = schema.inputs[min(place, len(schema.inputs) - 1)].type_str
            if "tensor(float16)" not in allowed.get(variable, ()):
                continue
            array = self._constants.get(name)
            if array is not None and not _can_hold(array, node.op_type in ONE_BY_ONE):
                return set()
            found.add(variable)
        if found and node.op_type == "DequantizeLinear":  # its output follows its scale
            found.add(schema.outputs[0].type_str)
        return found

    def _has_data(self, node: onnx.NodeProto, reads: Sequence[str]) -> bool:
        """True if a node computes what the network is for; quantized weights do, though they are constant."""
        return node.op_type in QUANTIZING or any(name in self._data for name in reads)

    def _write(self, node: onnx.NodeProto, halved: Set[str], inside: Sequence[str]) -> None:
        made = onnx.NodeProto()
        made.CopyFrom(node)
        schema = onnx.defs.get_schema(node.op_type, self._opset) if halved else None
        for place, name in enumerate(node.input):
            if not name:
                continue
            formal = schema.inputs[min(place, len(schema.inputs) - 1)].type_str if schema is not None else ""
            array = self._constants.get(name)
            if formal in halved and self._is_float(name) and (array is None or array.size):
                made.input[place] = self._need_half(name)
            else:
                self._need_full(name)
        for name in inside:
            self._need_full(name)
        for place, name in enumerate(node.output):
            formal = schema.outputs[min(place, len(schema.outputs) - 1)].type_str if schema is not None else ""
            if name and formal in halved and self._is_float(name):
                made.output[place] = name + SUFFIX
                self._half.add(name)
            else:
                self._full.add(name)
        if halved:
            for item in made.attribute:
                if item.name == "output_dtype" and item.i == TensorProto.FLOAT:
                    item.i = TensorProto.FLOAT16
        self._nodes.append(made)

    def _need_half(self, name: str) -> str:
        """The float16 form of a tensor, made here where it is not there yet."""
        made = name + SUFFIX
        if name not in self._half:
            self._half.add(name)
            if name not in self._constants:
                self._need_full(name)
                source = name if name in self._inputs else self._saturated(name)
                self._nodes.append(helper.make_node("Cast", [source], [made], made, to=TensorProto.FLOAT16))
        return made

    def _need_full(self, name: str) -> None:
        """The tensor in its own form, made here where it is not there yet."""
        if name in self._full:
            return
        self._full.add(name)
        if name in self._half and name not in self._constants:
            self._nodes.append(helper.make_node("Cast", [name + SUFFIX], [name], f"{name}/float", to=TensorProto.FLOAT))

    def _saturated(self, name: str) -> str:
        made = f"{name}{SUFFIX}/bounded"
        if self._opset < 11:  # bounds are attributes
            node = helper.make_node("Clip", [name], [made], made, min=-HALF_MAX, max=HALF_MAX)
        else:
            bounds = [f"edgeserve{SUFFIX}/{side}" for side in ("least", "largest")]
            for bound, value in zip(bounds, (-HALF_MAX, HALF_MAX)):
                if bound not in self._constants:
                    self._constants[bound] = np.array(value, np.float32)
                    self._full.add(bound)
            node = helper.make_node("Clip", [name, *bounds], [made], made)
        self._nodes.append(node)
        return made

    def _is_float(self, name: str) -> bool:
        return self._types.get(name) == TensorProto.FLOAT


def _taken_constants(graph: onnx.GraphProto) -> Dict[str, NDArray[Any]]:
    """The graph's float32 constants, taken out of it: initializers, and values of Constant nodes."""
    found = {
        item.name: numpy_helper.to_array(item) for item in graph.initializer if item.data_type == TensorProto.FLOAT
    }
    nodes = []
    for node in graph.node:
        array = _constant_of(node) if node.op_type == "Constant" else None
        if array is None:
            nodes.append(node)
        else:
            found[node.output[0]] = array
    _keep(graph.initializer, [item for item in graph.initializer if item.name not in found])
    _keep(graph.input, [port for port in graph.input if port.name not in found])
    _keep(graph.node, nodes)
    return found


def _keep(field: Any, items: List[Any]) -> None:
    """A repeated field with these of its items alone."""
    del field[:]
    field.extend(items)


def _constant_of(node: onnx.NodeProto) -> Optional[NDArray[Any]]:
    """The value of a Constant node of float32; ``None`` for another."""
    value = node.attribute[0]
    if value.name == "value" and value.t.data_type == TensorProto.FLOAT:
        return numpy_helper.to_array(value.t)
    if value.name in ("value_float", "value_floats"):
        return np.array(value.f if value.name == "value_float" else list(value.floats), np.float32)
    return None


def _types(model: onnx.ModelProto, constants: Mapping[str, NDArray[Any]]) -> Dict[str, int]:
    """Tensor -> its element type, as far as ONNX's schemas tell. Large constants are shown to them without their
    values."""
    others = list(model.graph.initializer)
    for name, array in constants.items():
        if array.size <= SMALL:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            model.graph.initializer.add(
                name=name, dims=array.shape, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
            )
    told = onnx.shape_inference.infer_shapes(model).graph
    found = {item.name: int(item.data_type) for item in model.graph.initializer}
    _keep(model.graph.initializer, others)
    for port in (*told.input, *told.output, *told.value_info):
        if port.type.HasField("tensor_type") and port.type.tensor_type.elem_type:
            found[port.name] = port.type.tensor_type.elem_type
    return found


def _names_inside(node: onnx.NodeProto) -> Iterator[str]:
    """The names that the graphs inside a node read; some may be their own."""
    for item in node.attribute:
        for graph in (*([item.g] if item.type == onnx.AttributeProto.GRAPH else ()), *item.graphs):
            for port in graph.output:
                yield port.name
            for inner in graph.node:
                yield from inner.input
                yield from _names_inside(inner)


def _can_hold(array: NDArray[Any], one_by_one: bool) -> bool:
    """True if float16 has a constant: no finite number beyond its bounds, and none that it rounds by more than
    :data:`ROUNDING` of that number, or of the largest unless ``one_by_one``."""
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    finite = np.isfinite(array)
    if not np.array_equal(finite, np.isfinite(half)):
        return False
    exact, rounded = np.abs(array[finite]), np.abs(half[finite].astype(np.float32))
    allowed = exact if one_by_one else np.max(exact, initial=0.0)
    return bool(np.all(np.abs(exact - rounded) <= ROUNDING * allowed))
