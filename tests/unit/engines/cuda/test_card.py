"""The GPU that a profile was measured on, by the driver's own words."""

from __future__ import annotations

import pytest
from cuda_double import CudaDouble

from edgeserve.config.loading import parse_config
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import versions
from edgeserve.engines.cuda import card as module
from edgeserve.errors import DeviceMissing

EDGE = {
    "device": {"gpu": {"kind": "cuda"}, "cpu": {}},
    "lane": {"gpu0": {"device": "gpu"}, "cpu0": {"device": "cpu"}},
    "model": {"m": {"engine": "synthetic", "lanes": ["cpu0"], "expected": {"1": "1ms"}}},
    "app": {"a": {"model": "m", "slo": "1s"}},
}

ORIN = {"COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 7, "MULTIPROCESSOR_COUNT": 16}


def test_a_lanes_gpu_is_told_by_name_capability_and_driver(monkeypatch, tmp_path):
    double = CudaDouble(attributes=ORIN)
    monkeypatch.setattr(module, "open_driver", lambda: double)
    cards = module.cards_of(parse_config(EDGE))
    assert list(cards) == ["gpu0"]
    assert cards["gpu0"]["compute_capability"] == "8.7"
    assert cards["gpu0"]["name"] == double.device_name(0)
    smaller = CudaDouble(attributes={**ORIN, "MULTIPROCESSOR_COUNT": 4})
    monkeypatch.setattr(module, "open_driver", lambda: smaller)
    assert module.card(0) != cards["gpu0"], "every Orin is named alike, and has the same capability"
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:16:18 UTC 2025\n")
    assert module.card(0, str(tmp_path))["driver"] == "580.65.06"
    assert module.card(0, str(tmp_path / "board"))["driver"].startswith("CUDA ")


def test_without_a_library_nothing_is_told(monkeypatch):
    def missing():
        raise DeviceMissing("no library")

    monkeypatch.setattr(module, "open_driver", missing)
    assert module.cards_of(parse_config(EDGE)) == {}


@pytest.mark.parametrize(
    ("engine", "file", "libraries"),
    [
        ("lm", "m/config.json", {"torch", "transformers"}),
        ("lm", "m.gguf", {"llama-cpp-python"}),
        ("lm", "m.onnx", {"onnxruntime"}),
        ("sentence", "m.gguf", {"llama-cpp-python"}),
        ("sentence", "m.onnx", {"onnxruntime"}),
        ("whisper", "model.bin", {"ctranslate2"}),
    ],
)
def test_the_libraries_of_a_language_model_are_those_of_its_back_end(monkeypatch, engine, file, libraries):
    monkeypatch.setattr(versions, "installed", lambda names: dict.fromkeys(names, "1.0"))
    found = versions.engine_versions(ModelConfig("m", engine, file=file))
    assert set(found) - {"edgeserve", "python", "numpy"} == libraries
