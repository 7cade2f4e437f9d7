"""Every engine that ships with EdgeServe, held to the contract."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np
import onnx_models
import pytest
from vector_items import ONNX_STATE, LengthItems, VectorItems, VectorModel

from edgeserve.config.files import resolve_path
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Engine, LaneInfo, Values
from edgeserve.testing.engine_conformance import ECHO_SHAPE, ECHO_SIZES, POISONS, EngineConformance

FUNCTIONS = """
import numpy as np

def scale(inputs):
    x = inputs["x"]
    if x.shape != (4,) or x.dtype != np.float32:
        raise ValueError(f"x is {x.dtype} {x.shape}, expected float32 (4,)")
    return {"y": x * 2}

def scale_all(items):
    return [caught(item) for item in items]

def caught(item):
    try:
        return scale(item)
    except Exception as error:
        return error

def echo(inputs):
    return {"y": inputs["x"]}

def echo_all(items):
    return [echo(item) for item in items]

def count_up(inputs, state):
    total = scale(inputs)["y"] + (0 if state is None else state["total"])
    return {"y": total}, {"total": total}

def example():
    return {"x": np.ones(4, np.float32)}
"""


def onnx_echo(directory: str, rank: int, dtype: str, lanes: Sequence[LaneInfo], **options: Any) -> Engine:
    file = onnx_models.echo(directory, dtype, ECHO_SHAPE[:rank])
    model = ModelConfig("echo", engine="onnx", file=file, batch=ECHO_SIZES, options=options)
    return make_engine(model, lanes, directory)


class TestOnnx(VectorModel):
    def make(self, directory: str) -> Engine:
        return self.built(directory, engine="onnx", file=onnx_models.linear(directory))

    def make_echo(self, directory: str, rank: int, dtype: str) -> Engine:
        return onnx_echo(directory, rank, dtype, [self.lane])


class TestOnnxUnpadded(VectorModel):
    def make(self, directory: str) -> Engine:
        return self.built(directory, engine="onnx", file=onnx_models.linear(directory), options={"pad_batch": False})

    def make_echo(self, directory: str, rank: int, dtype: str) -> Engine:
        return onnx_echo(directory, rank, dtype, [self.lane], pad_batch=False)


class TestOnnxFixedBatchOfOne(VectorModel):
    sizes = (1,)

    def make(self, directory: str) -> Engine:
        return self.built(directory, engine="onnx", file=onnx_models.linear(directory, batch=1))


class TestOnnxWithoutABatchOfOne(VectorModel):
    sizes = (2, 4)

    def make(self, directory: str) -> Engine:
        return self.built(directory, engine="onnx", file=onnx_models.linear(directory))


class TestOnnxFixedBatchOfFour(VectorModel):
    def make(self, directory: str) -> Engine:
        return self.built(directory, engine="onnx", file=onnx_models.linear(directory, batch=4))


class TestOnnxTwoThreads(VectorModel):
    lane = LaneInfo(threads=2, cores=(0, 1))

    def make(self, directory: str) -> Engine:
        return self.built(directory, engine="onnx", file=onnx_models.linear(directory))


class TestOnnxLengths(LengthItems, EngineConformance):
    """Items of different lengths in one batch: padded, masked, and each gets its own answer."""

    name = "mean"

    def make(self, directory: str) -> Engine:
        model = ModelConfig(
            name=self.name,
            engine="onnx",
            file=onnx_models.masked_mean(directory),
            batch=self.sizes,
            shapes={"x": (8,)},
            pad={"x": 0.0},
            options={"mask": {"x": "x_mask"}, "pad_multiple": {"x": [8]}},
        )
        return make_engine(model, [self.lane], directory)


class TestOnnxState(VectorModel):
    stateful = True

    def make(self, directory: str) -> Engine:
        return self.built(directory, engine="onnx", file=onnx_models.recurrent(directory), **ONNX_STATE)


VOICE = "cache:silero-vad-6.2.3/silero_vad.onnx"


@pytest.mark.skipif(
    not os.path.isfile(resolve_path(VOICE, ".")),
    reason="silero-vad is not in the asset cache; python -m edgeserve.commands.assets "
    "examples/reader/assets.toml fetches it",
)
class TestOnnxVoiceDetector(EngineConformance):
    """A real recurrent model: silero-vad, a constant sample rate, a state whose batch axis is 1."""

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        return None

    name = "voice"
    sizes = (1, 2, 4, 8)
    stateful = True

    def make(self, directory: str) -> Engine:
        model = ModelConfig(
            name=self.name,
            engine="onnx",
            file=VOICE,
            batch=self.sizes,
            state={"state": "stateN"},
            options={"constants": {"sr": 16000}, "state_axis": 1},
            shapes={"input": (576,), "state": (2, 128)},
        )
        return make_engine(model, [self.lane], directory)

    def items(self, count: int) -> List[Values]:
        random = np.random.default_rng(7)
        return [{"input": (random.random(576) - 0.5).astype(np.float32)} for _ in range(count)]

    def wrong_items(self) -> Dict[str, Values]:
        sound = self.items(1)[0]["input"]
        return {
            "wrong name": {"sound": sound},
            "wrong dtype": {"input": (sound * 32767).astype(np.int16)},
            "wrong rank": {"input": sound[None]},
            "its own rate": {"input": sound, "sr": np.int64(8000)},
        }


class PythonModel(VectorModel):
    def functions(self, directory: str) -> None:
        with open(os.path.join(directory, "conformance_functions.py"), "w", encoding="utf-8") as file:
            file.write(FUNCTIONS)

    def host(self, directory: str, function: str, **options: Any) -> Engine:
        self.functions(directory)
        return self.built(
            directory,
            engine="python",
            function=f"conformance_functions:{function}",
            options={"example": "conformance_functions:example", **options},
        )


class TestPython(PythonModel):
    def make(self, directory: str) -> Engine:
        return self.host(directory, "scale")

    def make_echo(self, directory: str, rank: int, dtype: str) -> Engine:
        return self.host(directory, "echo")


class TestPythonBatched(PythonModel):
    poisons = POISONS  # its function catches Exception: a batched one looks after its items itself

    def make(self, directory: str) -> Engine:
        return self.host(directory, "scale_all", batched=True)

    def make_echo(self, directory: str, rank: int, dtype: str) -> Engine:
        return self.host(directory, "echo_all", batched=True)


class TestPythonState(PythonModel):
    stateful = True

    def make(self, directory: str) -> Engine:
        return self.host(directory, "count_up", stateful=True)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine in one process for the tests that do not end it."""
    engine = TestPythonInItsOwnProcess().make(str(tmp_path_factory.mktemp("started")))
    yield engine
    engine.unload()


