"""Few lengths for padded axes: the same answers, fewer shapes, and what a model makes of it is said."""

from __future__ import annotations

import contextlib
import logging
import random

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo, run_batch
from edgeserve.engines.rounding import beyond, rounded
from edgeserve.engines.row_check import row_check_of
from edgeserve.errors import ConfigError, EngineError

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import onnx_models
import trt_worlds
from cuda_double import CudaDouble
from for_each import for_each
from onnx import TensorProto, helper
from onnx_double import OnnxDouble

SIZES = (1, 2, 4)
LENGTH_MAX = 24
WAYS = (1, 5, 32, (8, 16, 24), (6,), (100,), (3, 7, 24, 60))


@for_each(lambda: range(300))
def test_a_length_is_rounded_up_to_no_more_than_is_taken(seed):
    draw = random.Random(seed)
    to = draw.choice((draw.randint(1, 40), tuple(sorted({draw.randint(1, 60) for _ in range(4)}))))
    most, length = draw.choice((0, draw.randint(1, 80))), draw.randint(1, 90)
    found = rounded(length, to, most)
    assert found >= length and rounded(found, to, most) == found
    assert not most or found <= max(most, length)
    assert rounded(length + 1, to, most) >= found
    (longer,) = beyond((length,), (to,), (most,) if most else ())
    assert longer == length or (rounded(longer, to, most) > found and (not most or longer <= most))


@contextlib.contextmanager
def opened(way, folder, monkeypatch, **settings):
    """An engine with its session, by the kind of device."""
    settings = {"pad": {"x": 0.0}, "shapes": {"x": (8,)}, **settings}
    if way == "tensorrt":
        options = {**settings.pop("options"), "ranges": {"x": [[1], [8], [LENGTH_MAX]]}}
        with trt_worlds.loaded(monkeypatch, folder, batch=SIZES, options=options, **settings) as (
            _,
            _,
            engine,
            session,
        ):
            yield engine, session
        return
    lane = LaneInfo("cuda", name="gpu0", depth=2, common={}, clock_ns=lambda: 0) if way == "cuda" else LaneInfo()
    if way == "cuda":
        OnnxDouble(CudaDouble()).installed(monkeypatch)
    engine = make_engine(ModelConfig("m", "onnx", batch=SIZES, **settings), [lane], folder)
    engine.load()
    try:
        yield engine, engine.open(lane)
    finally:
        engine.unload()


@pytest.mark.parametrize("to", WAYS, ids=str)
@pytest.mark.parametrize("way", ["cpu", "cuda", "tensorrt"])
def test_answers_are_those_of_the_items_own_lengths(way, to, tmp_path, monkeypatch):
    draw = np.random.RandomState(3)
    options = {"mask": {"x": "x_mask"}, "pad_multiple": {"x": [list(to) if isinstance(to, tuple) else to]}}
    file = onnx_models.masked_mean(str(tmp_path))
    with opened(way, str(tmp_path), monkeypatch, file=file, options=options) as (_, session):
        for _ in range(40):
            size = SIZES[draw.randint(3)]
            items = [draw.uniform(-1, 1, draw.randint(1, LENGTH_MAX + 1)).astype(np.float32) for _ in range(size)]
            results, _ = run_batch(session, Batch([{"x": item} for item in items], size))
            for item, result in zip(items, results):
                assert result.error is None, result.error
                assert result.outputs["y"] == pytest.approx(item.mean(), abs=1e-5)


def test_graphs_are_used_again_where_lengths_are_few(tmp_path, monkeypatch):
    draw, replayed = random.Random(5), {}
    file = onnx_models.masked_mean(str(tmp_path))
    lengths = [draw.randint(1, LENGTH_MAX) for _ in range(120)]
    for to in (1, [8, 16, 24]):
        options = {"mask": {"x": "x_mask"}, "pad_multiple": {"x": [to]}}
        with opened("tensorrt", str(tmp_path), monkeypatch, file=file, options=options) as (engine, session):
            for length in lengths:
                run_batch(session, Batch([{"x": np.ones(length, np.float32)}], 1))
            replayed[str(to)] = engine.figures()["graphs"]["replayed"]
    assert replayed["1"] == 0 and replayed["[8, 16, 24]"] > 80


def mean(folder):
    """Over what fills up, too."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)]
    return onnx_models.save(
        folder, "mean", nodes, [("x", TensorProto.FLOAT, ["B", "L"])], [("y", TensorProto.FLOAT, ["B"])]
    )


@pytest.mark.parametrize("way", ["cpu", "tensorrt"])
@pytest.mark.parametrize(("masked", "sizes"), [(True, SIZES), (False, (1,))])
def test_a_model_that_sees_what_fills_up_is_found_out_though_short_items_are_all_as_long(
    way, masked, sizes, tmp_path, monkeypatch, caplog
):
    options = {"pad_multiple": {"x": [12]}, **({"mask": {"x": "x_mask"}} if masked else {})}
    file = (onnx_models.masked_mean if masked else mean)(str(tmp_path))
    with opened(way, str(tmp_path), monkeypatch, file=file, options=options) as (engine, session):
        settings = {"batch": SIZES, "shapes": {"x": (8,)}, "pad": {"x": 0.0}, "options": options}
        check = row_check_of(ModelConfig("m", "onnx", file=file, **settings), engine)
        with caplog.at_level(logging.WARNING, "edgeserve"):
            check.begin(session, engine.example())
        for size in check.order():
            check.look(size)
        assert check.sizes() == sizes
    said = [record.message for record in caplog.records if "pad_multiple" in record.message]
    assert bool(said) != masked and all("model m:" in line and "'y' differs by" in line for line in said)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pad": {}, "options": {"pad_multiple": {"x": [8]}}}, "pad_multiple names 'x', whose items are not padded"),
        (
            {"options": {"pad_multiple": {"x": [8, 8]}}},
            r"pad_multiple.x = \[8, 8\] has 2 values, and an item has 1 axes",
        ),
        (
            {"options": {"pad_multiple": {"x": [[0, 8]]}}},
            r"pad_multiple.x\[0\]\[0\] = 0: expected a whole number from 1",
        ),
    ],
)
def test_roundings_that_would_be_ignored_or_fail_later_are_refused(settings, said, tmp_path, monkeypatch):
    with pytest.raises((EngineError, ConfigError), match=said):
        with opened("cpu", str(tmp_path), monkeypatch, file=mean(str(tmp_path)), **settings):
            pass
