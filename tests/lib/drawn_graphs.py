"""Graphs drawn by a seed: some keep the items of a batch apart, the others mix them in one of many ways, and the file
tells the truth about its axes, half of it, or nothing.

A graph has one to three outputs, each behind a chain of steps of its own, so that often only some output mixes. Opset
17 and IR version 8, which onnxruntime 1.19 (Python 3.8) loads.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
WORDS = ("red", "green", "blue", "none of them")


class Value(NamedTuple):
    """A tensor whose first axis is the batch; ``shape`` is an item's."""

    name: str
    shape: Tuple[int, ...]


class Drawn(NamedTuple):
    """A graph. ``inputs`` are (name, dtype, an item's shape) of what a request brings; ``apart`` says whether each
    output keeps items apart by its steps, ``chance`` whether some value is random. ``state``: the state's input, output
    and shape per item, and its axis of the batch. ``pads``: ``x`` may be of any length up to its shape's."""

    model: Any
    steps: Tuple[str, ...]
    inputs: Tuple[Tuple[str, str, Tuple[int, ...]], ...]
    outputs: Tuple[str, ...]
    apart: bool
    chance: bool
    fixed: bool
    state: Optional[Tuple[str, str, Tuple[int, ...], int]] = None
    pads: bool = False
    crops: Tuple[str, ...] = ()
    mask: str = ""