class TestPythonInItsOwnProcess(PythonModel):
    stateful = True

    @pytest.fixture
    def engine(self, started: Engine) -> Engine:
        started.load()
        return started

    def make(self, directory: str) -> Engine:
        return self.host(directory, "count_up", stateful=True, process=True, process_timeout="20s")

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        if dtype not in ("float32", "text") or rank > 1:
            return None  # each starts a process
        return self.host(directory, "echo", process=True, process_timeout="20s")


class TestSynthetic(VectorModel):
    def make(self, directory: str) -> Engine:
        return self.built(directory, engine="synthetic", shapes={"x": (4,)}, options={"c0": "100us", "c1": "10us"})

    def wrong_items(self) -> Dict[str, Values]:
        wrong = VectorItems().wrong_items()
        wrong["wrong dtype"] = {"x": np.array(["a", "b", "c", "d"])}  # it computes nothing: any number will do
        return wrong


class TestSyntheticSequences(TestSynthetic):
    def make(self, directory: str) -> Engine:
        return self.built(
            directory,
            engine="synthetic",
            shapes={"x": (4,)},
            options={"c0": "100us", "sequence": {"bytes_per_token": 16}},
        )

    def items(self, count: int) -> List[Values]:
        return [{**item, "steps": np.int64(4 + index)} for index, item in enumerate(super().items(count))]


class TestSyntheticDevice(TestSynthetic):
    """A device that works by itself: packing on the lane's thread, batches one after the other on the device."""

    options = {"c0": "2ms", "c1": "10us", "pack": "300us", "variants": {"half": 0.5}}

    def make(self, directory: str) -> Engine:
        return self.built(directory, engine="synthetic", shapes={"x": (4,)}, options=self.options)

    def make_lost(self, directory: str) -> Engine:
        return self.built(directory, engine="synthetic", shapes={"x": (4,)}, options={**self.options, "lost_at": 1})
