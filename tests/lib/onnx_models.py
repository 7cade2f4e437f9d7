"""Small ONNX models for tests, made on the spot: opset 13 and IR version 8, which onnxruntime 1.19 (Python 3.8) loads.

Each writes one file and returns its name.
"""

from __future__ import annotations

import os
from typing import Any, Sequence

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 13
IR_VERSION = 8
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def save(
    directory: str,
    name: str,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
) -> str:
    graph = helper.make_graph(
        list(nodes),
        name,
        [_info(*item) for item in inputs],
        [_info(*item) for item in outputs],
        [numpy_helper.from_array(value, label) for label, value in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model)
    onnx.save(model, os.path.join(directory, f"{name}.onnx"))
    return f"{name}.onnx"


def _info(name: str, dtype: int, shape: Sequence[Any]) -> Any:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def linear(directory: str, batch: Any = "B", name: str = "linear") -> str:
    """``y[B,3] = x[B,4] @ w``"""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
    return save(
        directory,
        name,
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", FLOAT, [batch, 4])],
        [("y", FLOAT, [batch, 3])],
        [("w", weights)],
    )


def brightness(directory: str, dims: Sequence[Any] = (3, 24, 32)) -> str:
    """``level[B] = mean(image[B,3,24,32])``"""
    return save(
        directory,
        "brightness",
        [helper.make_node("ReduceMean", ["image"], ["level"], axes=[1, 2, 3], keepdims=0)],
        [("image", FLOAT, ["B", *dims])],
        [("level", FLOAT, ["B"])],
    )


def mixing(directory: str, name: str, given: Sequence[Any], answer: Sequence[Any], operator: str = "MatMul") -> str:
    """``y = w @ x`` of a matrix of ones, or another ``operator`` of ``x`` alone, which mixes items or does not."""
    inputs = ["w", "x"] if operator == "MatMul" else ["x"]
    weights = [("w", np.ones((answer[0], given[0]), np.float32))] if operator == "MatMul" else []
    keep = {"keepdims": 0} if operator == "ReduceSum" else {}
    nodes = [helper.make_node(operator, inputs, ["y"], **keep)]
    return save(directory, name, nodes, [("x", FLOAT, given)], [("y", FLOAT, answer)], weights)


def running_sum(directory: str, name: str, given: Sequence[Any], answer: Sequence[Any], operator: str) -> str:
    """``y[T] = x[0] + ... + x[T]``."""
    nodes = [helper.make_node(operator, ["x", "axis"], ["y"])]
    axis = [("axis", np.array(0, np.int64))]
    return save(directory, name, nodes, [("x", FLOAT, given)], [("y", FLOAT, answer)], axis)


def echo(directory: str, dtype: str, dims: Sequence[Any], name: str = "echo") -> str:
    """``y = x`` of any dtype, ``"text"`` for strings, with a batch axis in front."""
    kind = TensorProto.STRING if dtype == "text" else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return save(
        directory,
        name,
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", kind, ["B", *dims])],
        [("y", kind, ["B", *dims])],
    )


ROWS = {
    "twice": lambda rows: 2 * rows,
    "one more": lambda rows: rows + 1,
    "one less": lambda rows: rows - 1,
    "none": lambda rows: 0,
    "one": lambda rows: 1,
    "three": lambda rows: 3,
    "no axis": lambda rows: -1,
}
"""Kinds of :func:`rows` -> how many rows the output has for so many of the input."""


def rows(directory: str, kind: str) -> str:
    """``y`` has other rows than ``x[B,4]``: those of ``x`` and more, or a part of them."""
    first, last = np.array([1], np.int64), np.array([2**62], np.int64)
    zero, axes = np.array([0], np.int64), np.array([0], np.int64)
    nodes = {
        "twice": [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)],
        "one more": [
            helper.make_node("Slice", ["x", "zero", "first", "axes"], ["part"]),
            helper.make_node("Concat", ["x", "part"], ["y"], axis=0),
        ],
        "one less": [helper.make_node("Slice", ["x", "first", "last", "axes"], ["y"])],
        "none": [helper.make_node("Slice", ["x", "zero", "zero", "axes"], ["y"])],
        "one": [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0])],
        "three": [
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0]),
            helper.make_node("Add", ["mean", "table"], ["y"]),
        ],
        "no axis": [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
    }[kind]
    table = ("table", np.zeros((3, 4), np.float32))
    weights = [("first", first), ("last", last), ("zero", zero), ("axes", axes), table]
    dims = {"no axis": [], "twice": ["2 * B", 4], "one": [1, 4], "three": [3, 4]}.get(kind, ["M", 4])
    used = {name for node in nodes for name in node.input}
    return save(
        directory,
        "rows",
        nodes,
        [("x", FLOAT, ["B", 4])],
        [("y", FLOAT, dims)],
        [weight for weight in weights if weight[0] in used],
    )


