"""Inputs that the configuration gives: a number, a text or a list as an array of the model's type."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.collate import dims_text
from edgeserve.engines.port import Port
from edgeserve.errors import EngineError
from edgeserve.texts import text_array


def cast_exactly(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A number, a truth value, a text or a list of them as an array of a type. ``TypeError`` where that cannot be,
    ``ValueError`` where it would be another value: a fraction as a whole number, a number beyond the type's bounds.
    Floats are rounded."""
    if dtype.kind == "O":
        try:
            return text_array(value)
        except ValueError as error:
            raise TypeError(str(error)) from None
    given: NDArray[Any] = np.asarray(value)
    if given.dtype.kind not in "fiub":
        raise TypeError("numbers are expected")
    with np.errstate(all="ignore"):
        array = given.astype(dtype)
        same = (
            np.isclose(array.astype(np.float64), given, rtol=float(np.finfo(dtype).eps), atol=0.0, equal_nan=True)
            if dtype.kind == "f"
            else array == given
        )
    if not np.all(same):
        raise ValueError(f"it would become {array.tolist()!r}")
    return array


def constant_of(where: str, port: Port, value: Any) -> NDArray[Any]:
    """The array that a value stands for, which is read-only: a single number fills the port's shape."""
    try:
        array = cast_exactly(value, np.dtype(port.dtype))
        if array.size == 1 and (array.ndim == 0 or all(dim in (1, None) for dim in port.dims)):
            array = np.full([1 if dim is None else dim for dim in port.dims], array.reshape(()), port.dtype)
        if array.ndim != len(port.dims) or any(dim not in (None, have) for dim, have in zip(port.dims, array.shape)):
            raise ValueError("another shape")
    except TypeError:
        raise EngineError(f"{where}: options.constants.{port.name} = {value!r} cannot be {port.dtype}") from None
    except (ValueError, OverflowError):
        raise EngineError(
            f"{where}: options.constants.{port.name} = {value!r}; expected {port.dtype} "
            f"of shape {dims_text(port.dims)}, or one number for all of it"
        ) from None
    array.flags.writeable = False
    return array
