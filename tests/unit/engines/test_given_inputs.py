"""Inputs in the configuration: constants as their type holds them, and settings, which requests bring."""

from __future__ import annotations

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import Batch
from edgeserve.engines.options import Options
from edgeserve.engines.output_hints import hints_of, read_hints
from edgeserve.engines.port import Port
from edgeserve.engines.ports import Ports
from edgeserve.errors import EngineError

F32, F16, I64, U8, BOOL, TEXT = (np.dtype(kind) for kind in ("f4", "f2", "i8", "u1", "?", "O"))
X = Port("x", F32, (None, 4))
Y = [Port("y", F32, (None, 4))]


def ports(more, batch=(1,), **options):
    model = ModelConfig(name="m", engine="onnx", batch=batch, options=options)
    return Ports(model, Options(model, tuple(options)), [X, *more], Y)


def fed(found, item=None, size=1):
    items = [{"x": np.zeros(4, np.float32), **(item or {})}] * size
    packed = found.pack(Batch(items, size))
    for error in packed.failed.values():
        raise error
    return packed.feeds


@pytest.mark.parametrize(
    ("dtype", "dims", "value", "array"),
    [
        (F32, (), 0.667, np.float32(0.667)),
        (F32, (3,), [0.667, 1.0, 0.8], np.array([0.667, 1, 0.8], np.float32)),
        (F32, (3,), 0.667, np.full(3, 0.667, np.float32)),
        (F32, (1,), 1, np.ones(1, np.float32)),
        (F32, (None,), 0.5, np.full(1, 0.5, np.float32)),
        (F32, (None, 2), [[1, 2], [3, 4]], np.array([[1, 2], [3, 4]], np.float32)),
        (F32, (1, 1), [0.5], np.full((1, 1), 0.5, np.float32)),
        (F32, (), [0.5], np.float32(0.5)),
        (F16, (), 0.1, np.float16(0.1)),
        (F32, (), float("inf"), np.float32(np.inf)),
        (F32, (), float("nan"), np.float32(np.nan)),
        (F32, (), 16_777_217, np.float32(16_777_217)),
        (I64, (), 16_000, np.int64(16_000)),
        (I64, (), 2.0, np.int64(2)),
        (I64, (1,), True, np.ones(1, np.int64)),
        (U8, (2,), [0, 255], np.array([0, 255], np.uint8)),
        (BOOL, (1,), True, np.ones(1, bool)),
        (BOOL, (), 0, np.bool_(False)),
        (TEXT, (1,), "en", np.array(["en"], object)),
        (TEXT, (2,), ["en", "a\0"], np.array(["en", "a\0"], object)),
    ],
)
def test_a_constant_is_what_its_type_makes_of_it(dtype, dims, value, array):
    feed = fed(ports([Port("c", dtype, dims)], constants={"c": value}))["c"]
    assert feed.dtype == dtype and feed.shape == np.shape(array)
    assert np.array_equal(feed, array, equal_nan=dtype.kind == "f")


@pytest.mark.parametrize(
    ("dtype", "dims", "value"),
    [
        (I64, (), 1.5),
        (U8, (), 256),
        (U8, (), -1),
        (I64, (), float("nan")),
        (F32, (), 1e39),
        (F16, (), 70_000),
        (F32, (), 1e-60),
        (BOOL, (), 2),
        (F32, (), "fast"),
        (TEXT, (), 3),
        (F32, (3,), [1, 2]),
        (F32, (3,), [[1, 2, 3]]),
        (F32, (2, 2), [1, 2]),
        (F32, (3,), []),
        (F32, (3,), [1, [2], 3]),
    ],
)
def test_a_constant_that_its_type_or_shape_does_not_hold_is_refused(dtype, dims, value):
    with pytest.raises(EngineError, match=r"options\.constants\.c = "):
        ports([Port("c", dtype, dims)], constants={"c": value})


def test_settings_are_fed_as_they_are_and_others_with_their_batch():
    more = [Port("scales", F32, (3,)), Port("step", I64, ()), Port("table", F32, (None, 2))]
    found = ports(more, settings=["scales", "step", "table"])
    item = {"scales": np.ones(3, np.float32), "step": np.int64(7), "table": np.ones((5, 2), np.float32)}
    feeds = fed(found, item)
    shapes = {name: feed.shape for name, feed in feeds.items()}
    assert shapes == {"x": (1, 4), "scales": (3,), "step": (), "table": (5, 2)} and feeds["step"] == 7
    with pytest.raises(EngineError, match=r"input 'scales' has shape \(2,\); expected \[3\]"):
        fed(found, {**item, "scales": np.ones(2, np.float32)})


