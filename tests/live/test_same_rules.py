"""A request means the same over the bus and from a caller in this process: what one way accepts the other accepts, what
one refuses the other refuses, with the same error wherever the meaning is wrong."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Iterator, Tuple

import numpy as np
import pytest
from serving import served

from edgeserve.config.limits import HINTS_MAX, INPUTS_MAX, NAME_CHARS_MAX, NUMBER_MAX, SLO_MS_MAX
from edgeserve.errors import BadInput, DeadlineExpired, Malformed, RequestError, UnknownApp

X = {"x": np.zeros(2, np.float32)}
Infer = Callable[..., Any]


@pytest.fixture(scope="module")
def ways() -> Iterator[Tuple[Infer, Infer]]:
    """``infer`` in process and over the bus, of one runtime."""
    apps = {
        "strict": {"model": "m", "slo": "20s", "inputs": {"x": {"shape": [2]}}},
        "free": {"model": "m", "slo": "20s", "stream": "in_order"},
        "number": {"model": "m", "slo": "20s", "inputs": {"n": {"shape": [], "dtype": "int64"}}},
    }
    with served({"model": {"m": {"engine": "synthetic", "expected": {"1": "100us"}}}, "app": apps}) as (runtime, bus):
        yield runtime.infer, bus.infer


LONGEST, TOO_LONG = "n" * NAME_CHARS_MAX, "n" * (NAME_CHARS_MAX + 1)


@pytest.mark.parametrize(
    ("app", "inputs", "options"),
    [
        ("strict", X, {}),
        ("free", X, {}),
        ("free", {}, {}),
        ("free", {LONGEST: 1}, {}),
        ("free", {"t": "text"}, {}),
        ("free", {f"i{index}": 1 for index in range(INPUTS_MAX)}, {}),
        ("free", X, {"priority_class": "background"}),
        ("free", X, {"on_late": "partial"}),
        ("free", X, {"value": 0}),
        ("free", X, {"value": float(NUMBER_MAX)}),
        ("free", X, {"value": np.float32(2)}),
        ("free", X, {"stream": LONGEST}),
        ("free", X, {"hints": {}}),
        ("free", X, {"hints": {LONGEST: -1}}),
        ("free", X, {"hints": {"a": np.int64(3)}}),
        ("free", X, {"hints": {f"h{index}": index for index in range(HINTS_MAX)}}),
        ("free", X, {"slo_ms": SLO_MS_MAX}),
        ("free", X, {"slo_ms": np.float64(5000)}),
        ("free", X, {"slo_ms": 0.001, "on_late": "answer"}),
        ("number", {"n": 3}, {}),
        ("number", {"n": np.int64(3)}, {}),
        ("number", {"n": np.array(3)}, {}),
    ],
)
def test_both_ways_accept_the_same(ways: Tuple[Infer, Infer], app: str, inputs: Any, options: Dict[str, Any]) -> None:
    assert [infer(app, inputs, **options).outcome for infer in ways] == ["completed", "completed"]


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("app", "inputs", "options", "error"),
    [
        ("nobody", X, {}, UnknownApp),
        ("strct", X, {}, UnknownApp),
        ("strict", {}, {}, BadInput),
        ("strict", {"y": 1}, {}, BadInput),
        ("strict", {**X, "y": 1}, {}, BadInput),
        ("strict", {"x": np.zeros(3, np.float32)}, {}, BadInput),
        ("strict", {"x": np.zeros(2)}, {}, BadInput),
        ("strict", {"x": "text"}, {}, BadInput),
        ("number", {"n": 3.5}, {}, BadInput),
        ("number", {"n": 10**30}, {}, BadInput),
        ("number", {"n": [3]}, {}, BadInput),
        ("strict", X, {"stream": "s"}, BadInput),
        ("free", {f"i{index}": "text" if index % 2 else 1 for index in range(INPUTS_MAX + 1)}, {}, BadInput),
        ("free", X, {"priority_class": "urgent"}, BadInput),
        ("free", X, {"priority_class": ""}, BadInput),
        ("free", X, {"on_late": "never"}, BadInput),
        ("free", X, {"stream": ""}, BadInput),
        ("free", X, {"value": -1}, BadInput),
        ("free", X, {"value": NAN}, BadInput),
        ("free", X, {"value": 1e19}, BadInput),
        ("free", X, {"hints": {"a": INFINITE}}, BadInput),
        ("free", X, {"hints": {"a": 1e19}}, BadInput),
        ("free", X, {"hints": {"a\nb": 1}}, BadInput),
        ("free", X, {"slo_ms": NAN}, BadInput),
        ("free", X, {"slo_ms": INFINITE}, BadInput),
        ("free", X, {"slo_ms": SLO_MS_MAX * 2}, BadInput),
        ("free", X, {"slo_ms": 0}, DeadlineExpired),
        ("free", X, {"slo_ms": -5}, DeadlineExpired),
        ("free", X, {"slo_ms": -5, "on_late": "answer"}, DeadlineExpired),
    ],
)
def test_both_ways_refuse_the_same_meaning_with_the_same_error(
    ways: Tuple[Infer, Infer], app: str, inputs: Any, options: Dict[str, Any], error: type
) -> None:
    for infer in ways:
        with pytest.raises(RequestError) as refused:
            infer(app, inputs, **options)
        assert type(refused.value) is error


@pytest.mark.parametrize(
    ("app", "inputs", "says"),
    [
        ("strct", X, "did you mean 'strict'"),
        ("strict", {}, "'x' is missing"),
        ("strict", {**X, "y": 1}, "no input 'y'"),
        ("strict", {"x": np.zeros(2)}, "is float64 [2], expected a numpy array float32 [2]"),
        ("strict", {"x": np.zeros(3, np.float32)}, "is float32 [3]"),
    ],
)
def test_both_ways_say_what_was_expected(ways: Tuple[Infer, Infer], app: str, inputs: Any, says: str) -> None:
    for infer in ways:
        with pytest.raises(RequestError, match=re.escape(says)):
            infer(app, inputs)


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (X, {"priority_class": 3}),
        (X, {"priority_class": TOO_LONG}),
        (X, {"on_late": True}),
        (X, {"stream": 7}),
        (X, {"stream": TOO_LONG}),
        (X, {"value": "2"}),
        (X, {"value": True}),
        (X, {"slo_ms": "soon"}),
        (X, {"slo_ms": True}),
        (X, {"hints": {"a": "b"}}),
        (X, {"hints": {"a": None}}),
        (X, {"hints": {"a": True}}),
        (X, {"hints": {"": 1}}),
        (X, {"hints": {3: 1}}),
        (X, {"hints": {TOO_LONG: 1}}),
        (X, {"value": 10**400}),
        (X, {"hints": {"a": 10**400}}),
        (X, {"hints": {f"h{index}": 1 for index in range(HINTS_MAX + 1)}}),
        ({TOO_LONG: 1}, {}),
        ({"": 1}, {}),
        ({TOO_LONG: "text"}, {}),
        ({3: 1}, {}),
        ([1], {}),
        ({f"i{index}": 1 for index in range(INPUTS_MAX + 1)}, {}),
    ],
)
def test_what_is_no_request_by_its_form_is_refused_both_ways(
    ways: Tuple[Infer, Infer], inputs: Any, options: Dict[str, Any]
) -> None:
    """Over the bus some of these are not of the protocol's form, and some cannot even be sent."""
    for infer in ways:
        with pytest.raises((BadInput, Malformed)):
            infer("free", inputs, **options)
    assert [infer("free", X).outcome for infer in ways] == ["completed", "completed"]
