"""The ``tensorrt`` engine's own code on a device without TensorRT: kernels on the streams and memory that it hands over
(``trt_on_cuda.py``). The contract, right answers, CUDA graphs, inputs of torch, a lost device."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gpu import why_no_kernels, why_no_torch

pytest.importorskip("onnx", reason="names of TensorRT's types are read with it; pip install -e '.[test]'")

import trt_on_cuda
import trt_worlds
from kernel_models import (
    WORLDS,
    KernelModel,
    engine_of,
    graphs_after_another_shape,
    memory_of_lives,
    suite,
    wrong_answers,
)
from trt_on_cuda import RealGpu, plan

from edgeserve.engines.base import Batch, run_batch

pytestmark = pytest.mark.skipif(bool(why_no_kernels()), reason=why_no_kernels() or "there is a device")

gpu_here = functools.lru_cache(maxsize=None)(RealGpu)

globals().update(suite(gpu_here, pytestmark))


class TestGraphsOfSeveralStreams(KernelModel):
    pytestmark = pytestmark
    about = {"aux": 2, "us": 100}

    def gpu(self):
        return gpu_here()


@pytest.fixture
def library(monkeypatch):
    with trt_on_cuda.installed(monkeypatch, gpu_here()):
        yield


@pytest.mark.parametrize("aux", [0, 2])
@pytest.mark.parametrize("name", WORLDS)
def test_lanes_side_by_side_get_right_answers(library, name, aux, tmp_path):
    assert wrong_answers(str(tmp_path), name, 200, us=50, aux=aux) == []


def test_graphs_are_there_again_after_another_shape(library, tmp_path):
    seen = graphs_after_another_shape(str(tmp_path))
    assert seen[0][0] == seen[2][0] > 0
    assert seen[2][1] >= seen[0][1] + 30


def test_a_model_occupies_what_it_says_and_gives_it_back(library, tmp_path):
    """Beside what CUDA tells; other programs, and what a driver keeps for graphs, may take some megabytes."""
    *lives, (_, missing) = memory_of_lives(str(tmp_path), gpu_here().driver)
    slack = 64 << 20
    assert missing <= slack
    for said, taken in lives:
        assert taken - slack <= said <= taken + slack


@pytest.mark.skipif(bool(why_no_torch()), reason=why_no_torch() or "there is a device")
def test_inputs_that_torch_still_computes_are_awaited(library, tmp_path):
    import torch

    engine, lane = engine_of(str(tmp_path), plan("affine", "xy", (1,), [4096])), trt_worlds.new_lane()
    engine.load()
    session, side = engine.open(lane), torch.cuda.Stream()
    for number in range(20):
        with torch.cuda.stream(side):
            wide = torch.full((4096, 4096), 1.0, device="cuda")
            x = (wide @ wide)[0] * 0 + number
            (result,) = run_batch(session, Batch([{"x": x}], 1))[0]
        assert result.error is None, result.error
        assert np.array_equal(result.outputs["y"], np.full(4096, 2 * number + 1, np.float32))
    engine.unload()
    trt_worlds.close(lane)


LOST = """
import numpy as np
from _pytest.monkeypatch import MonkeyPatch
import trt_on_cuda, trt_worlds
from kernel_models import engine_of
from edgeserve.engines.base import Batch, run_batch
from edgeserve.errors import DeviceLost
with trt_on_cuda.installed(MonkeyPatch(), trt_on_cuda.RealGpu()):
    engine, lane = engine_of({folder!r}, trt_on_cuda.plan("fault", "xy", (1,), [4])), trt_worlds.new_lane()
    engine.load()
    session = engine.open(lane)
    for first in (1.0, 666.0):
        try:
            run_batch(session, Batch([{{"x": np.full(4, first, np.float32)}}], 1))
        except DeviceLost as error:
            print(first, "lost", error, flush=True)
"""


def test_an_illegal_address_is_a_lost_device(tmp_path):
    """In a process of its own: nothing else runs in it afterwards."""
    paths = [str(Path(__file__).resolve().parents[1] / "lib"), str(Path(__file__).resolve().parents[2])]
    code = f"import sys; sys.path[:0] = {paths!r}\n" + LOST.format(folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert "666.0 lost model 'm'" in done.stdout and "1.0 lost" not in done.stdout, done.stdout
