"""Frames prepared in front of a network: what the option means, that the graph computes it, and what is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.engines.image import ImageForm, frame_shape, in_numpy, read_image
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, EngineError

onnx = pytest.importorskip("onnx", reason="the onnx package alters graphs; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import onnx_models  # noqa: E402 needs onnx
from onnx import TensorProto, helper  # noqa: E402

FLOAT = TensorProto.FLOAT
SIZE = (48, 64)


def config(file="seen.onnx", **image):
    return ModelConfig(name="m", engine="onnx", file=file, batch=(1, 2), options={"image": image})


def form_of(**image):
    found = read_image(Options(config(**image), ("image",)), config(**image))
    return found._replace(size=tuple(image.get("size", SIZE)), layout=image.get("layout", "nchw"), input="x")


def seen(directory, dims=("B", 3, *SIZE), kind=FLOAT, opset=13, name="seen"):
    """A network that answers what it is given."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        name,
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info("y", kind, dims)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = onnx_models.IR_VERSION
    onnx.save(model, os.path.join(directory, f"{name}.onnx"))
    return f"{name}.onnx"


def frames(shape, count=1):
    """Smooth ones, as cameras make: noise alone would test the rounding of coordinates."""
    random = np.random.default_rng(3)
    rows, columns = np.arange(shape[0])[:, None], np.arange(shape[1])[None]
    found = []
    for _ in range(count):
        parts = [
            127 + 120 * np.sin(rows / random.uniform(5, 20) + columns / random.uniform(5, 20))
            for _ in range(shape[2] if len(shape) > 2 else 1)
        ]
        image = np.stack(parts, axis=-1).astype(np.uint8)
        found.append(image if len(shape) > 2 else image[..., 0])
    return found


def answers(directory, model, items):
    engine = make_engine(model, [LaneInfo()], str(directory))
    engine.load()
    try:
        return [result.outputs["y"] for result in engine.run(Batch([{"x": item} for item in items], len(items)))]
    finally:
        engine.unload()


LEVELS = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}


@pytest.mark.parametrize("size_known", [True, False], ids=["from", "any size"])
@pytest.mark.parametrize("frame", [(90, 160), (480, 640), (40, 30), SIZE, (144, 192)], ids=str)
@pytest.mark.parametrize("letterbox", [False, True, 0], ids=["stretched", "letterboxed", "black"])
def test_the_graph_computes_the_numpy_form(tmp_path, frame, letterbox, size_known):
    seen(str(tmp_path))
    image = {"letterbox": letterbox, "format": "bgr", **LEVELS}
    if size_known:
        image["from"] = list(frame)
    given = frames((*frame, 3), 2)
    for item, answer in zip(given, answers(tmp_path, config(**image), given)):
        apart = np.abs(answer - in_numpy(item, form_of(**image))) * np.array(LEVELS["std"])[:, None, None]
        assert apart.max() <= 1.0
        assert apart.mean() <= 0.35  # where uint8 is resized: its rounding


@pytest.mark.parametrize("format", ["nv12", "yuyv", "uyvy"])
@pytest.mark.parametrize("colour", [("bt601", "limited", "rgb"), ("bt709", "full", "bgr")], ids=str)
def test_frames_of_cameras_are_converted(tmp_path, format, colour):
    seen(str(tmp_path))
    matrix, range_, color = colour
    image = {"format": format, "from": [90, 160], "matrix": matrix, "range": range_, "color": color, "letterbox": True}
    form = form_of(**image)
    given = frames(frame_shape(form))
    (answer,) = answers(tmp_path, config(**image), given)
    assert np.abs(answer - in_numpy(given[0], form)).max() * 255 <= 0.1


@pytest.mark.parametrize(
    ("yuv", "rgb"),
    [((235, 128, 128), (255, 255, 255)), ((16, 128, 128), (0, 0, 0)), ((81, 90, 240), (255, 0, 0))],
    ids=["white", "black", "red"],
)
def test_colours_are_those_of_bt601(yuv, rgb):
    """The rounded values of ITU-R BT.601's colour bars."""
    form = form_of(format="nv12", size=[2, 2], **{"from": [4, 4]})
    frame = np.zeros((6, 4), np.uint8)
    frame[:4], frame[4:, 0::2], frame[4:, 1::2] = yuv
    found = in_numpy(frame, form)[:, 0, 0] * 255
    assert np.abs(found - rgb).max() <= 1.5


def test_a_letterboxed_frame_keeps_its_aspect_and_lies_in_the_middle():
    image = in_numpy(np.full((10, 40, 3), 255, np.uint8), form_of(size=[40, 40], letterbox=True))
    assert (image[:, 15:25] == 1).all()
    assert np.allclose(image[:, :15], 114 / 255) and np.allclose(image[:, 25:], 114 / 255)


def test_halving_takes_the_mean_of_four():
    frame = np.array([[0, 10], [20, 30]], np.uint8)[..., None].repeat(3, axis=2)
    assert np.allclose(in_numpy(frame, form_of(size=[1, 1])) * 255, 15)


