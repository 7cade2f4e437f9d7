"""The ``tensorrt`` engine held to the contract, on the recording double of TensorRT and CUDA: its own code, each
version's names, real results. Nothing here says how fast it is."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional

import numpy as np
import onnx_models
import pytest
import trt_worlds
from vector_items import LengthItems, VectorItems

from edgeserve.engines.base import Engine, LaneInfo, Values
from edgeserve.testing.engine_conformance import ECHO_SHAPE, ECHO_SIZES, EngineConformance

LANES = 4  # that a test opens at most: before TensorRT 8.6 each needs a copy of the profiles
ILLEGAL_ADDRESS = 700
ECHO_DTYPES = ("bool", "int32", "int64", "float16", "float32")


class OnTheDouble(VectorItems, EngineConformance):
    """Base of the classes below: one input ``x`` of four floats."""

    name = "vec"
    lane = LaneInfo("cuda", depth=2)
    version = "10.3"
    cuda_settings: Dict[str, Any] = {}
    options: Dict[str, Any] = {}

    @pytest.fixture(autouse=True)
    def cuda(self, monkeypatch: Any) -> Iterator[Any]:
        with trt_worlds.world(monkeypatch, self.version, **self.cuda_settings) as cuda:
            self._cuda = cuda
            yield cuda
            assert not cuda.contexts, "execution contexts are left after unload"

    def make(self, directory: str) -> Engine:
        return self.built(directory, onnx_models.linear(directory))

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        """Asked once for each engine and not for each model."""
        return None

    def built(self, directory: str, file: str, **settings: Any) -> Engine:
        options = {**self.options, **settings.pop("options", {})}
        return trt_worlds.made(
            directory, file, lanes=LANES, name=self.name, batch=self.sizes, options=options, **settings
        )

    def make_lost(self, directory: str) -> Optional[Engine]:
        engine = self.make(directory)
        opened = engine.open

        def open_and_lose(lane: LaneInfo) -> Any:
            session = opened(lane)
            self._cuda.lost = ILLEGAL_ADDRESS
            return session

        engine.open = open_and_lose  # type: ignore[method-assign]
        return engine


class TestTensorrt85(OnTheDouble):
    version = "8.5"


@pytest.mark.nightly  # between two that are tested each time
class TestTensorrt86(OnTheDouble):
    version = "8.6"


@pytest.mark.nightly  # between two that are tested each time
class TestTensorrt100(OnTheDouble):
    version = "10.0"


class TestTensorrt103(OnTheDouble):
    version = "10.3"

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        if dtype not in ECHO_DTYPES:
            return None  # TensorRT has no such tensors
        file = onnx_models.echo(directory, dtype, ECHO_SHAPE[:rank], f"echo-{dtype}-{rank}")
        return trt_worlds.made(directory, file, lanes=LANES, name="echo", batch=ECHO_SIZES)


@pytest.mark.nightly  # between two that are tested each time
class TestTensorrt1016(OnTheDouble):
    version = "10.16"


class TestTensorrt114(OnTheDouble):
    version = "11.4"


class TestTensorrtRtx(OnTheDouble):
    version = "rtx"


class TestIntegratedGpu(OnTheDouble):
    """Mapped memory: no copies."""

    cuda_settings = {"attributes": {"INTEGRATED": 1}}


class TestWithoutGraphs(OnTheDouble):
    options = {"graph": False}


@pytest.mark.nightly
class TestFixedBatchOfFour(OnTheDouble):
    def make(self, directory: str) -> Engine:
        return self.built(directory, onnx_models.linear(directory, batch=4))


@pytest.mark.nightly
class TestWithoutABatchOfOne(OnTheDouble):
    sizes = (2, 4)


@pytest.mark.nightly
class TestDeepLane(OnTheDouble):
    lane = LaneInfo("cuda", depth=4)


class TestLengths(LengthItems, OnTheDouble):
    """Items of different lengths in one batch: open axes with ranges, padding and a mask."""

    name = "mean"

    def make(self, directory: str) -> Engine:
        return self.built(
            directory,
            onnx_models.masked_mean(directory),
            shapes={"x": (8,)},
            pad={"x": 0.0},
            options={"mask": {"x": "x_mask"}, "pad_multiple": {"x": [8]}, "ranges": {"x": [[1], [8], [24]]}},
        )

    def wrong_items(self) -> Dict[str, Values]:
        return {**super().wrong_items(), "too long": {"x": np.ones(25, np.float32)}}


class TestState(OnTheDouble):
    stateful = True

    def make(self, directory: str) -> Engine:
        return self.built(
            directory,
            onnx_models.recurrent(directory),
            state={"state": "stateN"},
            shapes={"state": (2, 4)},
            options={"state_axis": 1, "constants": {"rate": 16000}},
        )


class TestNumbers85(OnTheDouble):
    """int64 inputs, which TensorRT 8 computes as int32."""

    name = "table"
    version = "8.5"

    def make(self, directory: str) -> Engine:
        return self.built(directory, onnx_models.lookup(directory), shapes={"ids": (3,)})

    def items(self, count: int) -> List[Values]:
        return [{"ids": np.array([index, index + 1, 15], np.int64)} for index in range(count)]

    def wrong_items(self) -> Dict[str, Values]:
        return {
            "wrong name": {"x": np.zeros(3, np.int64)},
            "wrong dtype": {"ids": np.zeros(3, np.float32)},
            "wrong length": {"ids": np.zeros(4, np.int64)},
        }


class TestNumbers103(TestNumbers85):
    version = "10.3"


def test_every_version_of_the_table_is_held_to_the_contract_or_stands_between_two_that_are() -> None:
    held = {cls.version for cls in OnTheDouble.__subclasses__()}
    assert {"8.5", "8.6", "10.0", "10.3", "10.16", "11.4", "rtx"} <= held
