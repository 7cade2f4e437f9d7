"""Padding and stacking: each item's values survive, everything else is padding, and crop undoes what pad did."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.engines.collate import Slot, common_shape, crop, fit, mask, odd_shapes, stack
from edgeserve.errors import EngineError, WrongInput

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def slot(dims=(None,), pad=None, multiple=(), dtype=np.float32):
    return Slot("x", np.dtype(dtype), dims, pad, multiple, "model 'm'")


@given(LENGTHS, st.integers(1, 4), st.integers(0, 3), st.floats(-3, 3, width=32))
def test_stack_keeps_values_and_fills_the_rest(lengths, multiple, absent, pad):
    arrays = [np.arange(1, length + 1, dtype=np.float32) for length in lengths]
    padded = slot(pad=pad, multiple=(multiple,))
    shape = common_shape(padded, [array.shape for array in arrays])
    assert shape[0] % multiple == 0
    assert max(lengths) <= shape[0] < max(lengths) + multiple
    batch = stack(padded, arrays, shape, len(arrays) + absent)
    assert batch.shape == (len(arrays) + absent, *shape)
    for row, array in enumerate(arrays):
        np.testing.assert_array_equal(batch[row, : len(array)], array)
        np.testing.assert_array_equal(batch[row, len(array) :], np.float32(pad))
    assert not batch[len(arrays) :].any()
    used = np.full_like(batch, 7)
    placed = stack(
        padded, arrays, shape, len(arrays) + absent, lambda name, wanted, dtype: used if name == "x" else None
    )
    assert placed is used
    np.testing.assert_array_equal(placed, batch)
    elsewhere = stack(padded, arrays, shape, len(arrays) + absent, lambda name, wanted, dtype: None)
    np.testing.assert_array_equal(elsewhere, batch)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4), st.integers(0, 2))
def test_mask_marks_exactly_the_values(shapes, absent):
    padded = slot(dims=(None, None), pad=-1.0)
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    common = common_shape(padded, shapes)
    size = len(shapes) + absent
    batch = stack(padded, arrays, common, size)
    marks = mask(shapes, common, size, 2, np.int64)
    assert marks.dtype == np.int64
    np.testing.assert_array_equal(marks[: len(shapes)] == 1, batch[: len(shapes)] == 1)
    assert marks[len(shapes) :].all()  # absent rows count as whole: no division by zero in attention


@given(LENGTHS, st.integers(1, 4))
def test_crop_gives_back_each_items_share(lengths, stride):
    """An output of one step per ``stride`` values: every item keeps at least the steps that its values reach."""
    longest = -(-max(lengths) // stride) * stride
    steps = np.arange(longest // stride)
    for length in lengths:
        kept = crop(steps, 0, length, longest)
        np.testing.assert_array_equal(kept, steps[: -(-length // stride)])


def test_crop_of_another_axis():
    array = np.zeros((2, 10, 3))
    assert crop(array, 1, 5, 20).shape == (2, 3, 3)  # a quarter of ten, rounded up
    assert crop(array, 1, 20, 20) is array


def test_one_whole_item_is_not_copied():
    array = np.arange(4, dtype=np.float32)
    assert np.shares_memory(stack(slot((4,)), [array], (4,), 1), array)


def test_fit_widens_within_a_kind_only():
    assert fit(slot(dtype=np.int64), np.ones(3, np.int32)).dtype == np.int64
    assert fit(slot(dtype=np.int64), np.ones(3, np.uint8)).dtype == np.int64
    assert fit(slot(dtype=np.float32), np.ones(3, np.float16)).dtype == np.float32
    assert fit(slot(dtype=np.object_), np.array(["a", "b"])).dtype == object
    for given_dtype, wanted in (
        (np.float64, np.float32),
        (np.int64, np.int32),
        (np.uint8, np.float32),
        (np.float32, np.int64),
        (np.bool_, np.int64),
        (np.uint64, np.int64),
    ):
        with pytest.raises(EngineError, match="model 'm': input 'x' is .*; expected .*nothing is cast silently"):
            fit(slot(dtype=wanted), np.ones(3, given_dtype))


def test_masked_values_do_not_count_as_numbers():
    with pytest.raises(WrongInput, match=r"input 'x' is a masked array, .*x.filled\(0\)"):
        fit(slot(), np.ma.masked_array(np.ones(3, np.float32), mask=[0, 1, 0]))
    assert fit(slot(), np.ma.masked_array(np.ones(3, np.float32))).tolist() == [1, 1, 1]


def test_fit_checks_rank_and_fixed_axes():
    assert fit(slot((3, None)), np.ones((3, 7), np.float32)).shape == (3, 7)
    with pytest.raises(EngineError, match=r"expected 2 axes per item, \[3, any\]"):
        fit(slot((3, None)), np.ones(3, np.float32))
    with pytest.raises(EngineError, match=r"shape \(4, 7\); expected \[3, any\]"):
        fit(slot((3, None)), np.ones((4, 7), np.float32))
    assert fit(slot((8,), pad=0.0), np.ones(5, np.float32)).shape == (5,)  # padded up to the fixed axis later
    with pytest.raises(EngineError):
        fit(slot((8,), pad=0.0), np.ones(9, np.float32))


def test_a_fixed_axis_is_padded_to_what_the_model_wants():
    assert common_shape(slot((8, None), pad=0.0, multiple=(3, 5)), [(5, 2), (6, 1)]) == (8, 5)


def test_without_padding_those_of_another_shape_than_most_are_refused_with_the_mend():
    odd = odd_shapes(slot(), [(3,), (4,), (4,), (5,)])
    assert list(odd) == [0, 3]
    with pytest.raises(EngineError, match=r"\(4,\) and \(3,\); allow padding with pad = {x = 0.0} or use batch"):
        common_shape(slot(), [(3,), (4,), (4,), (5,)])
    assert list(odd_shapes(slot(), [(3,), (4,)])) == [1]  # of equally many the first stay
    assert odd_shapes(slot(), [(3,), (3,)]) == odd_shapes(slot(pad=0.0), [(3,), (4,)]) == {}


def test_strings_are_stacked_with_empty_rows():
    batch = stack(slot((1,), dtype=np.object_), [np.array(["hello"], object)], (1,), 2)
    assert batch.tolist() == [["hello"], [""]]
