"""The difference of two results of one item: outputs, parts and states together, each value beside its bound."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping, NamedTuple, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.base import Result

STRICT_HALF = 4e-3
"""The same of a float16: four of its steps."""

FLIPS_MAX = 1e-3
"""The share of an output's whole numbers that may differ, where there are many: each pixel of a mask
is a decision, and rounding turns some."""

OTHER = float("inf")
"""A difference that no rounding explains: another shape, another name, not a number where there was one."""


class RowBounds(NamedTuple):
    """The bounds beyond which results differ: more than a ``share`` of a float's value, or more than the user's
    ``tolerance`` of anything. ``small``: the share of an output's largest value that smaller values are compared with.
    Not ``in_order``: the same values in another order are no difference. ``flips``: the share of many whole numbers
    that may differ."""

    share: float
    small: float
    tolerance: float = 0.0
    in_order: bool = True
    flips: float = FLIPS_MAX

    def limit(self, kind: str, values: int) -> float:
        """The bound for ``values`` values of a kind (:class:`RowDifference`)."""
        if kind == "count":
            return max(self.flips if values * self.flips >= 1 else 0.0, self.tolerance)
        return max(self.share, STRICT_HALF if kind == "half" else 0.0, self.tolerance)


class RowDifference(NamedTuple):
    """The worst difference of two results: its multiple of the bound, and its ``share`` of ``what``.
    ``kind``: ``"float"``, ``"half"`` of a float16, ``"count"`` of the values that differ."""

    over: float
    share: float
    kind: str
    what: str

    @property
    def text(self) -> str:
        """The difference for a message: ``output 'y' differs by 12 % of its value``."""
        if self.share == OTHER:
            return f"{self.what} differs"
        if self.kind == "count":
            return f"{self.what} differs in {100 * self.share:.2g} % of its values"
        by = f"{100 * self.share:.2g} %" if self.share < 1.0 else "more than all"
        return f"{self.what} differs by {by} of its value"


SAME = RowDifference(0.0, 0.0, "", "")


def difference(one: Result, other: Result, bounds: RowBounds) -> RowDifference:
    """The worst difference of two results of one item, outputs, parts and states together."""
    ones, others = dict(_leaves(_told(one))), dict(_leaves(_told(other)))
    if sorted(ones) != sorted(others):
        names = ", ".join(sorted(set(ones) ^ set(others)))
        return RowDifference(OTHER, OTHER, "", f"which outputs an item has ({names})")
    return max([SAME, *[_apart(ones[name], others[name], bounds, name) for name in sorted(ones)]])


def _told(result: Result) -> Dict[str, Any]:
    return {"output": result.outputs, "part": result.parts or [], "state": result.state}


def _leaves(value: Any, name: str = "") -> Iterator[Tuple[str, NDArray[Any]]]:
    """The arrays, numbers and texts in a value, by their names in messages. Other values are not compared."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name} {key!r}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{name} {place}")
    elif isinstance(value, (np.ndarray, np.generic, bool, int, float, str)):
        yield name, np.asarray(value)


def _apart(one: NDArray[Any], other: NDArray[Any], bounds: RowBounds, name: str) -> RowDifference:
    if one.shape != other.shape:
        return RowDifference(OTHER, OTHER, "", f"{name} (shapes {list(one.shape)} and {list(other.shape)})")
    if one.dtype.kind != other.dtype.kind:
        return RowDifference(OTHER, OTHER, "", f"{name} ({one.dtype} and {other.dtype})")
    kind = "count" if one.dtype.kind != "f" else "half" if one.dtype.itemsize == 2 else "float"
    if not bounds.in_order and one.dtype.kind in "fiub":
        one, other = np.sort(one, axis=None), np.sort(other, axis=None)
    if kind == "count":
        share = float(np.mean(one != other)) if one.size else 0.0
    else:
        share = _share(one, other, bounds.small)
    limit = bounds.limit(kind, one.size)
    return RowDifference(share / limit if limit else OTHER if share else 0.0, share, kind, name)


def _share(one: NDArray[Any], other: NDArray[Any], small: float) -> float:
    """The largest difference of two arrays of floats, as a share of the value that it is of."""
    known = np.isfinite(one)
    if not np.array_equal(one[~known], other[~known], equal_nan=True) or not np.isfinite(other[known]).all():
        return OTHER
    wide = np.result_type(one.dtype, np.float32)  # a float16 overflows in a difference
    one, other = one[known].astype(wide, copy=False), other[known].astype(wide, copy=False)
    if np.array_equal(one, other):
        return 0.0
    with np.errstate(over="ignore"):
        largest = max(np.abs(one).max(), np.abs(other).max())
        return float((np.abs(one - other) / np.maximum(np.abs(one), small * largest)).max())
