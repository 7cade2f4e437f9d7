"""Build the network with early exits: learn it from digits, export it to ONNX with real ``If`` nodes, check it.

    python examples/dynamic/build.py                      # into the asset cache, where edge.toml looks
    python examples/dynamic/build.py --out DIR --wide 256  # elsewhere, a smaller one

The network looks at a digit once and is done when it is sure. Otherwise it looks again from seven more angles and takes
the mean, and if that is not sure, from twenty-four more. Whether a further look is taken is decided in the graph, for
the batch: when any of its digits is unsure all of them are looked at again, and the sure ones keep their answer.
So a digit's answer never depends on its company, its time does.

Its hidden layers are drawn by seed and stay as they are (random features: Rahimi and Recht, 2008); only the last layer
is learnt, in closed form, from the digits and slightly distorted copies of them. That takes seconds on a CPU, needs no
training library, and the same seed gives the same network.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from inputs import LEARNT, PIXELS, TUNED, digits, photographed, view

from edgeserve.config.files import resolve_path

FILE = "cache:dynamic-digits-1/exits.onnx"
WIDE = 2048  # of each of the three hidden layers: 33 MB, which one digit reads as a whole and a batch shares
DEEP = 3
COPIES = 5  # each digit is learnt from in so many versions, the first as it is
SPREAD = 0.3  # how far the others are distorted; more would make the first look recognise photographs, too
RIDGE = 1e-3  # of the mean eigenvalue: the usual small value, no result depended on it
SHARP = 8.0  # scores to probabilities: softmax of this times the score
SURE_FIRST = 0.9  # the first answer is given from this probability on; chosen on the digits kept for tuning
SURE_SECOND = 0.5  # the second one, a mean over eight looks, from this

TURN, SHIFT = 0.2, 0.6
SECOND = (
    (TURN, 1.0, 0.0, 0.0),
    (-TURN, 1.0, 0.0, 0.0),
    (0.0, 1.0, SHIFT, 0.0),
    (0.0, 1.0, -SHIFT, 0.0),
    (0.0, 1.0, 0.0, SHIFT),
    (0.0, 1.0, 0.0, -SHIFT),
    (0.0, 1.1, 0.0, 0.0),
)
THIRD = tuple(
    (angle, 1.0, right * SHIFT, down * SHIFT)
    for angle in (-0.3, -0.15, 0.15, 0.3)
    for right, down in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1))
)
"""The further views: (angle, scale, shift right, shift down) each."""

AGREE_MAX = 1e-4
"""Largest difference between ONNX Runtime's probabilities and numpy's: both sum float32, in another order."""

SAME_MIN = 0.99
"""Share of digits that must leave at the same exit: a probability may lie within a rounding error of a threshold."""


class Network(NamedTuple):
    """The learnt network: ``middle`` is subtracted, then ``layers`` of (weights, biases), the last one linear; and the
    views of the second and of the third look, side by side."""

    middle: np.ndarray
    layers: List[Tuple[np.ndarray, np.ndarray]]
    second: np.ndarray
    third: np.ndarray


# --- learning ---------------------------------------------------------------------------------------------------------


def learn(wide: int = WIDE, seed: int = 1) -> Network:
    """Draw the hidden layers, solve for the last one."""
    images, labels = digits()
    images, labels = images[:LEARNT], labels[:LEARNT]
    draw = np.random.RandomState(seed)
    sizes = [PIXELS] + [wide] * DEEP
    hidden = [
        (
            draw.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32),
            draw.normal(0, 0.1, columns).astype(np.float32),
        )
        for rows, columns in zip(sizes, sizes[1:])
    ]
    middle = images.mean(axis=0)
    versions = [images, *(distorted(images, draw) for _ in range(COPIES - 1))]
    features = through(hidden, np.concatenate(versions) - middle)
    wanted = np.tile(np.eye(10, dtype=np.float32)[labels] - 0.1, (COPIES, 1))
    # Fewer columns than rows: the normal equations of the columns, else those of the rows, give the same solution.
    if wide < len(features):
        products = features.T @ features
        last = np.linalg.solve(products + ridge(products), features.T @ wanted)
    else:
        products = features @ features.T
        last = features.T @ np.linalg.solve(products + ridge(products), wanted)
    layers = [*hidden, ((SHARP * last).astype(np.float32), np.zeros(10, np.float32))]
    return Network(
        middle,
        layers,
        np.concatenate([view(*place) for place in SECOND], axis=1),
        np.concatenate([view(*place) for place in THIRD], axis=1),
    )


def ridge(products: np.ndarray) -> np.ndarray:
    """What keeps the solution small, relative to the features' own size."""
    size: np.ndarray = RIDGE * np.trace(products) / len(products) * np.eye(len(products), dtype=np.float32)
    return size


