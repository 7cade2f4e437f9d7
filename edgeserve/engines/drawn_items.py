"""Items of the form of an example with drawn values, which a model is tried with before it serves."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import numpy as np

from edgeserve.engines.base import RowFacts, Values

SPARSE = 5
STRANGE = 6
"""An item of no numbers and of the largest: what such a neighbour leaves of a value times 0, of a maximum, of a sum."""

MARKS_MAX = 2
"""Most vocabularies have what fills up, begins and ends a text at 0 to 2: a strange item is made of those."""

OWN_ITEMS_MAX = 4
"""Items that are made of the numbers in a graph."""


def drawn_item(example: Values, manner: int, facts: RowFacts, share: float, draw: Any) -> Values:
    """An item of the form of ``example``: of values from 0 to 1 (``manner`` 1), wider ones of both signs, zeros, and
    large ones. Axes that are open are cut to a ``share`` of their lengths. Whole numbers are those of the example where
    it has several, since others may be no place in a table; those of eight bits are drawn, as pixels are."""
    return {
        name: _drawn(_cut(value, facts.open_axes.get(name, ()), share), manner, facts.numbers_max, draw)
        for name, value in example.items()
    }


def longer_item(example: Values, facts: RowFacts, draw: Any) -> Values:
    """An item of other lengths than the example's, which are rounded to other ones."""
    longer = {name: np.resize(example[name], shape) for name, shape in facts.longer.items()}
    return drawn_item({**example, **longer}, 2, facts._replace(numbers_max=1), 1.0, draw)


def items_of_numbers(example: Values, numbers: Sequence[int]) -> List[Values]:
    """Items of the form of ``example`` whose whole numbers are these, in turns, as far as a few items have places."""
    whole = {
        name: value
        for name, value in example.items()
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iu" and value.dtype.itemsize > 1
    }
    places = max([value.size for value in whole.values()], default=0)
    begins = range(0, len(numbers), places)[:OWN_ITEMS_MAX] if places else ()
    return [{**example, **{name: _filled(value, numbers[begin:]) for name, value in whole.items()}} for begin in begins]


def _filled(value: Any, numbers: Sequence[int]) -> Any:
    """An array of the form of ``value`` with the first of these numbers that its type can hold."""
    held = np.minimum(np.array(numbers, np.int64), np.iinfo(value.dtype).max)
    return np.resize(held, value.shape).astype(value.dtype)


def _cut(value: Any, axes: Tuple[int, ...], share: float) -> Any:
    if not axes or not isinstance(value, np.ndarray) or value.ndim <= max(axes):
        return value
    lengths = [max(1, round(length * share)) if axis in axes else length for axis, length in enumerate(value.shape)]
    return value[tuple(slice(0, length) for length in lengths)]


def _drawn(value: Any, manner: int, numbers_max: int, draw: Any) -> Any:
    if isinstance(value, str):
        words = value.split() or ["a", "b"]
        return " ".join([words[place % len(words)] for place in range(manner, manner + 1 + len(words) // manner)])
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "fiubO":
        return value
    if value.dtype.kind == "O":
        texts = [_drawn(text or "a b", manner, 1, draw) for text in value.reshape(-1).tolist()]
        return np.array(texts, object).reshape(value.shape) if all(type(text) is str for text in texts) else value
    shape, kind = value.shape, value.dtype.kind
    numbers: Any
    if manner == 3:
        numbers = np.zeros(shape)
    elif manner == SPARSE:
        numbers = draw.uniform(0.0, 4.0, shape) * (draw.uniform(0.0, 1.0, shape) < draw.choice([0.02, 0.1, 0.3]))
    elif kind == "f" and manner == STRANGE:
        largest = float(np.finfo(value.dtype.name).max) / 4
        numbers = draw.choice([np.nan, largest, -largest], shape)
    elif kind == "f":
        low, high = {1: (0.0, 1.0), 2: (-2.0, 2.0), 4: (-300.0, 300.0)}[manner]
        numbers = draw.uniform(low, high, shape)
    elif kind == "b" or value.dtype.itemsize > 1:
        known = value.reshape(-1)
        several = known.size > 0 and bool((known != known[0]).any())
        largest = 1 if kind == "b" or manner == 1 else min(max(1, numbers_max), int(np.iinfo(value.dtype).max))
        numbers = draw.choice(known, shape) if several else draw.randint(0, largest + 1, shape)
        if manner in (4, STRANGE) and not several and kind != "b":  # some marks, or nothing else
            is_mark = draw.uniform(0.0, 1.0, shape) < (0.4 if manner == 4 else 1.0)
            numbers = np.where(is_mark, draw.randint(0, min(largest, MARKS_MAX) + 1, shape), numbers)
    else:
        bounds = np.iinfo(value.dtype)
        numbers = draw.randint(bounds.min, bounds.max + 1, shape)
    return np.asarray(numbers).astype(value.dtype)