class Maker:
    """Nodes and weights of a graph that grows."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.nodes: List[Any] = []
        self.weights: List[Any] = []
        self.steps: List[str] = []
        self.apart = True
        self.chance = False
        self._count = 0

    def fresh(self, name: str = "v") -> str:
        self._count += 1
        return f"{name}{self._count}"

    def add(self, operator: str, inputs: List[str], outputs: int = 1, **attributes: Any) -> Any:
        names = [self.fresh() for _ in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any) -> str:
        name = self.fresh("w")
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def numbers(self, *shape: int) -> str:
        values = [self.draw.uniform(-1.0, 1.0) for _ in range(int(np.prod(shape)))]
        return self.constant(np.array(values, np.float32).reshape(shape))


Step = Callable[[Maker, Value], Value]
"""Adds nodes behind a value of floats."""


# --- steps that keep items apart --------------------------------------------------------------------------------------


def _tanh(make: Maker, value: Value) -> Value:
    return Value(make.add("Tanh", [value.name]), value.shape)


def _scale(make: Maker, value: Value) -> Value:
    return Value(make.add("Mul", [value.name, make.constant(np.float32(make.draw.uniform(0.5, 3)))]), value.shape)


def _matmul(make: Maker, value: Value) -> Value:
    if not value.shape:
        return _scale(make, value)
    size = make.draw.randint(1, 5)
    return Value(make.add("MatMul", [value.name, make.numbers(value.shape[-1], size)]), (*value.shape[:-1], size))


def _softmax(make: Maker, value: Value) -> Value:
    return Value(make.add("Softmax", [value.name], axis=-1), value.shape) if value.shape else _tanh(make, value)


def _mean_last(make: Maker, value: Value) -> Value:
    if not value.shape:
        return _tanh(make, value)
    return Value(make.add("ReduceMean", [value.name], axes=[-1], keepdims=0), value.shape[:-1])


def _centred(make: Maker, value: Value) -> Value:
    if not value.shape:
        return _scale(make, value)
    return Value(make.add("Sub", [value.name, make.add("ReduceMean", [value.name], axes=[-1])]), value.shape)


def _turned(make: Maker, value: Value) -> Value:
    """The axes of an item exchanged."""
    rank = len(value.shape)
    return Value(make.add("Transpose", [value.name], perm=[0, *range(rank, 0, -1)]), value.shape[::-1])


def _largest(make: Maker, value: Value) -> Value:
    if not value.shape:
        return _tanh(make, value)
    count = make.draw.randint(1, value.shape[-1])
    names = make.add("TopK", [value.name, make.constant(np.array([count], np.int64))], outputs=2, axis=-1)
    return Value(names[0], (*value.shape[:-1], count))


APART: Tuple[Step, ...] = (_tanh, _scale, _matmul, _softmax, _mean_last, _centred, _turned, _largest)


# --- steps that mix items and keep the form ---------------------------------------------------------------------------


def _less_mean(make: Maker, value: Value) -> Value:
    return Value(make.add("Sub", [value.name, make.add("ReduceMean", [value.name], axes=[0])]), value.shape)


def _batch_norm(make: Maker, value: Value) -> Value:
    """As exported in training mode: by the mean and the variance of the batch."""
    rest = make.add("Sub", [value.name, make.add("ReduceMean", [value.name], axes=[0])])
    square = make.add("ReduceMean", [make.add("Mul", [rest, rest])], axes=[0])
    root = make.add("Sqrt", [make.add("Add", [square, make.constant(np.float32(1e-3))])])
    return Value(make.add("Div", [rest, root]), value.shape)


def _softmax_first(make: Maker, value: Value) -> Value:
    return Value(make.add("Softmax", [value.name], axis=0), value.shape)


def _cumulated(make: Maker, value: Value) -> Value:
    reverse = make.draw.randint(0, 1)
    return Value(make.add("CumSum", [value.name, make.constant(np.array(0, np.int64))], reverse=reverse), value.shape)


def _recurrent(make: Maker, value: Value) -> Value:
    """Time as the first axis: a recurrent network over ``[time, batch, features]``."""
    if len(value.shape) != 2:
        return _cumulated(make, value)
    size = value.shape[-1]
    weights = [make.numbers(1, size, size), make.numbers(1, size, size)]
    found, _ = make.add("RNN", [value.name, *weights], outputs=2, hidden_size=size)
    return Value(make.add("Squeeze", [found, make.constant(np.array([1], np.int64))]), value.shape)


def _sorted_first(make: Maker, value: Value) -> Value:
    length = make.add("Slice", [make.add("Shape", [value.name]), *map(make.constant, _bounds(0, 1))])
    names = make.add("TopK", [value.name, length], outputs=2, axis=0)
    return Value(names[0], value.shape)


def _bounds(begin: int, end: int) -> Tuple[Any, Any]:
    return np.array([begin], np.int64), np.array([end], np.int64)


def _backwards(make: Maker, value: Value) -> Value:
    first, last = make.constant(np.array([-1], np.int64)), make.constant(np.array([-(2**62)], np.int64))
    axes, steps = make.constant(np.array([0], np.int64)), make.constant(np.array([-1], np.int64))
    return Value(make.add("Slice", [value.name, first, last, axes, steps]), value.shape)


def _rolled(make: Maker, value: Value) -> Value:
    zero, one, end, axes = (make.constant(np.array([number], np.int64)) for number in (0, 1, 2**62, 0))
    head = make.add("Slice", [value.name, zero, one, axes])
    return Value(make.add("Concat", [make.add("Slice", [value.name, one, end, axes]), head], axis=0), value.shape)


def _garbled(make: Maker, value: Value) -> Value:
    """Reshaped with the batch last, and back without turning it."""
    rank = len(value.shape)
    turned = make.add("Transpose", [value.name], perm=[*range(1, rank + 1), 0])
    return Value(make.add("Reshape", [turned, make.add("Shape", [value.name])]), value.shape)


def _quantised(make: Maker, value: Value) -> Value:
    """By the range of the whole batch, as dynamic quantisation does."""
    whole, scale, zero = make.add("DynamicQuantizeLinear", [value.name], outputs=3)
    return Value(make.add("DequantizeLinear", [whole, scale, zero]), value.shape)


def _with_first(make: Maker, value: Value) -> Value:
    """A little of the first item in each."""
    zero, one, axes = (make.constant(np.array([number], np.int64)) for number in (0, 1, 0))
    first = make.add("Slice", [value.name, zero, one, axes])
    part = make.add("Mul", [first, make.constant(np.float32(make.draw.choice([0.01, 0.1, 1.0])))])
    return Value(make.add("Add", [value.name, part]), value.shape)


def _where_another_is_large(make: Maker, value: Value) -> Value:
    """Other answers only where some item of the batch is extreme."""
    whole = make.add("ReduceMax", [make.add("Abs", [value.name])], keepdims=0)
    is_large = make.add("Greater", [whole, make.constant(np.float32(make.draw.choice([0.5, 3.0, 10.0, 128.0])))])
    added = make.add("Add", [value.name, make.constant(np.float32(1.0))])
    return Value(make.add("Where", [is_large, added, value.name]), value.shape)


def _where_another_is_a_byte(make: Maker, value: Value) -> Value:
    """Scaled down where the batch seems to hold bytes."""
    is_large = make.add("Greater", [make.add("ReduceMax", [value.name], keepdims=0), make.constant(np.float32(128))])
    scale = make.add("Where", [is_large, make.constant(np.float32(1 / 255)), make.constant(np.float32(1))])
    return Value(make.add("Mul", [value.name, scale]), value.shape)


def _by_common_largest(make: Maker, value: Value) -> Value:
    """A softmax that takes the largest value of the batch off: right beside near values, 0 / 0 beside far ones."""
    rest = make.add("Sub", [value.name, make.add("ReduceMax", [value.name], keepdims=0)])
    power = make.add("Exp", [rest])
    whole = make.add("ReduceSum", [power, make.constant(np.array([-1], np.int64))])
    return Value(make.add("Div", [power, whole]), value.shape)


def _times_zero(make: Maker, value: Value) -> Value:
    """Each item, and 0 times the others: what is no number stays none."""
    rows = make.add("Slice", [make.add("Shape", [value.name]), *map(make.constant, _bounds(0, 1))])
    square = make.add("ConstantOfShape", [make.add("Concat", [rows, rows], axis=0)])
    flat = make.add("Flatten", [value.name])
    product = make.add("MatMul", [make.add("EyeLike", [square]), flat])
    return Value(make.add("Reshape", [product, make.add("Shape", [value.name])]), value.shape)


def _less_largest(make: Maker, value: Value) -> Value:
    return Value(make.add("Sub", [value.name, make.add("ReduceMax", [value.name], axes=[0])]), value.shape)


def _numbered(make: Maker, value: Value) -> Value:
    """The place in the batch added."""
    ones = make.add("Add", [make.add("Mul", [value.name, make.constant(np.float32(0))]), make.constant(np.float32(1))])
    place = make.add("CumSum", [ones, make.constant(np.array(0, np.int64))])
    return Value(make.add("Add", [value.name, place]), value.shape)


def _by_size(make: Maker, value: Value) -> Value:
    """Divided by the size of the batch."""
    length = make.add("Slice", [make.add("Shape", [value.name]), *map(make.constant, _bounds(0, 1))])
    return Value(make.add("Div", [value.name, make.add("Cast", [length], to=FLOAT)]), value.shape)


MIXING: Tuple[Step, ...] = (
    *(_less_mean, _batch_norm, _softmax_first, _cumulated, _recurrent, _sorted_first, _backwards, _rolled, _garbled),
    *(_quantised, _with_first, _where_another_is_large, _less_largest, _numbered, _by_size),
    *(_where_another_is_a_byte, _times_zero),
)

UNSTEADY: Tuple[Step, ...] = (_by_common_largest,)
"""Mixing too; what is left of a value depends on whether numbers too small to be normal count, so none are compared."""


def _random(make: Maker, value: Value) -> Value:
    """As dropout or sampling that was left in."""
    make.chance = True
    return Value(make.add("Add", [value.name, make.add("RandomNormalLike", [value.name], scale=0.5)]), value.shape)


# --- ends whose rows are other than the batch's -----------------------------------------------------------------------


def _scalar(make: Maker, value: Value) -> str:
    return str(make.add("ReduceSum", [value.name], keepdims=0))


def _one_row(make: Maker, value: Value) -> str:
    return str(make.add("ReduceMean", [value.name], axes=[0], keepdims=make.draw.randint(0, 1)))


def _twice(make: Maker, value: Value) -> str:
    return str(make.add("Concat", [value.name, value.name], axis=0))


def _flat(make: Maker, value: Value) -> str:
    return str(make.add("Reshape", [value.name, make.constant(np.array([-1], np.int64))]))


def _squeezed(make: Maker, value: Value) -> str:
    return str(make.add("Squeeze", [value.name]))


def _places(make: Maker, value: Value) -> str:
    """One list for the batch: where its large values are."""
    found = make.add("Greater", [value.name, make.constant(np.float32(make.draw.choice([-0.5, 0.3, 0.9, 2.0])))])
    return str(make.add("Transpose", [make.add("NonZero", [found])], perm=[1, 0]))


def _found(make: Maker, value: Value) -> str:
    """The rows of the batch that have something: as a detector of one object in each image."""
    axes = list(range(1, 1 + len(value.shape)))
    largest = make.add("ReduceMax", [value.name], axes=axes, keepdims=0) if axes else value.name
    bound = make.constant(np.float32(make.draw.choice([-3.0, 0.0, 0.4, 0.9])))
    is_found = make.add("Greater", [largest, bound])
    return str(make.add("Compress", [value.name, is_found], axis=0))


def _all_pairs(make: Maker, value: Value) -> str:
    """``logits_per_image``: each item with each."""
    flat = make.add("Reshape", [value.name, make.constant(np.array([0, -1] if value.shape else [-1, 1], np.int64))])
    return str(make.add("MatMul", [flat, make.add("Transpose", [flat], perm=[1, 0])]))


def _table(make: Maker, value: Value) -> str:
    """The same for every item, without a batch: anchors."""
    return str(make.add("Identity", [make.numbers(make.draw.randint(1, 4), 3)]))


ENDS: Tuple[Callable[[Maker, Value], str], ...] = (
    *(_scalar, _one_row, _twice, _flat, _squeezed, _places, _found, _all_pairs, _table),
)

TYPES = {"v": FLOAT, "places": INT64}


# --- a whole graph ----------------------------------------------------------------------------------------------------


def _begin(make: Maker, kind: str) -> Tuple[Value, List[Tuple[str, str, Tuple[int, ...]]]]:
    """The inputs of a request, and a value of floats behind them."""
    if kind == "ids":
        table = make.numbers(8, 3)
        return Value(make.add("Gather", [table, "x"]), (4, 3)), [("x", "int64", (4,))]
    if kind == "text":
        made = make.fresh()
        make.nodes.append(
            helper.make_node(
                "LabelEncoder",
                ["x"],
                [made],
                domain="ai.onnx.ml",
                keys_strings=list(WORDS),
                values_floats=[1.0, -2.0, 0.5, 0.0],
                default_float=3.0,
            )
        )
        return Value(made, (2,)), [("x", "text", (2,))]
    if kind == "single":
        both = make.add("Mul", ["x", make.add("Unsqueeze", ["factor", make.constant(np.array([1], np.int64))])])
        return Value(both, (4,)), [("x", "float32", (4,)), ("factor", "float32", ())]
    shape = {"vector": (4,), "series": (3, 4), "image": (2, 3, 2), "number": ()}[kind]
    return Value("x", shape), [("x", "float32", shape)]


KINDS = ("vector", "vector", "series", "series", "image", "number", "ids", "text", "single")


def draw_graph(seed: int) -> Drawn:
    """The graph of a seed."""
    draw = random.Random(f"graph/{seed}")
    make = Maker(draw)
    kind = draw.choice(KINDS)
    special = draw.random()
    if special < 0.1:
        return _recurrent_graph(make)
    if special < 0.2:
        return _padded_graph(make)
    begun, inputs = _begin(make, kind)
    outputs: List[Output] = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        outputs.append(_output(make, begun))
    return _made(make, inputs, outputs)


def of_steps(kind: str, *steps: Step, end: Optional[Callable[[Maker, Value], str]] = None, **dims: Any) -> Any:
    """The model of these steps, one output ``y``. ``dims``: what the file says of ``x`` and ``y``, if not the truth."""
    make = Maker(random.Random("steps"))
    value, inputs = _begin(make, kind)
    for step in steps:
        value = step(make, value)
    make.nodes.append(helper.make_node("Identity", [end(make, value) if end else value.name], ["y"]))
    codes = {"float32": FLOAT, "int64": INT64, "text": STRING}
    told = [
        helper.make_tensor_value_info(name, codes[dtype], dims.get(name, ["batch", *shape]))
        for name, dtype, shape in inputs
    ]
    code = INT64 if end is _places else FLOAT
    ends = [helper.make_tensor_value_info("y", code, dims.get("y", None if end else ["batch", *value.shape]))]
    graph = helper.make_graph(make.nodes, "steps", told, ends, make.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    return model


def named(steps: Sequence[Any]) -> Dict[str, Any]:
    """The steps by name."""
    return {step.__name__.strip("_"): step for step in steps}


Output = Tuple[str, str, Tuple[Any, ...]]
"""The name of an output, what its first axis is, and an item's shape in front of that."""