@pytest.mark.parametrize(
    ("more", "batch", "says"),
    [
        ([Port("scales", F32, (3,))], (1, 2), r"batch = \[1\] is needed.*found batch = \[1, 2\].*options.constants"),
        ([Port("scales", F32, (3,)), Port("z", F32, (4, 2))], (1,), "batch = .1. is needed"),
        ([], (1,), "settings names 'scales', which is no input"),
    ],
)
def test_settings_need_a_batch_of_one(more, batch, says):
    with pytest.raises(EngineError, match=says):
        ports(more, batch, settings=["scales"])


def test_a_single_number_that_nothing_gives_is_named_with_both_mends():
    with pytest.raises(EngineError, match=r"options.constants = \{step = ...\}, or name it in options.settings"):
        ports([Port("step", I64, ())])


def test_an_input_that_tells_a_length_is_as_long_as_the_example():
    model = ModelConfig(name="m", engine="onnx", shapes={"ids": (40,)})
    inputs = [Port("ids", I64, (None, None)), Port("ids_lengths", I64, (None,)), Port("sid", I64, (None,))]
    example = Ports(model, Options(model, ()), inputs, Y).example()
    assert {name: int(np.max(value)) for name, value in example.items()} == {"ids": 0, "ids_lengths": 40, "sid": 0}


@pytest.mark.parametrize(
    ("dtype", "pad"),
    [(U8, -1), (U8, 300), (U8, 0.5), (I64, 0.5), (I64, float("inf")), (F16, 1e9), (BOOL, 2), (np.dtype("u4"), -1.0)],
)
def test_a_pad_value_that_the_type_does_not_have_is_refused(dtype, pad):
    model = ModelConfig(name="m", engine="onnx", batch=(1,), pad={"x": pad})
    with pytest.raises(EngineError, match=r"\[model.m\] pad.x = .*: expected a number that .* has; "):
        Ports(model, Options(model, ()), [Port("x", dtype, (None, None))], Y)


@pytest.mark.parametrize(
    ("dtype", "pad"), [(U8, 255.0), (I64, -1.0), (F16, 0.1), (F32, float("-inf")), (BOOL, 1.0), (TEXT, 0.0)]
)
def test_a_pad_value_that_the_type_has_is_taken(dtype, pad):
    model = ModelConfig(name="m", engine="onnx", batch=(1,), pad={"x": pad})
    assert Ports(model, Options(model, ()), [Port("x", dtype, (None, None))], Y)


def test_outputs_of_which_a_hint_cannot_be_read_fail_their_item_alone():
    model = ModelConfig(
        name="m",
        engine="onnx",
        batch=(2,),
        pad={"x": 0.0},
        options={"hints": {"a.label": "y:argmax"}, "crop_outputs": {"y": {"axis": 0, "like": "x", "of": 0}}},
    )
    found = Ports(
        model, Options(model, tuple(model.options)), [Port("x", F32, (None, None))], [Port("y", F32, (None, None))]
    )
    packed = found.pack(Batch([{"x": np.zeros(0, np.float32)}, {"x": np.arange(3, dtype=np.float32)}], 2))
    empty, fine = found.unpack([packed.feeds["x"]], packed)
    assert "options.hints.a.label = 'y:argmax': the output is empty" in str(empty.error)
    assert fine.error is None and fine.hints == {"a.label": 2}


@pytest.mark.parametrize(
    ("values", "margin"),
    [
        (np.array([-128, 127], np.int8), 255),
        (np.array([3, 250], np.uint8), 247),
        (np.array([True, False]), 1),
        (np.array([7], np.int8), 7),
        (np.array([-60000, 60000], np.float16), 120000),
    ],
)
def test_a_margin_is_not_bound_by_its_outputs_type(values, margin):
    (hint,) = read_hints("model 'm'", {"h": "y:margin"})
    assert hints_of("model 'm'", [hint], {"y": values})["h"] == pytest.approx(margin, rel=1e-3)
