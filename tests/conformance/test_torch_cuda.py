"""The ``torch`` engine's path on CUDA, on the CPU: its own code with streams and events that only count. The same on a
real GPU is in ``tests/gpu``."""

from __future__ import annotations

from typing import Optional

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Engine, LaneInfo, run_batch
from edgeserve.testing.engine_conformance import ECHO_SHAPE, ECHO_SIZES

pytest.importorskip("torch", reason="torch is not installed; make test-torch")

import torch_cuda_double
from vector_items import TORCH_STATE, VectorModel

LANE = LaneInfo("cuda", name="gpu0", depth=2)


class OnCuda(VectorModel):
    lane = LANE
    settings = {"engine": "torch", "function": "torch_models:Linear", "shapes": {"x": (4,)}}

    @pytest.fixture(autouse=True)
    def _double(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch_cuda_double.installed(monkeypatch)


class TestModule(OnCuda):
    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        if dtype not in ("bool", "int64", "float32"):
            return None  # as on the CPU, where all are tried
        shape = list(ECHO_SHAPE[:rank])
        options = {"outputs": ["y"], "inputs": {"x": {"dtype": dtype, "shape": shape}}}
        model = ModelConfig(
            "echo",
            "torch",
            function="torch_models:Identity",
            batch=ECHO_SIZES,
            shapes={"x": tuple(shape)},
            options=options,
        )
        return make_engine(model, [self.lane], directory)


class TestModuleOneAtATime(OnCuda):
    lane = LANE._replace(depth=1)


class TestModuleState(OnCuda):
    stateful = True
    settings = {"engine": "torch", "function": "torch_models:Recurrent", **TORCH_STATE}


@pytest.mark.parametrize(("depth", "waits"), [(1, 0), (2, 2)])
def test_copies_have_streams_of_their_own_where_the_lane_holds_several_batches(tmp_path, monkeypatch, depth, waits):
    torch_cuda_double.installed(monkeypatch)
    lane = LANE._replace(depth=depth, clock_ns=lambda: 1, common={})
    model = ModelConfig("net", "torch", function="torch_models:Linear", shapes={"x": (4,)})
    engine = make_engine(model, [lane], str(tmp_path))
    engine.load()
    session = engine.open(lane)
    run_batch(session, Batch([{"x": np.ones(4, np.float32)}], 1))
    assert len(torch_cuda_double.Stream.waits) == waits  # the network for its inputs, the copy back for the network
    if waits:
        (computing, inward), (outward, computed) = torch_cuda_double.Stream.waits
        assert computing == computed
        assert len({computing, inward, outward}) == 3
