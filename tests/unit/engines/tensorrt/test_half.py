"""Casts to float16 in a graph: the same inputs and outputs, types that fit, and nearly the same answers."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the cast pass alters ONNX graphs; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="it runs what the pass wrote; pip install -e '.[onnx]'")

import drawn_graphs
import onnx
import onnxruntime
from for_each import for_each
from half_models import MODELS, mask_model, model_of
from onnx import TensorProto, helper

from edgeserve.engines.tensorrt import half
from edgeserve.engines.tensorrt.build_errors import ParseFailed
from edgeserve.engines.tensorrt.half import half_file
from edgeserve.errors import EngineError

ROUNDING = 0.02  # of the largest value: some dozens of float16's steps
SEEDS = range(60)


def session_of(path):
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def both(path):
    """Sessions of a file and of its halved form, whose ports must be the same, and what stayed float32."""
    halved = half_file(path, os.path.dirname(path), "model 'm'")
    one, other = session_of(path), session_of(halved.path)  # ONNX Runtime refuses types that do not fit
    for side in ("get_inputs", "get_outputs"):
        told = [[(port.name, port.type) for port in getattr(each, side)()] for each in (one, other)]
        assert told[0] == told[1]
    return one, other, halved.kept


def types_within(path):
    """Node -> the types that it computes in."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    kinds = {item.name: item.data_type for item in model.graph.initializer}
    kinds.update({port.name: port.type.tensor_type.elem_type for port in (*model.graph.value_info, *model.graph.input)})
    return {
        node.op_type: {kinds.get(name) for name in node.input} & {TensorProto.FLOAT, TensorProto.FLOAT16}
        for node in model.graph.node
    }


def compared(one, other, feeds):
    for mine, its in zip(one.run(None, feeds), other.run(None, feeds)):
        assert mine.shape == its.shape
        if mine.dtype.kind != "f":
            continue
        assert np.array_equal(np.isnan(mine), np.isnan(its))
        known = np.isfinite(mine)
        largest = np.abs(mine[known]).max(initial=1e-6)
        assert np.abs(mine[known] - its[known]).max(initial=0.0) <= ROUNDING * largest


@for_each(lambda: SEEDS)
def test_drawn_graphs_compute_nearly_the_same(seed):
    with tempfile.TemporaryDirectory() as folder:
        check_drawn(seed, folder)


def check_drawn(seed, folder):
    graph = drawn_graphs.draw_graph(seed)
    path = os.path.join(folder, "m.onnx")
    drawn_graphs.save(graph, path)
    if any(node.op_type == "DequantizeLinear" for node in graph.model.graph.node):
        with pytest.raises(EngineError, match="quantization of opset 17, .*opset 19 or later, or leave"):
            half_file(path, folder, "model 'm'")
        return
    one, other, _ = both(path)
    if graph.chance:
        return
    item = drawn_graphs.drawn_items(graph, 1, seed)[0]
    feeds = {}
    for port in one.get_inputs():
        dims = [dim if isinstance(dim, int) else 1 for dim in port.shape]
        value = np.asarray(item[port.name]) if port.name in item else np.zeros(dims, np.float32)
        feeds[port.name] = value[None] if len(port.shape) == value.ndim + 1 else value
    compared(one, other, feeds)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_must_stay_float32_does_and_the_rest_is_float16(name, tmp_path):
    case = MODELS[name]
    path = model_of(str(tmp_path), name)
    one, other, kept = both(path)
    compared(one, other, case.feeds())
    within = types_within(str(tmp_path / f"half-{name}.onnx"))
    assert set(case.kept) <= set(kept)
    for operator in case.halved:
        assert TensorProto.FLOAT16 in within[operator], operator


def test_a_row_that_a_mask_hides_whole_is_no_nan(tmp_path):
    path = mask_model(str(tmp_path))
    one, other, _ = both(path)
    feeds = {"x": np.ones((1, 4), np.float32), "hidden": np.ones((1, 4), np.bool_)}
    assert np.allclose(other.run(None, feeds)[0], one.run(None, feeds)[0], atol=1e-3)


def test_weights_beside_the_graph_and_a_file_that_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(half, "ONE_FILE_BYTES", 16)
    path = model_of(str(tmp_path), "convolutions")
    one, other, _ = both(path)
    compared(one, other, MODELS["convolutions"].feeds())
    (tmp_path / "no.onnx").write_bytes(b"no model at all")
    with pytest.raises(ParseFailed, match=r"model 'm': .*no.onnx cannot be read"):
        half_file(str(tmp_path / "no.onnx"), str(tmp_path), "model 'm'")


@pytest.mark.parametrize(("operator", "domain"), [("Fold", "com.acme"), ("EfficientNMS_TRT", "")])
def test_a_plugin_computes_in_float32(operator, domain, tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["seen"]),
        helper.make_node("Relu", ["seen"], ["more"]),
        helper.make_node(operator, ["more"], ["folded"], domain=domain),
        helper.make_node("Tanh", ["folded"], ["y"]),
    ]
    dims = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "m", dims[:1], dims[1:])
    opsets = [helper.make_opsetid(name, 17) for name in {"", domain}]
    path = str(tmp_path / "m.onnx")
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    halved = half_file(path, str(tmp_path), "model 'm'")
    reads = {node.op_type: list(node.input) for node in onnx.load(halved.path).graph.node}
    assert reads[operator] == ["more"] and reads["Tanh"] == ["folded"] and reads["Relu"] == ["seen/half"]
    assert set(halved.kept) == {operator, "Tanh"}
