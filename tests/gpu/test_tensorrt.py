"""The ``tensorrt`` engine on a device, held to the contract: a plan is built and run."""

from __future__ import annotations

from typing import Dict, List

import numpy as np
import pytest
from gpu import why_no_tensorrt

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Engine, LaneInfo, Values
from edgeserve.testing.engine_conformance import EngineConformance

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")

import onnx_models


@pytest.mark.skipif(bool(why_no_tensorrt()), reason=why_no_tensorrt() or "there is a device")
class TestTensorrt(EngineConformance):
    name = "vec"
    lane = LaneInfo("cuda", name="gpu0", depth=2)
    tolerance = 1e-2

    def make(self, directory: str) -> Engine:
        model = ModelConfig(name=self.name, engine="tensorrt", batch=self.sizes, file=onnx_models.linear(directory),
                            options={"plans": directory})
        return make_engine(model, [self.lane], directory)

    def items(self, count: int) -> List[Values]:
        random = np.random.default_rng(7)
        return [{"x": random.random(4).astype(np.float32)} for _ in range(count)]

    def wrong_items(self) -> Dict[str, Values]:
        good = self.items(1)[0]["x"]
        return {"wrong name": {"z": good}, "wrong dtype": {"x": good.astype(np.float64)},
                "wrong shape": {"x": good[:3]}, "nothing": {}}
