"""Small networks, each with something that float16 computes wrongly unless it stays float32."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
draw = np.random.RandomState(5)

Info = Tuple[str, int, Sequence[Any]]


class Case(NamedTuple):
    """A network: what makes it, an input, operators that must stay float32, and operators that must not."""

    make: Callable[[], Any]
    feeds: Callable[[], Dict[str, Any]]
    kept: Sequence[str]
    halved: Sequence[str]


def _model(
    nodes: Sequence[Any], inputs: Sequence[Info], outputs: Sequence[Info], opset: int = 17, **weights: Any
) -> Any:
    graph = helper.make_graph(
        list(nodes),
        "m",
        [helper.make_tensor_value_info(*info) for info in inputs],
        [helper.make_tensor_value_info(*info) for info in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model


def _drawn(*shape: int) -> Any:
    return draw.uniform(-0.5, 0.5, shape).astype(np.float32)


def _normalisation() -> Any:
    """A layer norm in parts, as exporters before opset 17 write it; in half squares overflow, and epsilon is 0."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        helper.make_node("Sub", ["x", "mean"], ["off"]),
        helper.make_node("Pow", ["off", "two"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["variance"], axes=[-1]),
        helper.make_node("Add", ["variance", "epsilon"], ["safe"]),
        helper.make_node("Sqrt", ["safe"], ["deviation"]),
        helper.make_node("Div", ["off", "deviation"], ["normal"]),
        helper.make_node("MatMul", ["normal", "w"], ["y"]),
    ]
    weights = {"two": np.float32(2), "epsilon": np.float32(1e-12), "w": _drawn(8, 4)}
    return _model(nodes, [("x", FLOAT, ["B", 8])], [("y", FLOAT, ["B", 4])], **weights)