def classifier(directory: str) -> str:
    """``label[B]`` of int64 and ``probability``, a sequence of maps: what scikit-learn's converter gives by default."""
    probability = helper.make_sequence_type_proto(
        helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    )
    graph = helper.make_graph(
        [
            helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
            helper.make_node("ZipMap", ["x"], ["probability"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2, 3]),
        ],
        "g",
        [_info("x", FLOAT, ["B", 4])],
        [_info("label", INT64, ["B"]), helper.make_value_info("probability", probability)],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = IR_VERSION
    onnx.save(model, os.path.join(directory, "classifier.onnx"))
    return "classifier.onnx"


def masked_mean(directory: str) -> str:
    """``y[B] = sum(x * mask) / sum(mask)``: right under padding only if the mask is."""
    axes = np.array([1], np.int64)
    return save(
        directory,
        "masked_mean",
        [
            helper.make_node("Mul", ["x", "x_mask"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "axes"], ["total"], keepdims=0),
            helper.make_node("ReduceSum", ["x_mask", "axes"], ["count"], keepdims=0),
            helper.make_node("Div", ["total", "count"], ["y"]),
        ],
        [("x", FLOAT, ["B", "L"]), ("x_mask", FLOAT, ["B", "L"])],
        [("y", FLOAT, ["B"])],
        [("axes", axes)],
    )


def pooled(directory: str) -> str:
    """``y[B,W/2] = the mean of pairs of x[B,1,W]``: a sequence output half as long as its input."""
    return save(
        directory,
        "pooled",
        [
            helper.make_node("AveragePool", ["x"], ["pairs"], kernel_shape=[2], strides=[2]),
            helper.make_node("Squeeze", ["pairs", "axes"], ["y"]),
        ],
        [("x", FLOAT, ["B", 1, "W"])],
        [("y", FLOAT, ["B", "T"])],
        [("axes", np.array([1], np.int64))],
    )


def recurrent(directory: str) -> str:
    """``out[B,4] = x + state[0] * rate`` and ``stateN[2,B,4] = state + x``: a state whose batch axis is 1, and a
    constant ``rate`` (an int64 number) as silero-vad has."""
    return save(
        directory,
        "recurrent",
        [
            helper.make_node("Add", ["state", "x"], ["stateN"]),
            helper.make_node("Gather", ["state", "first"], ["layer"], axis=0),
            helper.make_node("Cast", ["rate"], ["rate_float"], to=FLOAT),
            helper.make_node("Mul", ["layer", "rate_float"], ["scaled"]),
            helper.make_node("Add", ["x", "scaled"], ["out"]),
        ],
        [("x", FLOAT, ["B", 4]), ("state", FLOAT, [2, "B", 4]), ("rate", INT64, [])],
        [("out", FLOAT, ["B", 4]), ("stateN", FLOAT, [2, "B", 4])],
        [("first", np.array(0, np.int64))],
    )


def lookup(directory: str) -> str:
    """``y[B,L] = table[ids[B,L]]`` with int64 ids."""
    table = np.linspace(0, 1, 16, dtype=np.float32)
    return save(
        directory,
        "lookup",
        [helper.make_node("Gather", ["table", "ids"], ["y"], axis=0)],
        [("ids", INT64, ["B", "L"])],
        [("y", FLOAT, ["B", "L"])],
        [("table", table)],
    )


def total(directory: str) -> str:
    """``y[] = sum(x[B,4])``: an output without a batch axis."""
    return save(
        directory,
        "total",
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        [("x", FLOAT, ["B", 4])],
        [("y", FLOAT, [])],
    )


def one_node(directory: str, operator: str, name: str, domain: str = "") -> str:
    """A model of one node of any operator, also of one that ONNX does not know: it is not checked."""
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], name=name, domain=domain)],
        "g",
        [helper.make_tensor_value_info(port, FLOAT, ["B", 4]) for port in "x"],
        [helper.make_tensor_value_info(port, FLOAT, ["B", 4]) for port in "y"],
    )
    versions = {"": OPSET, domain: OPSET if not domain else 1}
    opsets = [helper.make_opsetid(each, version) for each, version in versions.items()]
    path = os.path.join(directory, "one_node.onnx")
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    return path


def two_states(directory: str) -> str:
    """``y[B,4] = x + h[0] + c``, ``hN[1,B,4] = h + x`` and ``cN[B,4] = c + 10 * x``: states with batch axes of their
    own."""
    return save(
        directory,
        "two_states",
        [
            helper.make_node("Add", ["h", "x"], ["hN"]),
            helper.make_node("Mul", ["x", "ten"], ["tens"]),
            helper.make_node("Add", ["c", "tens"], ["cN"]),
            helper.make_node("Gather", ["h", "first"], ["layer"], axis=0),
            helper.make_node("Add", ["x", "layer"], ["half"]),
            helper.make_node("Add", ["half", "c"], ["y"]),
        ],
        [("x", FLOAT, ["B", 4]), ("h", FLOAT, [1, "B", 4]), ("c", FLOAT, ["B", 4])],
        [("y", FLOAT, ["B", 4]), ("hN", FLOAT, [1, "B", 4]), ("cN", FLOAT, ["B", 4])],
        [("first", np.array(0, np.int64)), ("ten", np.array(10, np.float32))],
    )


