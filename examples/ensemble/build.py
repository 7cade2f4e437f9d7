"""Build the ensemble: three classifiers of different kinds, learnt from digits and exported to ONNX, and their fit.

    python examples/ensemble/build.py            # into the asset cache, where edge.toml looks
    python examples/ensemble/build.py --out DIR  # elsewhere

* ``features``: one look through two wide hidden layers that are drawn by seed; the last layer is solved for.
* ``looks``: a narrower network of the same kind, which looks from 25 angles and takes the mean.
* ``neighbours``: the nine nearest of 36,000 learnt versions, weighted by their distance; the mean of nine looks.

Nothing needs a training library but the difficulty predictor (``edgeserve profile --fit``). The same seed gives the
same files.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from data import CLASSES, PIXELS, corrupted, history, learnt, view

from edgeserve.commands.fit.ensemble import fit
from edgeserve.config.files import resolve_path
from edgeserve.predict.history import EnsembleHistory, save_history

PLACE = "cache:ensemble-digits-1/"
WIDE, NARROW = 4096, 2048
NETWORK_COPIES, NEIGHBOUR_COPIES = 12, 40
"""Versions of each digit that a model learns from, corrupted to a grade up to its own bound."""

NEIGHBOURS = 9
NEAR = 0.05
RIDGE = 1e-3
SHARP = 8.0
TURN, SHIFT = 0.2, 0.6
STEPS = (-1, 0, 1)
FEW_VIEWS = tuple((0.0, SHIFT * right, SHIFT * down) for right in STEPS for down in STEPS)
MANY_VIEWS = tuple(
    (TURN * turn, SHIFT * right, SHIFT * down)
    for turn in STEPS
    for right in STEPS
    for down in STEPS
    if turn == 0 or (right, down) != (0, 0)
)
"""Looks: (angle, shift right, shift down)."""

Layers = List[Tuple[np.ndarray, np.ndarray]]


class Network(NamedTuple):
    """Hidden layers with ReLU behind each, a linear last one; ``middle`` is subtracted from every image first."""

    middle: np.ndarray
    layers: Layers


# --- learning ---------------------------------------------------------------------------------------------------------


def learn_network(wide: int, deep: int, grade: float, seed: int) -> Network:
    """Draw the hidden layers (random features: Rahimi and Recht, 2008), solve for the last one."""
    images, labels = versions(NETWORK_COPIES, grade, seed)
    draw = np.random.RandomState(seed)
    sizes = [PIXELS] + [wide] * deep
    hidden = [
        (
            draw.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32),
            draw.normal(0, 0.1, columns).astype(np.float32),
        )
        for rows, columns in zip(sizes, sizes[1:])
    ]
    middle = images.mean(axis=0)
    rows = images - middle
    for weights, biases in hidden:
        rows = np.maximum(rows @ weights + biases, 0)
    wanted = np.eye(CLASSES, dtype=np.float32)[labels] - 1 / CLASSES
    products = rows.T @ rows
    products += RIDGE * np.trace(products) / len(products) * np.eye(len(products), dtype=np.float32)
    last = np.linalg.solve(products, rows.T @ wanted)
    return Network(middle, [*hidden, ((SHARP * last).astype(np.float32), np.zeros(CLASSES, np.float32))])


def versions(copies: int, grade: float, seed: int) -> Tuple[np.ndarray, np.ndarray]:
    """Every learnt digit as it is and in further versions, with labels."""
    plain = learnt()
    draw = np.random.RandomState(seed)
    images, labels = np.tile(plain.images, (copies, 1)), np.tile(plain.labels, copies)
    grades = draw.uniform(0, grade, len(labels))
    grades[: len(plain.labels)] = 0
    return corrupted(images, grades, draw), labels


# --- ONNX -------------------------------------------------------------------------------------------------------------


class Graph:
    """An ONNX network in the making: ``image`` (N, 64) to ``probabilities`` (N, 10)."""

    def __init__(self) -> None:
        self.nodes: List[Any] = []
        self.constants: Dict[str, np.ndarray] = {}

    def add(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def network(self, network: Network, images: str) -> str:
        """Scores (rows, 10) of images (rows, 64)."""
        rows = self.add("Sub", (images, self.constant("middle", network.middle)), "centred")
        for index, (weights, biases) in enumerate(network.layers):
            rows = self.add(
                "Gemm",
                (rows, self.constant(f"weights_{index}", weights), self.constant(f"biases_{index}", biases)),
                f"layer_{index}",
            )
            if index < len(network.layers) - 1:
                rows = self.add("Relu", (rows,), f"hidden_{index}")
        return rows

    def from_angles(self, views: Sequence[Tuple[float, float, float]]) -> str:
        """Every image from several angles, a row each."""
        angles = np.concatenate([view(angle, 1.0, right, down) for angle, right, down in views], axis=1)
        seen = self.add("MatMul", ("image", self.constant("views", angles)), "seen")
        return self.add("Reshape", (seen, self.constant("rows", np.array([-1, PIXELS], np.int64))), "each_view")

    def mean(self, single: str, views: int) -> None:
        """The probabilities of an image: the mean over its rows."""
        per = self.constant("per_image", np.array([-1, views, CLASSES], np.int64))
        self.add("ReduceMean", (self.add("Reshape", (single, per), "by_image"),), "probabilities", axes=[1], keepdims=0)

    def bytes(self, name: str) -> bytes:
        from onnx import TensorProto, checker, helper, numpy_helper

        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", PIXELS])],
            [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", CLASSES])],
            [numpy_helper.from_array(value, key) for key, value in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        checker.check_model(model)
        content: bytes = model.SerializeToString()
        return content


def features() -> bytes:
    """One look through two wide layers."""
    graph = Graph()
    graph.add("Softmax", (graph.network(learn_network(WIDE, 2, 0.5, seed=1), "image"),), "probabilities", axis=-1)
    return graph.bytes("features")


def looks() -> bytes:
    """The mean of 25 looks through two narrower layers."""
    graph = Graph()
    scores = graph.network(learn_network(NARROW, 2, 0.4, seed=2), graph.from_angles(MANY_VIEWS))
    graph.mean(graph.add("Softmax", (scores,), "single", axis=-1), len(MANY_VIEWS))
    return graph.bytes("looks")


def neighbours() -> bytes:
    """The nearest learnt versions, from nine angles: squared distances by one product, then the nine smallest."""
    images, labels = versions(NEIGHBOUR_COPIES, 0.6, seed=3)
    graph = Graph()
    learnt_columns = graph.constant("learnt", np.ascontiguousarray(images.T))
    product = graph.add("MatMul", (graph.from_angles(FEW_VIEWS), learnt_columns), "product")
    twice = graph.add("Mul", (product, graph.constant("minus_two", np.float32(-2))), "twice")
    partial = graph.add("Add", (twice, graph.constant("squares", (images**2).sum(axis=1))), "partial")
    own = graph.add("ReduceSumSquare", ("each_view",), "own", axes=[1], keepdims=1)
    graph.nodes.append(
        _top(graph.add("Add", (partial, own), "distances"), graph.constant("count", np.array([NEIGHBOURS], np.int64)))
    )
    near = graph.add("Max", ("nearest", graph.constant("zero", np.float32(0))), "above_zero")
    root = graph.add("Sqrt", (near,), "root")
    weights = graph.add(
        "Reciprocal", (graph.add("Add", (root, graph.constant("near", np.float32(NEAR))), "apart"),), "weights"
    )
    wide = graph.add("Unsqueeze", (weights, graph.constant("axis_1", np.array([1], np.int64))), "weights_row")
    classes = graph.constant("classes", np.eye(CLASSES, dtype=np.float32)[labels])
    votes = graph.add("MatMul", (wide, graph.add("Gather", (classes, "places"), "each_class")), "votes")
    total = graph.add("Squeeze", (votes, "axis_1"), "total")
    smooth = graph.add("Add", (total, graph.constant("floor", np.float32(1e-3))), "smooth")
    graph.mean(
        graph.add("Div", (smooth, graph.add("ReduceSum", (smooth, "axis_1"), "sum", keepdims=1)), "single"),
        len(FEW_VIEWS),
    )
    return graph.bytes("neighbours")


def _top(distances: str, count: str) -> Any:
    from onnx import helper

    return helper.make_node("TopK", [distances, count], ["nearest", "places"], name="top", axis=1, largest=0, sorted=1)


MODELS: Dict[str, Callable[[], bytes]] = {"features": features, "looks": looks, "neighbours": neighbours}


# --- all together -----------------------------------------------------------------------------------------------------


def recorded(directory: str) -> EnsembleHistory:
    """What every model answers to every digit of the history."""
    import onnxruntime

    shown = history()
    outputs = [
        onnxruntime.InferenceSession(os.path.join(directory, f"{name}.onnx"), providers=["CPUExecutionProvider"]).run(
            None, {"image": shown.images}
        )[0]
        for name in MODELS
    ]
    return EnsembleHistory(
        tuple(MODELS),
        np.stack(outputs, axis=1).astype(float),
        "classification",
        shown.labels,
        shown.images,
        shown.numbers,
    )


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Build the digits ensemble of examples/ensemble.")
    parser.add_argument("--out", metavar="DIR", help="where to write (default: the asset cache)")
    args = parser.parse_args(argv)
    directory = args.out or os.path.dirname(resolve_path(PLACE + "x", ""))
    os.makedirs(directory, exist_ok=True)
    for name, build in MODELS.items():
        began = time.perf_counter()
        content = build()
        with open(os.path.join(directory, f"{name}.onnx"), "wb") as file:
            file.write(content)
        print(f"{name:<12}{len(content) / 1e6:>7.1f} MB  {time.perf_counter() - began:>5.1f} s")
    made = recorded(directory)
    save_history(os.path.join(directory, "history.npz"), made)
    about = fit(made, os.path.join(directory, "digits.ensemble.json"))
    for name, share in about["agreement"].items():
        print(f"{name:<24} agrees with all three in {share:.1%}")
    print(f"difficulty predicted with a rank correlation of {about['rank_correlation']:.2f}; files are in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