def _convolutions() -> Any:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "bias", "mean", "var"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Resize", ["c", "", "scales"], ["d"], mode="nearest"),
        helper.make_node("GlobalAveragePool", ["d"], ["y"]),
    ]
    weights = {
        "w": _drawn(4, 3, 3, 3),
        "scale": np.ones(4, np.float32),
        "bias": _drawn(4),
        "mean": _drawn(4),
        "var": np.ones(4, np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    return _model(nodes, [("x", FLOAT, ["B", 3, 8, 8])], [("y", FLOAT, ["B", 4, 1, 1])], **weights)


def _sizes() -> Any:
    """A size that is computed in floats from a shape: 4098 columns, which float16 has no number for (it has 4096)."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["lengths"], to=FLOAT),
        helper.make_node("Mul", ["lengths", "one"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["wanted"], to=INT64),
        helper.make_node("Relu", ["x"], ["seen"]),
        helper.make_node("Expand", ["seen", "wanted"], ["y"]),
    ]
    return _model(nodes, [("x", FLOAT, ["B", 4098])], [("y", FLOAT, ["B", 4098])], one=np.float32(1))


def _branches() -> Any:
    """Control flow whose graphs read a tensor from outside."""

    def branch(name: str, operator: str) -> Any:
        node = helper.make_node(operator, ["seen"], [name])
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, FLOAT, ["B", 4])])

    nodes = [
        helper.make_node("Tanh", ["x"], ["seen"]),
        helper.make_node("If", ["flag"], ["chosen"], then_branch=branch("a", "Abs"), else_branch=branch("b", "Neg")),
        helper.make_node("MatMul", ["chosen", "w"], ["y"]),
    ]
    return _model(nodes, [("x", FLOAT, ["B", 4]), ("flag", BOOL, [])], [("y", FLOAT, ["B", 2])], w=_drawn(4, 2))


def _words() -> Any:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Constant", [], ["half"], value_float=0.5),
        helper.make_node("Mul", ["rows", "half"], ["less"]),
        helper.make_node("ReduceSum", ["less", "axes"], ["y"], keepdims=0),
    ]
    weights = {"table": _drawn(16, 8), "axes": np.array([1], np.int64)}
    return _model(nodes, [("ids", INT64, ["B", 5])], [("y", FLOAT, ["B", 8])], **weights)


def _quantised() -> Any:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "zero"], ["seen"]),
        helper.make_node("DequantizeLinear", ["w", "s", "zero"], ["weights"]),
        helper.make_node("MatMul", ["seen", "weights"], ["y"]),
    ]
    weights = {"s": np.float32(0.125), "zero": np.int8(0), "w": draw.randint(-8, 9, (4, 4)).astype(np.int8)}
    return _model(nodes, [("x", FLOAT, ["B", 4])], [("y", FLOAT, ["B", 4])], 19, **weights)


def _recurrent() -> Any:
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "b"], ["", "y"], hidden_size=4)]
    weights = {"w": _drawn(1, 16, 3), "r": _drawn(1, 16, 4), "b": _drawn(1, 32)}
    return _model(nodes, [("x", FLOAT, [5, "B", 3])], [("y", FLOAT, [1, "B", 4])], **weights)


def _attention() -> Any:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Transpose", ["q"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Where", ["mask", "scores", "least"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["share"]),
        helper.make_node("MatMul", ["share", "q"], ["mixed"]),
        helper.make_node("LayerNormalization", ["mixed", "gain"], ["y"]),
    ]
    weights = {"w": _drawn(8, 8), "least": np.float32(np.finfo(np.float32).min), "gain": np.ones(8, np.float32)}
    return _model(nodes, [("x", FLOAT, ["B", 4, 8]), ("mask", BOOL, [4, 4])], [("y", FLOAT, ["B", 4, 8])], **weights)


def _divisors() -> Any:
    """Constants below float16's smallest numbers, among others; and a norm as small."""
    nodes = [
        helper.make_node("Div", ["x", "tiny"], ["a"]),
        helper.make_node("ReduceL2", ["x"], ["norm"], axes=[-1]),
        helper.make_node("Div", ["x", "norm"], ["b"]),
        helper.make_node("Mul", ["x", "scales"], ["c"]),
        helper.make_node("Div", ["c", "norm"], ["d"]),
        helper.make_node("Concat", ["b", "d"], ["e"], axis=-1),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
        helper.make_node("Add", ["x", "epsilons"], ["f"]),
        helper.make_node("ReduceL2", ["f"], ["g"], axes=[-1]),
        helper.make_node("Div", ["x", "g"], ["z"]),
    ]
    weights = {
        "tiny": np.array([1e-8, 1, 3e-8, 2], np.float32),
        "scales": np.array([1e-7, 1, 5e-8, 2], np.float32),
        "epsilons": np.array([1e-9, 2e-9, 3e-9, 4e-9], np.float32),
        "w": _drawn(8, 3),
    }
    return _model(nodes, [("x", FLOAT, ["B", 4])], [(name, FLOAT, ["B", None]) for name in "ayz"], **weights)


def _image() -> Dict[str, Any]:
    return {"x": draw.uniform(0, 1, (2, 3, 8, 8)).astype(np.float32)}


GROWING = ("Cosh", "Exp", "Sinh", "Tan")


def _growing() -> Any:
    """Functions whose results pass what float16 holds, where their inputs do not."""
    nodes = [helper.make_node(name, ["x"], [name.lower()]) for name in GROWING]
    nodes += [helper.make_node("Tanh", [name.lower()], [f"y{index}"]) for index, name in enumerate(GROWING)]
    outputs: List[Info] = [(f"y{index}", FLOAT, ["B", 4]) for index in range(len(GROWING))]
    return _model(nodes, [("x", FLOAT, ["B", 4])], outputs)


MODELS: Dict[str, Case] = {
    "growing": Case(_growing, lambda: {"x": 24 * _drawn(2, 4)}, GROWING, ("Tanh",)),
    "normalisation": Case(
        _normalisation, lambda: {"x": 900 * _drawn(2, 8)}, ("Pow", "ReduceMean", "Add", "Sqrt"), ("MatMul",)
    ),
    "convolutions": Case(_convolutions, _image, (), ("Conv", "BatchNormalization", "Relu", "Resize")),
    "divisors": Case(_divisors, lambda: {"x": 1e-8 * _drawn(2, 4)}, ("Div", "Mul", "Add"), ("MatMul",)),
    "sizes": Case(_sizes, lambda: {"x": _drawn(1, 4098)}, ("Mul",), ("Relu", "Expand")),
    "branches": Case(_branches, lambda: {"x": _drawn(2, 4), "flag": np.array(True)}, ("If",), ("Tanh", "MatMul")),
    "words": Case(_words, lambda: {"ids": draw.randint(0, 16, (2, 5))}, ("ReduceSum",), ("Gather", "Mul")),
    "quantised": Case(  # an input between two steps may be rounded to the other one
        _quantised,
        lambda: {"x": draw.randint(-8, 9, (2, 4)).astype(np.float32) / 8},
        (),
        ("QuantizeLinear", "DequantizeLinear", "MatMul"),
    ),
    "recurrent": Case(_recurrent, lambda: {"x": _drawn(5, 2, 3)}, (), ("LSTM",)),
    "attention": Case(
        _attention,
        lambda: {"x": _drawn(2, 4, 8), "mask": np.tril(np.ones((4, 4), np.bool_))},
        ("Where",),
        ("MatMul", "Softmax", "LayerNormalization"),
    ),
}


def model_of(directory: str, name: str) -> str:
    """The network's file."""
    path = os.path.join(directory, f"{name}.onnx")
    onnx.save(MODELS[name].make(), path)
    return path


def mask_model(directory: str) -> str:
    """A softmax behind a mask that may hide everything."""
    nodes = [
        helper.make_node("Where", ["hidden", "least", "x"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["y"]),
    ]
    least = np.float32(np.finfo(np.float32).min)
    inputs: List[Info] = [("x", FLOAT, ["B", 4]), ("hidden", BOOL, ["B", 4])]
    path = os.path.join(directory, "mask.onnx")
    onnx.save(_model(nodes, inputs, [("y", FLOAT, ["B", 4])], least=least), path)
    return path