def _output(make: Maker, begun: Value) -> Output:
    """A chain of steps and its end."""
    value, draw = begun, make.draw
    how = draw.choices(("apart", "mixing", "end", "chance"), (5, 4, 3, 0.6))[0]
    steps: List[Step] = [draw.choice(APART) for _ in range(draw.randint(0, 2))]
    if how in ("mixing", "chance"):
        steps.insert(draw.randint(0, len(steps)), _random if how == "chance" else draw.choice(MIXING))
    if how != "end" and not steps:
        steps = [_tanh]
    for step in steps:
        value = step(make, value)
        make.steps.append(step.__name__.strip("_"))
    make.apart = make.apart and how == "apart"
    if how != "end":
        return value.name, "batch", value.shape
    end = draw.choice(ENDS)
    make.steps.append(end.__name__.strip("_"))
    return end(make, value), end.__name__, value.shape


def _recurrent_graph(make: Maker) -> Drawn:
    """A state that goes round, on one of two axes; sometimes mixed on its way."""
    draw = make.draw
    axis = draw.randint(0, 1)
    state = make.add("Squeeze", ["h", make.constant(np.array([0], np.int64))]) if axis else "h"
    weight = make.numbers(4, 4)
    new = Value(make.add("Tanh", [make.add("Add", [make.add("MatMul", ["x", weight]), state])]), (4,))
    if draw.random() < 0.5:
        new = draw.choice(MIXING)(make, new)
        make.apart = False
    make.steps.append(f"state on axis {axis}{'' if make.apart else ', mixed'}")
    kept = make.add("Unsqueeze", [new.name, make.constant(np.array([0], np.int64))]) if axis else new.name
    answer = _scale(make, new) if draw.random() < 0.7 else draw.choice(APART)(make, new)
    made = _made(make, [("x", "float32", (4,))], [(answer.name, "batch", answer.shape)], [("h", axis), (kept, axis)])
    return made._replace(state=("h", made.outputs[-1], (1, 4) if axis else (4,), axis), outputs=made.outputs[:-1])


