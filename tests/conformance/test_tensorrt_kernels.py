"""The ``tensorrt`` engine beside a library that launches kernels, here as numpy: what ``tests/gpu`` asks of a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx", reason="names of TensorRT's types are read with it; pip install -e '.[test]'")

import trt_on_cuda
from kernel_models import WORLDS, graphs_after_another_shape, memory_of_lives, suite, wrong_answers
from trt_on_cuda import HostGpu

EACH_TIME = ("TestPlain", "TestStreamsBeside", "TestLengths")
"""The others run nightly: ``test_tensorrt.py`` has their settings on a double of TensorRT."""

SUITE = suite(HostGpu)
for name in sorted(set(SUITE) - set(EACH_TIME)):
    SUITE[name].pytestmark = [pytest.mark.nightly]
globals().update(SUITE)


@pytest.fixture
def double(monkeypatch):
    gpu = HostGpu()
    with trt_on_cuda.installed(monkeypatch, gpu):
        yield gpu
    assert gpu.driver.leaks() == []


@pytest.mark.parametrize("name", WORLDS)
def test_lanes_side_by_side_get_right_answers(double, name, tmp_path):
    assert wrong_answers(str(tmp_path), name, 12) == []


@pytest.mark.nightly
def test_a_model_occupies_what_it_says_and_gives_all_of_it_back(double, tmp_path):
    *lives, after = memory_of_lives(str(tmp_path), double.driver)
    assert after == (0, 0)
    for said, taken in lives:
        assert taken <= said <= taken + 4096


def test_graphs_are_there_again_after_another_shape(double, tmp_path):
    seen = graphs_after_another_shape(str(tmp_path))
    assert seen[0][0] == seen[2][0] > 0
    assert seen[2][1] >= seen[0][1] + 30
