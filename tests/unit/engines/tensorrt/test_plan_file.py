"""Plans that were built elsewhere: served as they are, read by ``edgeserve init``, and refused with the mend."""

from __future__ import annotations

import json
import os
import tracemalloc
import types

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="the double computes with onnxruntime; pip install -e '.[onnx]'")

import onnx_models
import trt_worlds

from edgeserve import cli
from edgeserve.config.loading import load_config
from edgeserve.engines.base import Batch, run_whole
from edgeserve.engines.describe import describe
from edgeserve.engines.tensorrt import plan_file
from edgeserve.errors import ConfigError, EngineError
from edgeserve.runtime import Runtime

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
ONE_TO_EIGHT = [{"x": [[1, 4], [4, 4], [8, 4]]}]
ONE_AND_MORE = [{"x": [[1, 4], [1, 4], [1, 4]]}, {"x": [[2, 4], [4, 4], [8, 4]]}]


def x(value):
    return {"x": np.full(4, value, np.float32)}


def plan(tmp_path, profiles, **how):
    return trt_worlds.plan_file(str(tmp_path), onnx_models.linear(str(tmp_path)), profiles, **how)


@pytest.mark.parametrize(
    ("version", "profiles"),
    [
        ("8.5", ONE_TO_EIGHT),
        ("8.6", ONE_TO_EIGHT),
        ("10.3", ONE_TO_EIGHT),
        ("8.5", ONE_AND_MORE),
        ("10.3", ONE_AND_MORE),
    ],
)
def test_a_plan_runs_every_batch_size_that_its_profiles_take(monkeypatch, tmp_path, version, profiles):
    file = plan(tmp_path, profiles, version=version)
    with trt_worlds.loaded(monkeypatch, str(tmp_path), file, version, batch=(1, 2, 4)) as (_, lane, engine, session):
        assert engine.load().weights_bytes == os.path.getsize(tmp_path / file)
        assert engine.outputs()["y"].shape == (3,)
        for size in (2, 1, 4, 3, 1):  # the shapes of a context change between them
            results, _ = run_whole(session, Batch([x(value) for value in range(size)], size))
            for value, result in enumerate(results):
                np.testing.assert_allclose(result.outputs["y"], x(value)["x"] @ WEIGHTS, rtol=1e-6)
        own_profile_each = version == "10.3"
        assert (session.graphs >= 3 * lane.depth) == own_profile_each
    assert not os.path.exists(tmp_path / "plans"), "nothing is built"


def test_a_batch_axis_of_one_length_is_filled_up(monkeypatch, tmp_path):
    model = onnx_models.linear(str(tmp_path), batch=4)
    file = trt_worlds.plan_file(str(tmp_path), model, [{"x": [[4, 4], [4, 4], [4, 4]]}])
    with trt_worlds.loaded(monkeypatch, str(tmp_path), file, batch=(1, 2)) as (_, _, _, session):
        results, _ = run_whole(session, Batch([x(1.0)], 1))
        np.testing.assert_allclose(results[0].outputs["y"], x(1.0)["x"] @ WEIGHTS, rtol=1e-6)


def test_two_lanes_share_a_plan_where_its_contexts_can(monkeypatch, tmp_path):
    for version in ("10.3", "8.6"):
        with trt_worlds.world(monkeypatch, version):
            engine = trt_worlds.made(str(tmp_path), plan(tmp_path, ONE_TO_EIGHT, version=version), lanes=2)
            lanes = [trt_worlds.new_lane() for _ in range(2)]
            engine.load()
            engine.open(lanes[0])
            if version == "10.3":
                run_whole(engine.open(lanes[1]), Batch([x(1.0)], 1))
            else:
                with pytest.raises(EngineError, match=r"runs on one lane with TensorRT 8\.6.*name one in"):
                    engine.open(lanes[1])
            engine.unload()
            for lane in lanes:
                trt_worlds.close(lane)


def test_items_that_no_profile_takes_fail_alone(monkeypatch, tmp_path):
    model = onnx_models.pooled(str(tmp_path))
    file = trt_worlds.plan_file(str(tmp_path), model, [{"x": [[1, 1, 2], [1, 1, 8], [1, 1, 16]]}])
    with trt_worlds.loaded(monkeypatch, str(tmp_path), file, batch=(1,)) as (_, _, engine, session):
        assert engine.example()["x"].shape == (1, 8), "the usual length is the profile's"
        (good,), _ = run_whole(session, Batch([{"x": np.ones((1, 4), np.float32)}], 1))
        assert good.error is None
        with pytest.raises(EngineError, match=r"takes \[1, 2\] to \[1, 16\] per item. Build the plan with a wider"):
            run_whole(session, Batch([{"x": np.ones((1, 20), np.float32)}], 1))