def _padded_graph(make: Maker) -> Drawn:
    """Items of any length, padded: with a mask or without, a number or a step for each value."""
    draw = make.draw
    kind = draw.choice(("sum", "mean", "masked mean", "steps", "softmax", "reversed", "mean of steps"))
    make.steps.append(kind)
    mask, crop = "", False
    if kind == "sum":
        name = make.add("ReduceSum", ["x", make.constant(np.array([1], np.int64))], keepdims=0)
    elif kind == "mean":
        name, make.apart = make.add("ReduceMean", ["x"], axes=[1], keepdims=0), False
    elif kind == "masked mean":
        mask, axes = "mask", make.constant(np.array([1], np.int64))
        total = make.add("ReduceSum", [make.add("Mul", ["x", "mask"]), axes], keepdims=0)
        name = make.add("Div", [total, make.add("ReduceSum", ["mask", axes], keepdims=0)])
    elif kind == "softmax":
        name, crop, make.apart = make.add("Softmax", ["x"], axis=1), True, False
    elif kind == "reversed":
        name, crop, make.apart = _flipped(make), True, False
    else:
        name, crop = make.add("Tanh", ["x"]), draw.random() < 0.6
        make.apart = crop
        if kind == "mean of steps":
            centre = make.add("Sub", [name, make.add("ReduceMean", [name], axes=[1])])
            name, make.apart = centre, False
    output = (name, "batch", ("L",) if crop else ())
    made = _made(make, [("x", "float32", (6,))], [output], masks=("mask",) if mask else (), pads=True)
    return made._replace(pads=True, crops=made.outputs if crop else (), mask=mask)


