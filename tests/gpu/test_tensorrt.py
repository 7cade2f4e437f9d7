"""The ``tensorrt`` engine on a device, held to the contract: a plan is built and run."""

from __future__ import annotations

import pytest
from gpu import why_no_tensorrt
from vector_items import VectorItems

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Engine, LaneInfo
from edgeserve.testing.engine_conformance import EngineConformance

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")

import onnx_models


@pytest.mark.skipif(bool(why_no_tensorrt()), reason=why_no_tensorrt() or "there is a device")
class TestTensorrt(VectorItems, EngineConformance):
    name = "vec"
    lane = LaneInfo("cuda", name="gpu0", depth=2)
    tolerance = 1e-2

    def make(self, directory: str) -> Engine:
        model = ModelConfig(
            name=self.name,
            engine="tensorrt",
            batch=self.sizes,
            file=onnx_models.linear(directory),
            options={"plans": directory},
        )
        return make_engine(model, [self.lane], directory)