def test_what_a_plan_cannot_do_is_said(monkeypatch, tmp_path):
    with trt_worlds.world(monkeypatch, "10.3"):
        file = plan(tmp_path, ONE_TO_EIGHT)
        with pytest.raises(EngineError, match=r"batch = \[1, 16\], but the plan takes batches of 1 to 8"):
            trt_worlds.made(str(tmp_path), file, batch=(1, 16)).load()
        for key, value in (("workspace", "1MiB"), ("allow_build", True)):
            with pytest.raises(ConfigError, match=rf"options.{key} is for building a plan, and given.engine is built"):
                trt_worlds.made(str(tmp_path), file, options={key: value}).load()
        other = plan(tmp_path, ONE_TO_EIGHT, name="other.plan", version="8.6")
        with pytest.raises(EngineError, match=r"version tag does not match.*the library version that built"):
            trt_worlds.made(str(tmp_path), other).load()


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"locations": {"x": "HOST"}}, r"tensor 'x' is read on the host, since its values decide the sizes"),
        ({"formats": {"y": "CHW16"}}, r"tensor 'y' has the layout CHW16, expected LINEAR; .*--outputIOFormats"),
    ],
)
def test_tensors_that_are_no_device_memory_in_numpys_order_are_refused(monkeypatch, tmp_path, about, why):
    with trt_worlds.world(monkeypatch, "10.3"):
        with pytest.raises(EngineError, match=why):
            trt_worlds.made(str(tmp_path), plan(tmp_path, ONE_TO_EIGHT, **about)).load()


def written(tmp_path, *words):
    out = str(tmp_path / "edge.toml")
    assert cli.main(["init", "--here", *words, "--out", out, "--force"]) == 0
    return out


def test_init_reads_a_plan_and_what_it_writes_serves(monkeypatch, tmp_path, capsys):
    text = json.dumps({"task": "detect"}).encode()
    with trt_worlds.world(monkeypatch, "10.3"):
        file = plan(tmp_path, [{"x": [[1, 4], [2, 4], [2, 4]]}], before=len(text).to_bytes(4, "little") + text)
        out = written(tmp_path, str(tmp_path / file))
        config = load_config(out)
        assert (config.models["given"].engine, config.lanes["gpu0"].device) == ("tensorrt", "gpu")
        assert set(config.models["given"].batch) <= {1, 2}, "the plan takes no more"
        assert config.apps["given"].inputs["x"].shape == (4,)
        with Runtime(config) as runtime:
            np.testing.assert_allclose(
                runtime.infer("given", x(2.0), slo_ms=60_000)["y"], x(2.0)["x"] @ WEIGHTS, rtol=1e-6
            )
        assert "on the GPU" in capsys.readouterr().out
        assert cli.main(["init", "--here", str(tmp_path / file), "--out", f"{tmp_path}/cpu.toml", "--cpu"]) == 2
        assert "leave --cpu out" in capsys.readouterr().err


def test_open_lengths_of_a_plan_are_the_profiles_usual_ones(monkeypatch, tmp_path):
    with trt_worlds.world(monkeypatch, "10.3"):
        file = trt_worlds.plan_file(
            str(tmp_path), onnx_models.pooled(str(tmp_path)), [{"x": [[1, 1, 2], [1, 1, 8], [4, 1, 16]]}]
        )
        assert describe(str(tmp_path / file)).batches == ((1, 4),)
        model = load_config(written(tmp_path, str(tmp_path / file))).models["given"]
        assert (model.shapes, model.batch) == ({"x": (1, 8)}, (1,))


@pytest.mark.parametrize("header", [b"", b"{}"])
def test_a_plan_is_not_held_a_second_time_while_it_loads(tmp_path, header):
    path = tmp_path / "large.engine"
    before = len(header).to_bytes(4, "little") + header if header else b""
    path.write_bytes(before + b"plan" + bytes(32 << 20))
    seen = []

    class Runtime:
        def __init__(self, log):
            pass

        def deserialize_cuda_engine(self, data):
            seen.append((bytes(data[:4]), len(data), tracemalloc.get_traced_memory()[1]))
            return "engine"

    library = types.SimpleNamespace(trt=types.SimpleNamespace(Runtime=Runtime), log=None)
    tracemalloc.start()
    try:
        _, engine = plan_file.deserialized(library, str(path), "model 'm'")
    finally:
        tracemalloc.stop()
    (first, length, peak_bytes), *rest = seen
    assert (engine, first, length, rest) == ("engine", b"plan", (32 << 20) + 4, [])
    assert peak_bytes < 1 << 20