def distorted(images: np.ndarray, draw: np.random.RandomState) -> np.ndarray:
    """Every digit a little turned, scaled and shifted."""
    moved = [
        image
        @ view(
            draw.normal(0, 0.17 * SPREAD),
            float(np.exp(draw.normal(0, 0.08 * SPREAD))),
            draw.normal(0, 0.6 * SPREAD),
            draw.normal(0, 0.6 * SPREAD),
        )
        for image in images
    ]
    return np.array(moved, np.float32)


# --- the network in numpy ---------------------------------------------------------------------------------------------


def through(layers: Sequence[Tuple[np.ndarray, np.ndarray]], rows: np.ndarray) -> np.ndarray:
    """Rows through layers, negative values cut off after each."""
    for weights, biases in layers:
        rows = np.maximum(rows @ weights + biases, 0)
    return rows


def look(network: Network, images: np.ndarray) -> np.ndarray:
    """The probabilities of the ten digits at one look."""
    weights, biases = network.layers[-1]
    scores = through(network.layers[:-1], images - network.middle) @ weights + biases
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities: np.ndarray = raised / raised.sum(axis=1, keepdims=True)
    return probabilities


def looks(network: Network, images: np.ndarray, views: np.ndarray) -> np.ndarray:
    """The sum of the probabilities over several views."""
    seen = (images @ views).reshape(-1, PIXELS)
    total: np.ndarray = look(network, seen).reshape(len(images), -1, 10).sum(axis=1)
    return total