def logarithms(directory: str) -> str:
    """``y[B,4] = state + x`` and ``stateN[B,4] = state + log(x)``: NaN below zero, infinite at zero."""
    return save(
        directory,
        "logarithms",
        [
            helper.make_node("Add", ["state", "x"], ["y"]),
            helper.make_node("Log", ["x"], ["logs"]),
            helper.make_node("Add", ["state", "logs"], ["stateN"]),
        ],
        [("x", FLOAT, ["B", 4]), ("state", FLOAT, ["B", 4])],
        [("y", FLOAT, ["B", 4]), ("stateN", FLOAT, ["B", 4])],
    )


def growing(directory: str) -> str:
    """``memoryN[B,T+1,4]`` is ``memory[B,T,4]`` and behind it ``x[B,1,4]``, ``y[B,4]`` their sum: a growing state."""
    return save(
        directory,
        "growing",
        [
            helper.make_node("Concat", ["memory", "x"], ["memoryN"], axis=1),
            helper.make_node("ReduceSum", ["memoryN", "axes"], ["y"], keepdims=0),
        ],
        [("x", FLOAT, ["B", 1, 4]), ("memory", FLOAT, ["B", "T", 4])],
        [("y", FLOAT, ["B", 4]), ("memoryN", FLOAT, ["B", "U", 4])],
        [("axes", np.array([1], np.int64))],
    )


def scaled(
    directory: str, factors: Sequence[float], weights: str = "", name: str = "m", at: int = 0, inner: str = ""
) -> str:
    """``y[B,N] = x[B,N] * w``. ``weights``: the file that the graph names for them, written below ``directory`` with
    ``at`` bytes before them; ``inner`` is the name in the graph, where that is another."""
    values = np.asarray(factors, np.float32)
    length = len(values)
    file = save(
        directory,
        name,
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [("x", FLOAT, ["B", length])],
        [("y", FLOAT, ["B", length])],
        [("w", values)],
    )
    if weights or inner:
        path = os.path.join(directory, file)
        model = onnx.load(path)
        (tensor,) = model.graph.initializer
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", inner or weights), ("offset", at), ("length", 4 * length)):
            tensor.external_data.add(key=key, value=str(value))
        with open(path, "wb") as opened:
            opened.write(model.SerializeToString())
    if weights:
        place = os.path.join(directory, weights)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as opened:
            opened.write(b"\0" * at + values.tobytes())
    return file


def words(directory: str, dims: Sequence[Any] = (), name: str = "words") -> str:
    """``y[B,...] = x[B,...]`` of texts."""
    return save(
        directory,
        name,
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", TensorProto.STRING, ["B", *dims])],
        [("y", TensorProto.STRING, ["B", *dims])],
    )


def named_classes(directory: str) -> str:
    """``label[B]``, a text, of ``x[B,3]``: the name of its largest value, as classifiers of scikit-learn have it."""
    graph = helper.make_graph(
        [
            helper.make_node("ArgMax", ["x"], ["place"], axis=1, keepdims=0),
            helper.make_node(
                "LabelEncoder",
                ["place"],
                ["label"],
                domain="ai.onnx.ml",
                keys_int64s=[0, 1, 2],
                values_strings=["cat", "", "grüß"],
            ),
        ],
        "g",
        [_info("x", FLOAT, ["B", 3])],
        [_info("label", TensorProto.STRING, ["B"])],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = IR_VERSION
    onnx.save(model, os.path.join(directory, "named_classes.onnx"))
    return "named_classes.onnx"


def fading(directory: str, size: int) -> str:
    """A recurrent network whose state fades where its input is 0: ``stateN[B,S] = state * 0.99 + x[B,S]``, and
    ``y[B,S] = stateN ** 0.9``, which takes several times as long of denormal numbers on processors of all makers."""
    nodes = [
        helper.make_node("Mul", ["state", "rest"], ["faded"]),
        helper.make_node("Add", ["faded", "x"], ["stateN"]),
        helper.make_node("Pow", ["stateN", "exponent"], ["y"]),
    ]
    return save(
        directory,
        "fading",
        nodes,
        [("x", FLOAT, ["B", size]), ("state", FLOAT, ["B", size])],
        [("y", FLOAT, ["B", size]), ("stateN", FLOAT, ["B", size])],
        [("rest", np.float32(0.99)), ("exponent", np.float32(0.9))],
    )
