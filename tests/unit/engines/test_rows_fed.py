"""Rows of an output are handed out only where there are exactly as many as were fed: else an item would get another's.

A batch of marked items goes through models whose outputs have more rows, fewer, or none: each engine refuses them all.
"""

from __future__ import annotations

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Engine, Footprint, LaneInfo, Result, run_batch
from edgeserve.engines.lm.backend import TokenRow, in_groups
from edgeserve.errors import EngineError, WrongRows

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import onnx_models
import trt_worlds
from cuda_double import CudaDouble
from onnx_double import OnnxDouble

SIZES = (1, 2, 4)


def items(count):
    return [{"x": np.full(4, 1.0 + place, np.float32)} for place in range(count)]


def refused(session, count, size):
    with pytest.raises(WrongRows, match="model 'm'.*'y'.*options.batch_axis = false"):
        run_batch(session, Batch(items(count), size))


@pytest.mark.parametrize("rows", sorted(onnx_models.ROWS))
@pytest.mark.parametrize(("pads", "process"), [(True, False), (False, False), (True, True)])
def test_onnx_outputs_of_another_number_of_rows_are_refused(rows, pads, process, tmp_path):
    file = onnx_models.rows(str(tmp_path), rows)
    options = {"pad_batch": pads, **({"process": True} if process else {})}
    engine = make_engine(ModelConfig("m", "onnx", file, batch=SIZES, options=options), [LaneInfo()], str(tmp_path))
    engine.load()
    try:
        session = engine.open(LaneInfo())
        for count, size in ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4)):
            fed = size if pads else count
            if onnx_models.ROWS[rows](fed) == fed:
                assert len(run_batch(session, Batch(items(count), size))[0]) == count
            else:
                refused(session, count, size)
    finally:
        engine.unload()


@pytest.mark.parametrize("rows", ["three", "one"])
def test_on_a_gpu_provider_too(rows, tmp_path, monkeypatch):
    lane = LaneInfo("cuda", name="gpu0", depth=1, common={}, clock_ns=lambda: 0)
    OnnxDouble(CudaDouble()).installed(monkeypatch)
    file = onnx_models.rows(str(tmp_path), rows)
    engine = make_engine(ModelConfig("m", "onnx", file, batch=SIZES), [lane], str(tmp_path))
    engine.load()
    refused(engine.open(lane), 2, 2)


def test_tensorrt_too(tmp_path, monkeypatch):
    file = onnx_models.rows(str(tmp_path), "twice")
    with trt_worlds.loaded(monkeypatch, str(tmp_path), file, batch=SIZES) as (_, _, _, session):
        refused(session, 2, 2)
        refused(session, 3, 4)


@pytest.mark.parametrize("more", [1, -1])
def test_a_step_of_sequences_with_more_scores_than_rows_is_refused(more):
    rows = [TokenRow(slot, [1], 0) for slot in range(3)]
    with pytest.raises(WrongRows, match=f"a step of several sequences returned {3 + more} for 3 items"):
        in_groups(rows, lambda row: 0, lambda group: np.zeros((len(group) + more, 5), np.float32))


class Miscounts(Engine):
    """Returns one result more than it was asked for."""

    def load(self):
        return Footprint(1)

    def unload(self):
        pass

    def run(self, batch):
        return [Result({}) for _ in range(len(batch.items) + 1)]


def test_an_engine_of_ones_own_that_miscounts_is_noticed_where_no_scheduler_looks():
    with pytest.raises(EngineError, match="a batch returned 3 for 2 items"):
        run_batch(Miscounts().open(LaneInfo()), Batch(items(2), 2))
