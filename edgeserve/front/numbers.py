"""The numbers of a list as JSON has it, as an array: none is rounded, wrapped around, read from a text or lost."""

from __future__ import annotations

from typing import Any, List

import numpy as np
from numpy.typing import NDArray

SHOWN_CHARS = 120


def array_of(values: Any, dtype: np.dtype[Any], called: str = "") -> NDArray[Any]:
    """A list of numbers, nested or flat, or one number. A float that is whole is a whole number: some clients write all
    numbers so. Raises ``ValueError`` where a value is none of ``dtype``, which the protocol has ``called`` so."""
    called = called or dtype.name
    if dtype.kind in "biu":
        return _whole(np.array(values, dtype=object), dtype, called)
    found = np.array(values)
    if found.dtype.kind == "O":  # whole numbers of more than 64 bits, or what is no number
        for value in found.flat:
            if type(value) is not int:
                raise ValueError(f"{_shown(value)}, expected {called}")
    elif found.dtype.kind not in "fiub" and found.size:
        raise ValueError(f"{_shown(found.ravel()[:1].tolist())}, expected {called}")
    with np.errstate(over="ignore"):
        array: NDArray[Any] = found.astype(dtype)
        if np.isinf(array).any() and (np.isinf(array) & np.isfinite(found.astype(np.float64))).any():
            raise ValueError(f"a number beyond {np.finfo(dtype).max:g}, the largest of {called}")
    return array


def _whole(values: NDArray[Any], dtype: np.dtype[Any], called: str) -> NDArray[Any]:
    """Whole numbers and booleans."""
    whole = bool if dtype.kind == "b" else int
    flat: List[Any] = values.ravel().tolist()
    for place, value in enumerate(flat):
        if type(value) is not whole:
            if type(value) is not float or whole is bool or not value.is_integer():
                raise ValueError(f"{_shown(value)}, expected {called}")
            flat[place] = int(value)
    if whole is int and flat:
        bounds = np.iinfo(dtype)
        if min(flat) < bounds.min or max(flat) > bounds.max:
            raise ValueError(f"numbers from {min(flat)} to {max(flat)}, {called} holds {bounds.min} to {bounds.max}")
    return np.array(flat, dtype).reshape(values.shape)


def _shown(value: Any) -> str:
    return repr(value)[:SHOWN_CHARS]
