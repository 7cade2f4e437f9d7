"""The ``torch`` engine held to the contract, on the CPU: modules, exported programs, TorchScript."""

from __future__ import annotations

from typing import Optional

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Engine, LaneInfo
from edgeserve.testing.engine_conformance import ECHO_SHAPE, ECHO_SIZES, EngineConformance

pytest.importorskip("torch", reason="torch is not installed; make test-torch")

import torch
import torch_models
from vector_items import TORCH_STATE, LengthItems, VectorModel

from edgeserve.engines.torch.programs import TORCH_OF


class TorchModel(VectorModel):
    settings = {"engine": "torch", "shapes": {"x": (4,)}, "function": "torch_models:Linear"}


class TestModule(TorchModel):
    settings = {**TorchModel.settings, "options": {"arguments": {"scale": 0.5}}}

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        if dtype == "text" or np.dtype(dtype) not in TORCH_OF:
            return None  # torch has no such tensors
        shape = list(ECHO_SHAPE[:rank])
        options = {"outputs": ["y"], "inputs": {"x": {"dtype": dtype, "shape": shape}}}
        shapes = {"x": tuple(shape)}
        model = ModelConfig(
            "echo", "torch", function="torch_models:Identity", batch=ECHO_SIZES, shapes=shapes, options=options
        )
        return make_engine(model, [self.lane], directory)


class TestModuleTwoThreads(TorchModel):
    lane = LaneInfo(threads=2, cores=(0, 1))


class TestModuleInHalfPrecision(TorchModel):
    tolerance = 1e-2
    settings = {**TorchModel.settings, "options": {"precision": "bfloat16"}}


class TestModuleThatWritesToItsInput(TorchModel):
    settings = {**TorchModel.settings, "function": "torch_models:InPlace"}


class TestModuleThatReturnsOneBuffer(TorchModel):
    lane = LaneInfo(depth=1)
    settings = {**TorchModel.settings, "function": "torch_models:OneBuffer"}

    def test_two_threads_at_once(self, engine: Engine) -> None:
        pytest.skip("this module keeps a buffer between calls, so two lanes cannot share it (docs/guide/torch.md)")


class TestModuleThatReturnsItsInput(TorchModel):
    sizes = (1, 2)
    settings = {**TorchModel.settings, "function": "torch_models:Identity"}


class TestExported(TorchModel):
    def make(self, directory: str) -> Engine:
        file = torch_models.exported(directory, torch_models.Linear(), (torch.ones(2, 4),))
        return self.built(directory, function="", file=file)


class TestExportedFixedBatchOfFour(TorchModel):
    def make(self, directory: str) -> Engine:
        program = torch.export.export(torch_models.Linear(), (torch.ones(4, 4),))
        torch.export.save(program, f"{directory}/net.pt2")
        return self.built(directory, function="", file="net.pt2")


class TestTorchScript(TorchModel):
    def make(self, directory: str) -> Engine:
        return self.built(directory, function="", file=torch_models.scripted(directory, torch_models.Linear()))


class TestTorchScriptState(TorchModel):
    stateful = True

    def make(self, directory: str) -> Engine:
        file = torch_models.scripted(directory, torch_models.Recurrent())
        return self.built(directory, **TORCH_STATE, function="", file=file)


class TestModuleState(TorchModel):
    stateful = True
    settings = {"engine": "torch", "function": "torch_models:Recurrent", **TORCH_STATE}


class TestModuleLengths(LengthItems, EngineConformance):
    """Items of different lengths in one batch: padded, masked, and each gets its own answer."""

    name = "mean"

    def make(self, directory: str) -> Engine:
        model = ModelConfig(
            name=self.name,
            engine="torch",
            function="torch_models:MaskedMean",
            batch=self.sizes,
            shapes={"x": (8,)},
            pad={"x": 0.0},
            options={
                "mask": {"x": "x_mask"},
                "pad_multiple": {"x": [8]},
                "outputs": ["y"],
                "inputs": {"x": {"shape": [-1]}},
            },
        )
        return make_engine(model, [self.lane], directory)
