"""The ``onnx`` engine on ONNX Runtime's CUDA and TensorRT providers, held to the contract."""

from __future__ import annotations

import onnx_models
import pytest
from gpu import why_no_onnxruntime
from vector_items import ONNX_STATE, VectorModel

from edgeserve.engines.base import Engine, LaneInfo

TENSORRT = why_no_onnxruntime("TensorrtExecutionProvider")


class OnCuda(VectorModel):
    lane = LaneInfo("cuda", name="gpu0", depth=2)
    tolerance = 1e-3  # TF32 is on in ONNX Runtime's CUDA provider
    settings = {"engine": "onnx"}


@pytest.mark.skipif(bool(why_no_onnxruntime()), reason=why_no_onnxruntime() or "there is a device")
class TestCuda(OnCuda):
    def make(self, directory: str) -> Engine:
        return self.built(directory, file=onnx_models.linear(directory))


@pytest.mark.skipif(bool(why_no_onnxruntime()), reason=why_no_onnxruntime() or "there is a device")
class TestCudaWithoutBinding(OnCuda):
    def make(self, directory: str) -> Engine:
        return self.built(directory, file=onnx_models.linear(directory), options={"cuda": "none"})


@pytest.mark.skipif(bool(why_no_onnxruntime()), reason=why_no_onnxruntime() or "there is a device")
class TestCudaState(OnCuda):
    stateful = True

    def make(self, directory: str) -> Engine:
        return self.built(directory, file=onnx_models.recurrent(directory), **ONNX_STATE)


@pytest.mark.skipif(bool(TENSORRT), reason=TENSORRT or "there is a device")
class TestTensorrtProvider(OnCuda):
    def make(self, directory: str) -> Engine:
        return self.built(directory, file=onnx_models.linear(directory), options={"providers": ["tensorrt", "cuda"]})