@pytest.mark.parametrize(
    ("dims", "kind", "opset", "extra"),
    [
        (("B", *SIZE, 3), FLOAT, 13, {}),
        (("B", 3, *SIZE), TensorProto.FLOAT16, 13, {}),
        (("B", 3, *SIZE), FLOAT, 11, {"letterbox": True}),
        (("B", 3, *SIZE), FLOAT, 18, {"letterbox": True}),
        (("B", None, None, None), FLOAT, 13, {"size": list(SIZE)}),
        ((2, 3, *SIZE), FLOAT, 13, {}),
    ],
    ids=["nhwc", "float16", "opset 11", "opset 18", "open axes", "fixed batch"],
)
def test_networks_of_other_forms(tmp_path, dims, kind, opset, extra):
    seen(str(tmp_path), dims, kind, opset)
    layout = "nhwc" if dims[-1] == 3 else "nchw"
    for known in ({}, {"from": [90, 160]}):
        (item,) = frames((90, 160, 3))
        (answer,) = answers(tmp_path, config(**extra, **known), [item])
        assert np.abs(answer - in_numpy(item, form_of(**extra, layout=layout))).max() * 255 <= 1


def test_the_layers_that_are_timed_are_those_that_run(tmp_path):
    seen(tmp_path)
    engine = make_engine(config(**{"from": list(SIZE)}), [LaneInfo()], str(tmp_path))
    engine.load()
    names = [name for name, _ in engine.layer_times(LaneInfo(), engine.example(), 1)]
    engine.unload()
    assert any("DequantizeLinear" in name for name in names), "frames of the network's size stay uint8 on a CPU"


def test_inner_graphs_read_the_prepared_image(tmp_path):
    """A branch of an ``If`` may read the network's input without naming it among its own."""
    branches = [
        helper.make_graph(
            [helper.make_node(operator, ["x"], [operator])],
            operator,
            [],
            [helper.make_tensor_value_info(operator, FLOAT, None)],
        )
        for operator in ("Identity", "Neg")
    ]
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Less", ["most", "limit"], ["small"]),
        helper.make_node("If", ["small"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    dims = [1, 3, *SIZE]
    onnx_models.save(
        str(tmp_path), "branch", nodes, [("x", FLOAT, dims)], [("y", FLOAT, dims)], [("limit", np.float32(0.5))]
    )
    for level, sign in ((20, 1), (200, -1)):
        frame = np.full((10, 10, 3), level, np.uint8)
        model = ModelConfig(name="m", engine="onnx", file="branch.onnx", options={"image": {}})
        (answer,) = answers(tmp_path, model, [frame])
        assert np.allclose(answer, sign * level / 255)


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ({"sise": [1, 1]}, "no key 'sise'.*'size'"),
        ({"size": [640]}, r"size = \[640\]: expected \[height, width\]"),
        ({"from": [0, 3]}, r"from = \[0, 3\]"),
        ({"format": "jpeg"}, "format = 'jpeg': expected 'rgb' or 'bgr'"),
        ({"format": "nv12"}, r"needs from = \[height, width\]"),
        ({"format": "yuyv", "from": [480, 641]}, "both even"),
        ({"std": [0.229, 0.224, 0.225]}, "58.395 grey levels"),
        ({"mean": [1, 2]}, "one number or three"),
        ({"letterbox": 300}, "letterbox = 300: expected true"),
    ],
    ids=str,
)
def test_options_that_cannot_be_meant(tmp_path, image, why):
    with pytest.raises(ConfigError, match=why):
        make_engine(config(**image), [LaneInfo()], str(tmp_path))


@pytest.mark.parametrize(
    ("dims", "kind", "opset", "image", "why"),
    [
        (("B", 3, *SIZE), FLOAT, 13, {"size": [32, 32]}, r"size = \[32, 32\], but input 'x' has .*\[48, 64\]"),
        (("B", 3, None, None), FLOAT, 13, {}, "'any', 'any'"),
        (("B", 4), FLOAT, 13, {}, "one input of four axes"),
        (("B", 1, *SIZE), FLOAT, 13, {}, "three colours"),
        (("B", 3, 20, 3), FLOAT, 13, {}, "layout = 'nchw' or 'nhwc'"),
        (("B", 3, *SIZE), TensorProto.UINT8, 13, {}, "takes grey levels itself"),
        (("B", 3, *SIZE), FLOAT, 10, {}, "opset 11 or later"),
    ],
    ids=str,
)
def test_networks_that_cannot_be_fed(tmp_path, dims, kind, opset, image, why):
    seen(str(tmp_path), dims, kind, opset)
    with pytest.raises(EngineError, match=why):
        make_engine(config(**image), [LaneInfo()], str(tmp_path)).load()


def test_pad_would_fill_frames_up(tmp_path):
    model = ModelConfig(name="m", engine="onnx", file="seen.onnx", pad={"x": 0.0}, options={"image": {}})
    with pytest.raises(ConfigError, match="pad and options.image"):
        make_engine(model, [LaneInfo()], str(tmp_path))


def test_warm_up_and_types_are_those_of_frames(tmp_path):
    seen(str(tmp_path))
    engine = make_engine(config(**{"from": [90, 160]}), [LaneInfo()], str(tmp_path))
    engine.load()
    example = engine.example()["x"]
    assert (example.shape, example.dtype) == ((90, 160, 3), np.uint8)
    (result,) = engine.run(Batch([{"x": np.zeros((90, 160, 3), np.float32)}], 1))
    assert "expected uint8" in str(result.error)


def test_a_frame_is_given_to_the_network_where_it_lies(tmp_path):
    seen(str(tmp_path))
    engine = make_engine(config(**{"from": [90, 160]}), [LaneInfo()], str(tmp_path))
    engine.load()
    (frame,) = frames((90, 160, 3))
    assert np.shares_memory(engine.loaded_ports().pack(Batch([{"x": frame}], 1)).feeds["x"], frame)


def test_a_form_is_plain_data():
    """It goes to the process that builds a plan as JSON, and into the plan's name."""
    form = form_of(letterbox=True, **LEVELS)
    assert ImageForm(**form._asdict()) == form
