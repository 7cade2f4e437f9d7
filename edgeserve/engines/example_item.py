"""One item of drawn values that has the form of a model's inputs, for warm-up and profiles."""

from __future__ import annotations

import re
from typing import Mapping, Sequence

import numpy as np

from edgeserve.engines.base import Values
from edgeserve.engines.collate import Shape, Slot

LENGTH_NAMES = re.compile(r"(^|_)(len|lens|length|lengths)(_|$)|[a-z]Lengths?$")
"""Inputs that say how much of another one is used: of an example all."""

SIZE_NAMES = re.compile(r"(^|_)(sizes?|shapes?|hw|heights?|widths?)(_|$)", re.IGNORECASE)
"""Inputs that say how large an image is or was: of an example as large as the widest input."""

SIZES_MAX = 4
"""Numbers in such an input: more are an image of their own."""

EXAMPLE_SEED = 1
"""The example's values are drawn with this seed, so that two profiles see the same input."""


def example_item(slots: Sequence[Slot], shapes: Mapping[str, Shape]) -> Values:
    """One item of drawn values: floats in 0..1, whole numbers zero (a valid index into any table), lengths as
    long as the example, sizes of images as wide."""
    random = np.random.default_rng(EXAMPLE_SEED)
    item: Values = {}
    for slot in slots:
        shape = shapes[slot.name]
        kind = np.dtype(slot.dtype).kind
        if _tells_size(slot, shape):
            item[slot.name] = np.full(shape, _widest(shapes), slot.dtype)
        elif kind == "f":
            item[slot.name] = random.random(shape).astype(slot.dtype)
        elif kind in "iu" and LENGTH_NAMES.search(slot.name) and shape in ((), (1,)):
            item[slot.name] = np.full(shape, _longest_open(slots, shapes), slot.dtype)
        else:
            item[slot.name] = np.full(shape, "" if kind == "O" else 0, dtype=slot.dtype)
    return item


def _tells_size(slot: Slot, shape: Shape) -> bool:
    dtype = np.dtype(slot.dtype)
    is_wide = dtype.kind in "fiu" and dtype.itemsize > 1
    return is_wide and SIZE_NAMES.search(slot.name) is not None and int(np.prod(shape)) <= SIZES_MAX


def _widest(shapes: Mapping[str, Shape]) -> int:
    """The length of the last axis of the inputs that are no single numbers."""
    return max((shape[-1] for shape in shapes.values() if len(shape) > 1), default=1)


def _longest_open(slots: Sequence[Slot], shapes: Mapping[str, Shape]) -> int:
    """The length of the longest axis that the model leaves open: what an input that tells a length means."""
    return max(
        (shapes[slot.name][axis] for slot in slots for axis, dim in enumerate(slot.dims) if dim is None),
        default=0,
    )