def recognise(network: Network, images: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Probabilities and the exit (1, 2 or 3) of every digit, each as if it were alone."""
    answer = look(network, images)
    exits: np.ndarray = np.ones(len(images), np.int64)
    unsure = np.flatnonzero(answer.max(axis=1) < SURE_FIRST)
    total = answer[unsure] + looks(network, images[unsure], network.second)
    answer[unsure] = total / (1 + len(SECOND))
    exits[unsure] = 2
    still = answer[unsure].max(axis=1) < SURE_SECOND
    total = total[still] + looks(network, images[unsure[still]], network.third)
    answer[unsure[still]] = total / (1 + len(SECOND) + len(THIRD))
    exits[unsure[still]] = 3
    return answer, exits


# --- the network in ONNX ----------------------------------------------------------------------------------------------


class Graph:
    """Nodes in the making. A branch of an ``If`` is a graph of its own that sees its surroundings' values by name."""

    def __init__(self) -> None:
        self.nodes: List[Any] = []
        self._parts = 0

    def add(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """One node; its output's name."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def look(self, images: str, prefix: str) -> str:
        """:func:`look`: the layers are the outermost graph's, whichever branch uses them."""
        rows = self.add("Sub", (images, "middle"), f"{prefix}_centred")
        for index in range(DEEP + 1):
            rows = self.add("MatMul", (rows, f"weights_{index}"), f"{prefix}_product_{index}")
            rows = self.add("Add", (rows, f"biases_{index}"), f"{prefix}_sum_{index}")
            if index < DEEP:
                rows = self.add("Relu", (rows,), f"{prefix}_hidden_{index}")
        return self.add("Softmax", (rows,), f"{prefix}_look", axis=-1)

    def looks(self, views: str, prefix: str) -> str:
        """:func:`looks`: all views of all digits are rows of one product."""
        seen = self.add("MatMul", ("image", views), f"{prefix}_seen")
        rows = self.add("Reshape", (seen, "rows"), f"{prefix}_rows")
        each = self.add("Reshape", (self.look(rows, prefix), f"per_{views}"), f"{prefix}_each")
        return self.add("ReduceSum", (each, "axis_1"), f"{prefix}_total", keepdims=0)

    def unsure(self, probabilities: str, threshold: str, prefix: str) -> str:
        """Which digits of the batch need another look."""
        best = self.add("ReduceMax", (probabilities,), f"{prefix}_best", axes=[1], keepdims=1)
        return self.add("Less", (best, threshold), f"{prefix}_unsure")

    def any(self, flags: str, prefix: str) -> str:
        """One truth value for the batch, which an ``If`` can take."""
        numbers = self.add("Cast", (flags,), f"{prefix}_numbers", to=6)  # int32
        return self.add(
            "Cast", (self.add("ReduceMax", (numbers,), f"{prefix}_most", keepdims=0),), f"{prefix}_any", to=9
        )  # bool

    def branch(self, name: str, outputs: Sequence[str]) -> Any:
        """What was added so far as a branch."""
        from onnx import TensorProto, helper

        kinds = (TensorProto.FLOAT, TensorProto.INT64)
        return helper.make_graph(
            self.nodes,
            name,
            [],
            [helper.make_tensor_value_info(output, kind, None) for output, kind in zip(outputs, kinds)],
        )


def export(network: Network) -> bytes:
    """The network as an ONNX model: ``image`` (N, 64) to ``digit`` (N), ``sure`` (N) and ``exit`` (N)."""
    from onnx import TensorProto, checker, helper, numpy_helper

    constants: Dict[str, np.ndarray] = {
        "middle": network.middle,
        "second": network.second,
        "third": network.third,
        "sure_first": np.float32(SURE_FIRST),
        "sure_second": np.float32(SURE_SECOND),
        "count_second": np.float32(1 + len(SECOND)),
        "count_third": np.float32(1 + len(SECOND) + len(THIRD)),
        "rows": np.array([-1, PIXELS], np.int64),
        "per_second": np.array([-1, len(SECOND), 10], np.int64),
        "per_third": np.array([-1, len(THIRD), 10], np.int64),
        "axis_1": np.array([1], np.int64),
        "one": np.array(1, np.int64),
    }
    for index, (weights, biases) in enumerate(network.layers):
        constants[f"weights_{index}"], constants[f"biases_{index}"] = weights, biases
    graph = Graph()
    first = graph.look("image", "first")
    unsure = graph.unsure(first, "sure_first", "first")
    graph.nodes.append(
        helper.make_node(
            "If",
            [graph.any(unsure, "first")],
            ["probabilities", "exit_column"],
            name="if_unsure",
            then_branch=_second_look(),
            else_branch=_as_it_is("first_look", unsure, "at_first"),
        )
    )
    graph.add("ArgMax", ("probabilities",), "digit", axis=1, keepdims=0)
    graph.add("ReduceMax", ("probabilities",), "sure", axes=[1], keepdims=0)
    graph.add("Squeeze", ("exit_column", "axis_1"), "exit")
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "digits",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", PIXELS])],
            [
                helper.make_tensor_value_info("digit", TensorProto.INT64, ["N"]),
                helper.make_tensor_value_info("sure", TensorProto.FLOAT, ["N"]),
                helper.make_tensor_value_info("exit", TensorProto.INT64, ["N"]),
            ],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )  # what onnxruntime 1.16 reads
    checker.check_model(model)
    serialised: bytes = model.SerializeToString()
    return serialised


def _second_look() -> Any:
    """Seven more views; the sure digits keep their answer; a third look when any is still unsure."""
    from onnx import helper

    graph = Graph()
    total = graph.add("Add", ("first_look", graph.looks("second", "second")), "second_sum")
    mean = graph.add("Div", (total, "count_second"), "second_mean")
    still = graph.add("And", ("first_unsure", graph.unsure(mean, "sure_second", "second")), "still_unsure")
    kept = graph.add("Where", ("first_unsure", mean, "first_look"), "second_answer")
    graph.add("Add", (graph.add("Cast", ("first_unsure",), "first_more", to=7), "one"), "second_exit")
    graph.nodes.append(
        helper.make_node(
            "If",
            [graph.any(still, "still")],
            ["second_out", "second_out_exit"],
            name="if_still_unsure",
            then_branch=_third_look(),
            else_branch=_kept(kept, "second_exit", "at_second"),
        )
    )
    return graph.branch("second_look", ("second_out", "second_out_exit"))


def _third_look() -> Any:
    """Twenty-four more views."""
    graph = Graph()
    total = graph.add("Add", ("second_sum", graph.looks("third", "third")), "third_sum")
    mean = graph.add("Div", (total, "count_third"), "third_mean")
    answer = graph.add("Where", ("still_unsure", mean, "second_answer"), "third_answer")
    exits = graph.add("Add", (graph.add("Cast", ("still_unsure",), "second_more", to=7), "second_exit"), "third_exit")
    return graph.branch("third_look", (answer, exits))


def _as_it_is(probabilities: str, unsure: str, name: str) -> Any:
    """All were sure at first: exit 1 for each."""
    graph = Graph()
    answer = graph.add("Identity", (probabilities,), f"{name}_answer")
    exits = graph.add("Add", (graph.add("Cast", (unsure,), f"{name}_more", to=7), "one"), f"{name}_exit")
    return graph.branch(name, (answer, exits))


def _kept(answer: str, exits: str, name: str) -> Any:
    """No digit needs a third look."""
    graph = Graph()
    return graph.branch(
        name, (graph.add("Identity", (answer,), f"{name}_answer"), graph.add("Identity", (exits,), f"{name}_exit"))
    )


# --- checking ---------------------------------------------------------------------------------------------------------


def session_of(path: str, profile: str = "") -> Any:
    """The model on one thread; with ``profile`` ONNX Runtime writes which nodes ran to a file of that prefix."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(network: Network, path: str) -> Dict[str, Dict[str, float]]:
    """Per kind of digit: how often the first look and the whole network are right on digits that nothing was learnt
    from, the share of each exit, and the largest difference to numpy. ``RuntimeError`` when ONNX Runtime disagrees."""
    images, labels = digits()
    images, labels = images[TUNED:], labels[TUNED:]
    session = session_of(path)
    report = {}
    for name, asked in (("scanned", images), ("photographed", photographed(images, 5))):
        alone = [session.run(None, {"image": image[np.newaxis]}) for image in asked]
        digit, sure, exits = (np.concatenate(parts) for parts in zip(*alone))
        answer, wanted_exits = recognise(network, asked)
        same = exits == wanted_exits
        apart = float(np.abs(answer.max(axis=1) - sure)[same].max())
        if apart > AGREE_MAX or same.mean() < SAME_MIN or (answer.argmax(axis=1) != digit)[same].any():
            raise RuntimeError(
                f"{path}: ONNX Runtime's answers differ from numpy's on {name} digits by up to {apart}, "
                f"its exits in {1 - same.mean():.1%}; at most {AGREE_MAX} and {1 - SAME_MIN:.0%} are "
                "expected: another version of onnxruntime, or an export that is not the network"
            )
        first = look(network, asked).argmax(axis=1)
        report[name] = {
            "right_first_look": float((first == labels).mean()),
            "right": float((digit == labels).mean()),
            **{f"exit_{number}": float((exits == number).mean()) for number in (1, 2, 3)},
            "apart": apart,
        }
    return report


def build(path: str, wide: int = WIDE, seed: int = 1) -> Dict[str, Dict[str, float]]:
    """Learn, export to ``path`` and check; what :func:`check` says."""
    network = learn(wide, seed)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    part = f"{path}.{os.getpid()}.part"  # a server that starts meanwhile never reads half a model
    with open(part, "wb") as file:
        file.write(export(network))
    os.replace(part, path)
    return check(network, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Build, export, check and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="", metavar="DIR", help="directory of exits.onnx (default: the asset cache)")
    parser.add_argument("--wide", type=int, default=WIDE, help=f"width of the hidden layers (default {WIDE})")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    path = os.path.join(args.out, "exits.onnx") if args.out else resolve_path(FILE, "")
    started_s = time.perf_counter()
    report = build(path, args.wide, args.seed)
    print(f"{path}: {os.path.getsize(path) / 1e6:.1f} MB, built and checked in {time.perf_counter() - started_s:.1f} s")
    for name, row in report.items():
        print(
            f"  {name + ' digits':<20} right at the first look {row['right_first_look']:.1%}, in the end "
            f"{row['right']:.1%}; exits {row['exit_1']:.0%} / {row['exit_2']:.0%} / {row['exit_3']:.0%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
