"""Tensors of texts and their bytes: what goes in comes out, and what is none is an error and never a crash."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve import texts
from edgeserve.errors import Malformed
from edgeserve.ipc.tensors import decode_tensors

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(UNICODE, max_size=12))
def test_texts_come_back_from_their_bytes(found):
    data = texts.to_bytes(found)
    assert texts.of_bytes(data) == texts.of_bytes(memoryview(data)) == found
    assert texts.to_bytes(np.array(found, object)) == data
    assert len(found) != 1 or texts.to_bytes(found[0]) == data


@given(st.binary(max_size=40))
def test_any_bytes_are_texts_or_named(data):
    try:
        found = texts.of_bytes(data)
    except ValueError:
        return
    assert texts.to_bytes(found) == data


@given(st.binary(max_size=40), st.lists(st.integers(0, 2**63), max_size=9))
def test_any_frame_and_shape_are_a_tensor_or_malformed(data, shape):
    try:
        found = decode_tensors([["x", "text", shape]], [data], 10**6)["x"]
    except Malformed:
        return
    assert list(found.shape) == shape and texts.to_bytes(found) == data and not found.flags.writeable


@given(st.recursive(UNICODE, lambda inside: st.lists(inside, max_size=3), max_leaves=8))
def test_a_nested_list_of_texts_is_an_array_where_its_rows_are_equal(value):
    try:
        array = texts.text_array(value)
    except ValueError:
        return
    assert array.dtype == object and array.tolist() == value


@pytest.mark.parametrize(
    "value",
    [3, [1], ["a", 1], [b"a"], b"a", None, [None], np.ones(2), np.array([b"a"]), ["\ud800"], [["a"], ["b", "c"]]],
)
def test_what_is_no_text_is_named(value):
    with pytest.raises(ValueError, match="it holds"):
        texts.text_array(value)


def test_a_tensor_has_no_more_texts_than_it_may():
    data = texts.to_bytes([""] * texts.ELEMENTS_MAX)
    assert len(texts.of_bytes(data)) == texts.ELEMENTS_MAX
    with pytest.raises(ValueError, match="more than 16384 texts"):
        texts.of_bytes(data + b"\0\0\0\0")
