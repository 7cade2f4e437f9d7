"""Nothing of another client in any answer: graphs are drawn, served as ``init`` writes them and as a file by hand says,
and batches of marked items are compared with each item run alone by plain ONNX Runtime. A refusal is right, another
value never is.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
import pytest

from edgeserve.commands import init
from edgeserve.commands.init import trial
from edgeserve.config.loading import load_config
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo, Result, run_batch
from edgeserve.engines.row_check import RowCheck, row_check_of
from edgeserve.errors import ConfigError, EngineError

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import onnxruntime
import trt_worlds
from drawn_graphs import Drawn, draw_graph, drawn_items, save

QUICK, WHOLE = 90, 2000
"""Graphs for each change, and each night."""

HERE = LaneInfo()
SIZES = (1, 2, 4)
ITEMS = 9
STEPS = 2  # of a stream

CLOSE = 2e-3
"""The tolerance relative to the largest value of an output: what kernels of other batch sizes round."""


class Served(NamedTuple):
    """A model as it is served: ``whole`` where its items have the file's first axis."""

    session: Any
    sizes: Tuple[int, ...]
    whole: bool


class Oracle:
    """Plain ONNX Runtime and one item."""

    def __init__(self, graph: Drawn, path: str) -> None:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level, settings.intra_op_num_threads = 4, 1
        self._graph = graph
        self._session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])

    def answers(self, item: Dict[str, Any], steps: int, whole: bool) -> List[Dict[str, Any]]:
        """The outputs of each step of a stream that gets the same item again; nothing where an output has not one row,
        or the model does not run."""
        graph = self._graph
        feeds = {name: value if whole else np.asarray(value)[None] for name, value in item.items()}
        if graph.mask:
            feeds[graph.mask] = np.ones_like(feeds["x"])
        names, found = [port.name for port in self._session.get_outputs()], []
        if graph.state is not None:
            name, after, shape, axis = graph.state
            feeds[name] = np.zeros((*shape[:axis], 1, *shape[axis:]), np.float32)
        for _ in range(steps):
            try:
                outputs = dict(zip(names, self._session.run(None, feeds)))
            except Exception:  # noqa: BLE001 ONNX Runtime raises types of its own
                return []
            if graph.state is not None:
                feeds[name] = outputs.pop(after)
            if not whole and any(np.ndim(value) == 0 or len(value) != 1 for value in outputs.values()):
                return []
            found.append(outputs if whole else {key: value[0] for key, value in outputs.items()})
        return found


def keys_of(graph: Drawn) -> Dict[str, Any]:
    """Written sizes, and the keys that the graph needs."""
    settings: Dict[str, Any] = {"batch": (1,) if graph.fixed else SIZES, "options": {}}
    if graph.state is not None:
        settings["state"] = {graph.state[0]: graph.state[1]}
        settings["options"]["state_axis"] = graph.state[3]
    if graph.pads:
        settings.update(pad={"x": 0.0}, shapes={"x": (6,)})
        settings["options"]["crop_outputs"] = {name: {"axis": 0, "like": "x", "of": 0} for name in graph.crops}
        settings["options"]["mask"] = {"x": graph.mask} if graph.mask else {}
    return settings


@contextlib.contextmanager
def by_hand(graph: Drawn, folder: str) -> Iterator[Served]:
    """The graph with written settings."""
    with opened(graph, ModelConfig("m", "onnx", "m.onnx", **keys_of(graph)), folder) as served:
        yield served


@contextlib.contextmanager
def by_tensorrt(graph: Drawn, folder: str) -> Iterator[Served]:
    """On the double of TensorRT."""
    settings, lane = keys_of(graph), trt_worlds.new_lane()
    shapes = {} if graph.state is None else {graph.state[0]: tuple(graph.state[2])}
    settings["shapes"] = {**settings.get("shapes", {}), **shapes}
    settings["options"].update({"plans": folder}, **({"ranges": {"x": [[1], [6], [6]]}} if graph.pads else {}))
    with pytest.MonkeyPatch.context() as patch, trt_worlds.world(patch, "10.3") as cuda:
        try:
            with opened(graph, ModelConfig("m", "tensorrt", "m.onnx", **settings), folder, lane) as served:
                yield served
        finally:
            trt_worlds.close(lane)
        assert cuda.leaks() == []


@contextlib.contextmanager
def by_init(graph: Drawn, folder: str) -> Iterator[Served]:
    """As ``edgeserve init`` writes it."""
    parser, out = argparse.ArgumentParser(), os.path.join(folder, "edge.toml")
    init.add_arguments(parser)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        arguments = [os.path.join(folder, "m.onnx"), "--here", "--out", out, "--slo", "1s", "--force", "--cpu"]
        init.main(parser.parse_args(arguments))
    with opened(graph, load_config(out).models["m"], folder) as served:
        yield served


