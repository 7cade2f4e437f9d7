"""Numbers in JSON to arrays: what a client sent is what the app gets, or the client is told."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.errors import BadInput
from edgeserve.front import inputs_from_json
from edgeserve.fronts.http.tensors import DTYPES, from_json

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-300, 300),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["1.5", "x", "", 1.0, 2.5, -1.0, 1e39, 7e4]),
)


def by_topic(datatype, values):
    declared = {"x": {"dtype": DTYPES[datatype].name, "shape": [-1]}}
    return inputs_from_json("app", declared, json.dumps({"x": values}).encode())["x"]


def by_kserve(datatype, values):
    return from_json("x", datatype, (len(values),), values)


@pytest.mark.parametrize("read", [by_topic, by_kserve])
@given(datatype=st.sampled_from(sorted(DTYPES)), values=st.lists(VALUES, min_size=1, max_size=4))
def test_each_number_arrives_as_it_is_or_is_refused(read, datatype, values):
    dtype = DTYPES[datatype]
    try:
        found = read(datatype, values)
    except BadInput:
        found = None
    if found is None:
        assert dtype.kind != "f" or not all(type(value) is int and abs(value) < 100 for value in values)
        return
    assert found.dtype == dtype and found.shape == (len(values),)
    for value, got in zip(values, found.tolist()):
        assert isinstance(value, (bool, int, float)), "a text or nothing is no number"
        if dtype.kind == "f":
            assert math.isfinite(got) and got == float(np.array(value, np.float64).astype(dtype))
        else:
            assert got == value and (dtype.kind == "b") == isinstance(value, bool)


def test_an_optional_input_that_is_null_is_left_out():
    declared = {"x": {"dtype": "float32", "shape": [1]}, "k": {"dtype": "any", "shape": [], "optional": True}}
    assert list(inputs_from_json("app", declared, b'{"x": [1], "k": null}')) == ["x"]
    assert inputs_from_json("app", declared, b'{"x": [1], "k": 0}')["k"] == 0
