"""Collation: values of several items to one array and back. Pure functions on arrays; no engine, no configuration.

An input is described by a :class:`Slot`. Items are checked one by one (:func:`fit`) and against each other
(:func:`odd_shapes`), brought to one shape (:func:`common_shape`),
stacked with zero rows up to the batch size (:func:`stack`) and, where a model needs to know the padding, described
by a mask (:func:`mask`). Sequence outputs are cut to each item's own length (:func:`crop`).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.rounding import Rounding, rounded
from edgeserve.errors import EngineError, WrongInput
from edgeserve.texts import text_array
from edgeserve.units import counted_axes

Shape = Tuple[int, ...]

MASKED = "is a masked array, whose masked values would count; send numbers in their place: x.filled(0)"
"""The end of the refusal of such a value."""

Room = Callable[[str, Shape, Any], Optional[NDArray[Any]]]
"""``room(name, shape, dtype)``: an array of that type to pack an input into, such as page-locked memory, or ``None``
where the caller has none for that shape."""


class Slot(NamedTuple):
    """One batched input of a model. ``dims`` are per item (no batch axis), ``None`` = any length.

    ``pad`` is the value that fills up shorter items (``None``: all items of a batch must have one shape). ``rounding``
    rounds the common shape up per axis, so that few distinct shapes occur, to no more than ``most`` (``()``: no bound).
    ``where`` names the model in messages.
    """

    name: str
    dtype: Any
    dims: Tuple[Optional[int], ...]
    pad: Optional[float] = None
    rounding: Sequence[Rounding] = ()
    where: str = "model"
    most: Shape = ()


def has_masked(value: Any) -> bool:
    """True for an array with values that do not count, which an engine would count."""
    return isinstance(value, np.ma.MaskedArray) and bool(np.any(value.mask))


def fit(slot: Slot, value: Any) -> NDArray[Any]:
    """``value`` as an array that the slot accepts. Widening within a kind (int32 to int64, float16 to float32) is
    done; every other difference is an :class:`WrongInput`: a silent cast hides a missing normalisation."""
    array = value if isinstance(value, np.ndarray) else None
    if has_masked(array):
        raise WrongInput(f"{slot.where}: input {slot.name!r} {MASKED}")
    if array is None or array.dtype.kind in "OUS":
        array = _as_texts(slot, value) if np.dtype(slot.dtype).kind == "O" else _as_array(slot, value)
    if array.dtype == slot.dtype and array.shape == slot.dims:
        return array  # the common case: every axis is fixed
    if array.dtype != slot.dtype:
        array = _widened(slot, array)
    if array.ndim != len(slot.dims):
        raise WrongInput(
            f"{slot.where}: input {slot.name!r} has {counted_axes(array.ndim)}, shape {array.shape}; "
            f"expected {counted_axes(len(slot.dims))} per item, {dims_text(slot.dims)} (without the "
            "batch axis)"
        )
    for have, want in zip(array.shape, slot.dims):
        if want is not None and (have > want or (have < want and slot.pad is None)):
            raise WrongInput(
                f"{slot.where}: input {slot.name!r} has shape {array.shape}; "
                f"expected {dims_text(slot.dims)} per item (without the batch axis)"
            )
    return array


def _as_array(slot: Slot, value: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.asarray(value)
    except Exception as error:  # a list of unequal rows, an object that cannot be converted: anything may be raised
        raise WrongInput(
            f"{slot.where}: input {slot.name!r} is a {type(value).__name__} that is no array ({error}); "
            f"expected {np.dtype(slot.dtype)} of shape {dims_text(slot.dims)} per item"
        ) from error
    return array


def _as_texts(slot: Slot, value: Any) -> NDArray[Any]:
    """A text, a list of texts or an array of them; a single text is an item of one as well."""
    try:
        array = text_array(value)
    except ValueError as error:
        raise WrongInput(
            f"{slot.where}: input {slot.name!r} is of texts, and the value that was sent is not: {error}; shape "
            f"{dims_text(slot.dims)} per item"
        ) from None
    is_one = array.ndim == 0 and all(dim in (1, None) for dim in slot.dims)
    return array.reshape((1,) * len(slot.dims)) if is_one else array


def _widened(slot: Slot, array: NDArray[Any]) -> NDArray[Any]:
    want = np.dtype(slot.dtype)
    same_kind = array.dtype.kind == want.kind or (array.dtype.kind in "iu" and want.kind in "iu")
    if same_kind and np.can_cast(array.dtype, want, "safe"):
        return array.astype(want)
    raise WrongInput(
        f"{slot.where}: input {slot.name!r} is {array.dtype}; expected {want}. "
        f"Convert it before it is sent (for example x.astype('{want}')): nothing is cast silently"
    )


def dims_text(dims: Sequence[Optional[int]]) -> str:
    """``[3, any, any]``"""
    return "[" + ", ".join("any" if dim is None else str(dim) for dim in dims) + "]"


def odd_shapes(slot: Slot, shapes: Sequence[Shape]) -> Dict[int, EngineError]:
    """The places of items that cannot share a batch without ``pad``, since their shape is not the most frequent one (of
    equally frequent ones the first), and why each cannot run."""
    if slot.pad is not None or all(shape == shapes[0] for shape in shapes):
        return {}
    usual = max(shapes, key=shapes.count)
    return {
        place: EngineError(
            f"{slot.where}: input {slot.name!r} has items of different shapes in one batch, "
            f"{usual} and {shape}; allow padding with pad = {{{slot.name} = 0.0}} "
            "or use batch = [1]"
        )
        for place, shape in enumerate(shapes)
        if shape != usual
    }


def common_shape(slot: Slot, shapes: Sequence[Shape], exact: bool = False) -> Shape:
    """The one shape that all items get, not rounded where ``exact``. Without ``pad`` different shapes are an
    :class:`EngineError`."""
    if slot.pad is None:
        for error in odd_shapes(slot, shapes).values():
            raise error
        return shapes[0]
    longest = [max(lengths) for lengths in zip(*shapes)] if slot.dims else []
    roundings = (1,) * len(longest) if exact or not slot.rounding else slot.rounding
    # A fixed axis is padded up to what the model wants; the others to the longest item, rounded up.
    return tuple(
        dim if dim is not None else rounded(length, to, most)
        for length, to, dim, most in zip(longest, roundings, slot.dims, slot.most or (0,) * len(longest))
    )


def stack(
    slot: Slot, arrays: Sequence[NDArray[Any]], shape: Shape, size: int, room: Optional[Room] = None
) -> NDArray[Any]:
    """``arrays`` as rows of one array of ``size`` rows: short items filled with the pad value, absent rows zero. It
    lies in ``room``, where there is one."""
    own = room(slot.name, (size, *shape), slot.dtype) if room is not None and slot.dtype != object else None
    if own is None and len(arrays) == 1 and size == 1 and arrays[0].shape == shape:
        single: NDArray[Any] = np.asarray(arrays[0], order="C")[np.newaxis]  # the common case without a copy
        return single
    batch: NDArray[Any] = np.empty((size, *shape), dtype=slot.dtype) if own is None else own
    is_text = batch.dtype.kind == "O"
    if any(array.shape != shape for array in arrays):
        batch[:] = "" if is_text else slot.pad or 0
    for row, array in enumerate(arrays):
        # With the ellipsis: else a single text would be put there as an array without axes.
        place: Tuple[Any, ...] = (row, *[slice(0, length) for length in array.shape], ...)
        batch[place] = array
    if len(arrays) < size:
        batch[len(arrays) :] = "" if is_text else 0
    return batch


def mask(shapes: Sequence[Shape], shape: Shape, size: int, axes: int, dtype: Any) -> NDArray[Any]:
    """Ones where items have values, zeros in their padding, over the first ``axes`` axes of an item.

    Absent rows are all ones: a row of zeros makes attention divide zero by zero, and those rows are not read.
    """
    batch: NDArray[Any] = np.ones((size, *shape[:axes]), dtype=dtype)
    for row, own in enumerate(shapes):
        for axis in range(axes):
            index: List[Any] = [row] + [slice(None)] * axes
            index[axis + 1] = slice(own[axis], None)
            batch[tuple(index)] = 0
    return batch


def crop(array: NDArray[Any], axis: int, own: int, padded: int) -> NDArray[Any]:
    """The part of ``array`` along ``axis`` that belongs to an item of length ``own`` padded to ``padded``: the same
    share of the axis, rounded up (a partly covered last step is kept)."""
    if own == padded:
        return array
    keep = -(-array.shape[axis] * own // padded)
    return array[tuple(slice(0, keep) if index == axis else slice(None) for index in range(array.ndim))]
