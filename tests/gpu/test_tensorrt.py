"""The ``tensorrt`` engine on a device, held to the contract: a plan is built and run."""

from __future__ import annotations

from typing import Optional

import onnx_models
import pytest
from gpu import why_no_tensorrt
from vector_items import VectorItems

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Engine, LaneInfo
from edgeserve.testing.engine_conformance import ECHO_SHAPE, ECHO_SIZES, EngineConformance


@pytest.mark.skipif(bool(why_no_tensorrt()), reason=why_no_tensorrt() or "there is a device")
class TestTensorrt(VectorItems, EngineConformance):
    name = "vec"
    lane = LaneInfo("cuda", name="gpu0", depth=2)
    tolerance = 1e-2

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        if (rank, dtype) not in ((0, "float32"), (0, "int32"), (2, "float32")):
            return None  # each builds a plan
        file = onnx_models.echo(directory, dtype, ECHO_SHAPE[:rank], f"echo-{dtype}-{rank}")
        model = ModelConfig("echo", "tensorrt", file=file, batch=ECHO_SIZES, options={"plans": directory})
        return make_engine(model, [self.lane], directory)

    def make(self, directory: str) -> Engine:
        model = ModelConfig(
            name=self.name,
            engine="tensorrt",
            batch=self.sizes,
            file=onnx_models.linear(directory),
            options={"plans": directory},
        )
        return make_engine(model, [self.lane], directory)
