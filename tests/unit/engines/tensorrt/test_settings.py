"""The options of the engine, and optimisation profiles from them."""

from __future__ import annotations

import json

import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.options import Options
from edgeserve.engines.tensorrt.settings import KNOWN_OPTIONS, BuildRequest, read_settings
from edgeserve.engines.tensorrt.shapes import Input, ProfileShape, item_ranges, outside, profiles_of
from edgeserve.errors import ConfigError, EngineError


def settings(batch=(1,), lanes=1, shapes=None, state=None, **options):
    model = ModelConfig("m", engine="tensorrt", batch=batch, shapes=shapes or {}, state=state or {}, options=options)
    return read_settings(model, Options(model, KNOWN_OPTIONS), lanes, "/models")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"library": "tensorrt_rtz"},
            r"options.library = 'tensorrt_rtz': expected one of .*did you mean 'tensorrt_rtx'",
        ),
        ({"precision": "int4"}, "options.precision = 'int4': expected one of 'model', 'fp16'"),
        ({"workspace": "much"}, "options.workspace = 'much': expected .*'2GB'"),
        ({"workspace": 5}, "options.workspace = 5: expected a string"),
        ({"optimization_level": 6}, "options.optimization_level = 6: expected a whole number from 0 to 5"),
        ({"compute_capabilities": ["sm86"]}, "options.compute_capabilities = 'sm86': expected numbers such as '8.6'"),
        ({"mapped": "maybe"}, "options.mapped = 'maybe': expected one of"),
        ({"ranges": {"x": [[1], [2]]}}, r"options.ranges.x = \[\[1\], \[2\]\]: expected the smallest, the usual and"),
        ({"ranges": {"x": [[1], [3], [2]]}}, "options.ranges.x"),
        ({"ranges": {"x": [[1], [2, 2], [3]]}}, "options.ranges.x"),
        ({"build_timeout": "soon"}, "options.build_timeout = 'soon'"),
        ({"pad_batch": False}, "has no key 'pad_batch'"),
        ({"optimisation_level": 3}, "has no key 'optimisation_level'; did you mean 'optimization_level'"),
    ],
)
def test_a_wrong_option_is_refused_when_the_engine_is_made_without_any_library(options, why):
    with pytest.raises(ConfigError, match=why) as caught:
        make_engine(ModelConfig("m", engine="tensorrt", file="m.onnx", options=options), [LaneInfo("cuda")], ".")
    assert "model.m" in str(caught.value)


def test_the_request_can_be_sent_and_comes_back_the_same():
    request = settings(
        (4, 1, 2),
        2,
        {"x": (3, 8)},
        {"h": "hN"},
        constants={"rate": 16000},
        workspace="1GiB",
        ranges={"y": [[1], [2], [3]]},
    ).request
    assert BuildRequest(**json.loads(json.dumps(request._asdict()))) == request
    assert (request.sizes, request.workspace_bytes, request.states) == ([1, 2, 4], 1 << 30, ["h"])


def test_plans_lie_in_the_cache_or_where_the_option_says(monkeypatch):
    monkeypatch.setenv("EDGESERVE_CACHE", "/cache")
    assert settings().plans == "/cache/tensorrt"
    assert settings(plans="plans").plans == "/models/plans"


# --- profiles ---------------------------------------------------------------------------------------------------------


def profiles(inputs, **how):
    return profiles_of([Input(*item) for item in inputs], settings(**how).request, "model 'm'")


def test_one_profile_per_batch_size_with_the_ranges_of_other_axes():
    found = profiles([("x", (-1, 3, -1))], batch=(4, 1), ranges={"x": [[3, 8], [3, 16], [3, 32]]})
    assert found == [
        (1, {"x": ProfileShape((1, 3, 8), (1, 3, 16), (1, 3, 32))}),
        (4, {"x": ProfileShape((4, 3, 8), (4, 3, 16), (4, 3, 32))}),
    ]


def test_what_is_given_follows_from_elsewhere():
    found = profiles(
        [("x", (-1, -1)), ("x_mask", (-1, -1)), ("h", (2, -1, 5)), ("rate", ())],
        batch=(2,),
        ranges={"x": [[1], [2], [3]]},
        state={"h": "hN"},
        state_axis=1,
        constants={"rate": 16000},
        mask={"x": "x_mask"},
    )
    assert found == [
        (
            2,
            {
                "x": ProfileShape((2, 1), (2, 2), (2, 3)),
                "x_mask": ProfileShape((2, 1), (2, 2), (2, 3)),
                "h": ProfileShape(*[(2, 2, 5)] * 3),
                "rate": ProfileShape((), (), ()),
            },
        )
    ]


def test_one_length_from_shapes_and_a_fixed_batch():
    assert profiles([("x", (4, -1))], batch=(1, 4), shapes={"x": (7,)}) == [(4, {"x": ProfileShape(*[(4, 7)] * 3)})]


@pytest.mark.parametrize(
    ("inputs", "how", "why"),
    [
        ([("x", (-1, -1))], {}, r"input 'x' has open axes, \[any\] per item; TensorRT needs their bounds: options"),
        ([("x", (-1, 3))], {"ranges": {"x": [[4], [4], [4]]}}, r"options.ranges.x = \[4\], but input 'x' has .* \[3\]"),
        ([("x", (-1, 3))], {"shapes": {"x": (1, 3)}}, r"shapes.x = \[1, 3\], but input 'x'"),
        (
            [("x", (-1, 3))],
            {"ranges": {"y": [[4], [4], [4]]}},
            r"names 'y', which is no input of the model \(inputs: x\)",
        ),
        ([("x", (1, 3))], {"batch": (1, 2)}, "batch axis is fixed at 1; set batch = "),
        ([("x", (-1, 3)), ("n", (1,), True)], {}, "the values of input 'n' decide the sizes of other tensors"),
        ([("x", (-1, 3)), ("h", (-1, -1))], {"state": {"h": "hN"}}, r"state 'h' .*shapes = \{h = \[...\]\}"),
    ],
)
def test_what_no_profile_can_be_made_of_is_told_with_the_mend(inputs, how, why):
    with pytest.raises(EngineError, match=why) as caught:
        profiles(inputs, **how)
    assert "model 'm'" in str(caught.value)


def test_which_items_fit():
    asked = settings(ranges={"x": [[3, 8], [3, 16], [3, 32]]}).request
    allowed = item_ranges([Input("x", (-1, 3, -1))], asked, "m")["x"]
    assert [outside(shape, allowed) for shape in ((3, 8), (3, 32), (3, 33), (3, 7), (3,))] == [
        False,
        False,
        True,
        True,
        True,
    ]