@contextlib.contextmanager
def opened(graph: Drawn, model: ModelConfig, folder: str, lane: LaneInfo = HERE) -> Iterator[Served]:
    """As a start opens it: the sizes that keep items apart."""
    engine = make_engine(model, [lane], folder)
    engine.load()
    try:
        session, example = engine.open(lane), engine.example()
        check = row_check_of(model, engine)
        sizes = model.batch
        if check is not None:
            check.begin(session, example)
            for size in check.order():
                check.look(size)
            sizes = check.sizes()
        name, _, shape = graph.inputs[0]
        yield Served(session, sizes, np.ndim(example[name]) > len(shape))
    finally:
        engine.unload()


def wrong_answers(graph: Drawn, served: Served, oracle: Oracle, seed: int) -> Tuple[int, List[str]]:
    """The number of answered items, and the faults of some."""
    items = drawn_items(graph, ITEMS, seed)
    if served.whole:
        rows = 1 if graph.fixed else 3
        items = [
            {name: np.stack([items[place + row][name] for row in range(rows)]) for name in items[0]}
            for place in range(0, ITEMS - rows, rows)
        ]
    steps = STEPS if graph.state is not None else 1
    known = [oracle.answers(item, steps, served.whole) for item in items]
    answered, wrong = 0, []
    for size in served.sizes:
        for count in sorted({size, max(1, size - 1)}):
            for begin in range(0, len(items) - count + 1, count):
                places = range(begin, begin + count)
                states: List[Any] = [None] * count
                for step in range(steps):
                    batch = [items[place] for place in places]
                    try:
                        results, _ = run_batch(served.session, Batch(batch, size, states))
                    except EngineError:
                        break
                    for place, result in zip(places, results):
                        if result.error is None:
                            answered += 1
                            if not graph.chance:
                                wrong += difference(known[place], step, result, f"item {place} in {count} of {size}")
                    if any(result.error is not None for result in results):
                        break
                    states = [result.state for result in results]
    return answered, wrong


def difference(known: Sequence[Dict[str, Any]], step: int, result: Result, where: str) -> List[str]:
    if not known:
        return [f"{where}: it was answered, and alone it has no answer"]
    for name, right in known[step].items():
        got = np.asarray(result.outputs[name])
        largest = float(np.max(np.abs(right), initial=0.0, where=np.isfinite(right)))
        if got.shape != np.shape(right) or not np.allclose(got, right, CLOSE, CLOSE * largest, equal_nan=True):
            return [f"{where}, step {step}: {name} is {got.tolist()}, and alone {np.asarray(right).tolist()}"]
    return []


class Tally(NamedTuple):
    """The counts of a run over several graphs: items that were answered, graphs that were refused, and of the graphs
    that keep items apart how many ran in each size."""

    answered: int
    refused: int
    kept: int
    could: int


def run(seeds: Sequence[int], ways: Sequence[Any], folder: str) -> Tally:
    """Serve each graph in each way. Fails at the first wrong answer, with the seed of its graph."""
    answered = refused = kept = could = 0
    for seed in seeds:
        graph = draw_graph(seed)
        path = os.path.join(folder, "m.onnx")
        save(graph, path)
        oracle = Oracle(graph, path)
        for way in ways:
            known = all(dtype != "text" for _, dtype, _ in graph.inputs)  # which words a model knows no file says
            may_batch = graph.apart and known and not graph.chance and not graph.fixed
            could += may_batch and way is by_hand
            try:
                with way(graph, folder) as served:
                    count, wrong = wrong_answers(graph, served, oracle, seed)
                    assert not wrong, f"graph {seed} ({', '.join(graph.steps)}), {way.__name__}: {wrong[0]}"
                    assert not (graph.chance and served.sizes != (1,) and not graph.state), f"graph {seed}: random"
                    answered += count
                    kept += may_batch and way is by_hand and served.sizes == SIZES
            except (EngineError, ConfigError):
                refused += 1
    return Tally(answered, refused, kept, could)


@pytest.fixture(autouse=True)
def _short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SPEND_NS", 0)


@pytest.mark.parametrize("way", [by_hand, by_init])
def test_no_answer_has_anything_of_another_item(way: Any, tmp_path: Any) -> None:
    tally = run(range(QUICK), [way], str(tmp_path))
    assert tally.answered > 5 * QUICK, f"{tally}: too much was refused to show anything"
    assert tally.refused < QUICK / 2, tally
    assert tally.kept >= 0.9 * tally.could, f"{tally}: models that keep items apart lost their batches"


def test_no_answer_of_tensorrt_has_anything_of_another_item(tmp_path: Any) -> None:
    tally = run(range(QUICK // 3), [by_tensorrt], str(tmp_path))
    assert tally.answered > 5 * QUICK and tally.refused < QUICK / 6, tally


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_two_thousand_graphs_and_no_wrong_answer(part: int, tmp_path: Any) -> None:
    seeds = range(part * WHOLE // 10, (part + 1) * WHOLE // 10)
    tally = run(seeds, [by_hand, by_init], str(tmp_path))
    assert tally.answered > 10 * len(seeds) and tally.kept >= 0.9 * tally.could, tally


def test_it_finds_what_nobody_looks_for(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at the batch sizes there are wrong answers, and these tests see them."""
    monkeypatch.setattr(RowCheck, "look", lambda self, size: "")
    with pytest.raises(AssertionError, match=r"graph \d+ .* and alone"):
        run(range(5, QUICK), [by_hand], str(tmp_path))