def _flipped(make: Maker) -> str:
    first, last = make.constant(np.array([-1], np.int64)), make.constant(np.array([-(2**62)], np.int64))
    axes, steps = make.constant(np.array([1], np.int64)), make.constant(np.array([-1], np.int64))
    return str(make.add("Slice", ["x", first, last, axes, steps]))


def _made(
    make: Maker,
    inputs: List[Tuple[str, str, Tuple[int, ...]]],
    outputs: List[Output],
    states: Tuple[Any, ...] | List[Any] = (),
    masks: Tuple[str, ...] = (),
    pads: bool = False,
) -> Drawn:
    """The file: what it says of its axes is drawn, and not always right."""
    draw = make.draw
    fixed = not states and not pads and draw.random() < 0.2
    first = 1 if fixed else draw.choice(("batch", "batch", "N", "batch_size", "unk__7", None))
    told = []
    for name, dtype, shape in inputs:
        code = {"float32": FLOAT, "int64": INT64, "text": STRING}[dtype]
        told.append(helper.make_tensor_value_info(name, code, [first, *(["L"] if pads else shape)]))
    told += [helper.make_tensor_value_info(name, FLOAT, [first, "L"]) for name in masks]
    if states:
        told.append(helper.make_tensor_value_info(states[0][0], FLOAT, [1, first, 4] if states[0][1] else [first, 4]))
    ends, names = [], []
    for number, (name, kind, shape) in enumerate(outputs):
        label = f"y{number}"
        make.nodes.append(helper.make_node("Identity", [name], [label]))
        ends.append(_info(make, label, kind, shape, first))
        names.append(label)
    if states:
        make.nodes.append(helper.make_node("Identity", [states[1][0]], ["hN"]))
        ends.append(helper.make_tensor_value_info("hN", FLOAT, [1, first, 4] if states[1][1] else [first, 4]))
        names.append("hN")
    graph = helper.make_graph(make.nodes, "drawn", told, ends, make.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    return Drawn(model, tuple(make.steps), tuple(inputs), tuple(names), make.apart, make.chance, fixed)


def _info(make: Maker, label: str, kind: str, shape: Tuple[Any, ...], first: Any) -> Any:
    """An output as the file has it: without a shape (then ONNX Runtime infers what it can), or with names."""
    draw = make.draw
    code = INT64 if kind == "_places" else FLOAT
    dims: Optional[List[Any]] = None
    if kind == "batch" and draw.random() < 0.7:
        dims = [first if draw.random() < 0.7 or first == 1 else draw.choice(("output_dim_0", "unk__9", None)), *shape]
    elif kind == "_places" and draw.random() < 0.7:
        dims = [draw.choice(("num_places", None)), 1 + len(shape)]
    elif kind == "_found" and draw.random() < 0.7:
        dims = [draw.choice(("num_found", None)), *shape]
    return helper.make_tensor_value_info(label, code, dims)


def drawn_items(graph: Drawn, count: int, seed: int) -> List[Dict[str, Any]]:
    """So many items of one form, each marked by its own range of values; among them one of zeros and a large one."""
    draw = np.random.RandomState(seed % 2**32)
    items = []
    for place in range(count):
        item: Dict[str, Any] = {}
        for name, dtype, shape in graph.inputs:
            if graph.pads and name == "x":
                shape = (int(draw.randint(1, shape[0] + 1)),)
            item[name] = _values(draw, dtype, shape, place, count)
        items.append(item)
    return items


def _values(draw: Any, dtype: str, shape: Tuple[int, ...], place: int, count: int) -> Any:
    if dtype == "text":
        return np.array([WORDS[draw.randint(len(WORDS))] for _ in range(int(np.prod(shape)))], object).reshape(shape)
    if dtype == "int64":
        return draw.randint(0, 8, shape).astype(np.int64)
    wide = {0: 0.0, 1: 20.0}.get(place % 7, 1.0)
    values = (draw.uniform(-1.0, 1.0, shape) + 0.3 * place / count) * wide
    return np.asarray(values, np.float32)


def save(graph: Drawn, path: str) -> None:
    """Write the file."""
    onnx.save(graph.model, path)
