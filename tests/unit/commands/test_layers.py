"""``edgeserve profile --layers``, with ONNX Runtime and on the double of TensorRT."""

from __future__ import annotations

import json

import numpy as np
import onnx_models
import pytest
import trt_worlds
from onnx import TensorProto, helper

from edgeserve.cli import main
from edgeserve.commands.layers import layer_times
from edgeserve.config.loading import load_config
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.onnx_layers import with_own_times
from edgeserve.errors import EngineError

TOML = """
[device.d]
kind = "KIND"

[lane.l]
device = "d"

[model.m]
engine = "ENGINE"
file = "pooled.onnx"
batch = [1, 2]
OPTIONS

[app.a]
model = "m"
slo = "1s"
"""


@pytest.mark.parametrize(
    ("engine", "kind", "options"),
    [
        ("onnx", "cpu", "shapes = { x = [1, 8] }"),
        ("onnx", "cpu", "shapes = { x = [1, 8] }\noptions = { process = true }"),
        (
            "tensorrt",
            "cuda",
            'shapes = { x = [1, 8] }\noptions = { plans = "plans", ranges = { x = [[1, 2], [1, 8], [1, 16]] } }',
        ),
    ],
)
def test_each_layer_is_told_with_its_share(engine, kind, options, tmp_path, monkeypatch, capsys):
    onnx_models.pooled(str(tmp_path))
    file = tmp_path / "edge.toml"
    file.write_text(TOML.replace("KIND", kind).replace("ENGINE", engine).replace("OPTIONS", options))
    with trt_worlds.world(monkeypatch, "10.3") as cuda:
        assert main(["profile", str(file), "--layers"]) == 0
        said = capsys.readouterr().out
        assert main(["profile", str(file), "--layers", "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)
        assert cuda.leaks() == []
    assert "m on l, a batch of 2: 2 layers, " in said and "%" in said
    times = [took_ns for name, took_ns in told["layers_ns"].items() if "AveragePool" in name]
    assert times and min(told["layers_ns"].values()) >= 0 and max(times) > 0
    assert not (tmp_path / "profiles").exists()


def test_layers_are_timed_in_the_shapes_of_the_item(tmp_path, monkeypatch):
    onnx_models.pooled(str(tmp_path))
    options = {"plans": "plans", "ranges": {"x": [[1, 2], [1, 8], [1, 16]]}}
    model = ModelConfig(name="m", engine="tensorrt", file="pooled.onnx", shapes={"x": (1, 8)}, options=options)
    with trt_worlds.world(monkeypatch, "10.3") as cuda:
        info = trt_worlds.new_lane()
        engine = make_engine(model, [info], str(tmp_path))
        engine.load()
        engine.open(info)
        usual, longer = (
            sum(took_ns for _, took_ns in engine.layer_times(info, {"x": np.zeros((1, length), np.float32)}, 1))
            for length in (8, 16)
        )
        engine.unload()
        trt_worlds.close(info)
        assert cuda.leaks() == []
    assert longer == 2 * usual


def test_an_engine_that_cannot_tell_says_so(tmp_path):
    file = tmp_path / "edge.toml"
    file.write_text(
        TOML.replace("KIND", "cpu").replace("ENGINE", "synthetic").replace("OPTIONS", 'options = {c0 = "1ms"}')
    )
    with pytest.raises(EngineError, match="engine 'synthetic' does not time layers; engines 'onnx' and 'tensorrt' do"):
        layer_times(load_config(str(file)), "m", "l", 1)


def test_a_layer_within_a_loop_counts_each_time_it_runs(tmp_path):
    kind, shape = onnx_models.FLOAT, [1, 256]
    body = helper.make_graph(
        [helper.make_node("MatMul", ["s", "w"], ["t"], name="inner"), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", kind, shape),
        ],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("t", kind, shape)],
    )

    def inner_ns(turns):
        onnx_models.save(
            str(tmp_path),
            "looped",
            [helper.make_node("Loop", ["n", "on", "x"], ["y"], body=body)],
            [("x", kind, shape)],
            [("y", kind, shape)],
            [("n", np.array(turns)), ("on", np.array(True)), ("w", np.zeros((256, 256), np.float32))],
        )
        engine = make_engine(ModelConfig(name="m", engine="onnx", file="looped.onnx"), [LaneInfo()], str(tmp_path))
        engine.load()
        times = dict(engine.layer_times(LaneInfo(), engine.example(), 1))
        engine.unload()
        return times["inner (MatMul)"]

    assert inner_ns(100) > 10 * inner_ns(1)


def test_a_loops_own_time_is_without_that_of_its_body():
    told = (  # as they end: a branch in a loop, and what comes behind
        ("MatMul", 10, 20),
        ("Relu", 45, 5),
        ("If", 40, 30),
        ("MatMul", 75, 20),
        ("Loop", 0, 100),
        ("MatMul", 100, 7),
    )
    events = [{"ts": at, "dur": took, "args": {"op_name": operator}} for operator, at, took in told]
    own = [(event["args"]["op_name"], event["dur"]) for event in with_own_times(events)]
    assert own == [("Loop", 30), ("MatMul", 20), ("If", 25), ("Relu", 5), ("MatMul", 20), ("MatMul", 7)]
    assert sum(took for _, took in own) == 107
