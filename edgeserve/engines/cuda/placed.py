"""Inputs of a batch that lie on the GPU: their rows are packed as room on the host, and copied within the device."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from edgeserve.engines.base import Batch, Result
from edgeserve.engines.collate import Room
from edgeserve.engines.device_arrays import DeviceArray
from edgeserve.errors import EngineError


class Placed(NamedTuple):
    """An input that lies on the device: of which name, in which row of the batch."""

    name: str
    row: int
    array: DeviceArray


def placed(batch: Batch, room: Room) -> Tuple[Batch, List[Placed]]:
    """The batch with host arrays in place of inputs on the device, and those. They are rows of the memory that it is
    packed into, so that packing them copies nothing."""
    found = [
        Placed(name, row, value)
        for row, item in enumerate(batch.items)
        for name, value in item.items()
        if isinstance(value, DeviceArray)
    ]
    if not found:
        return batch, found
    items = [dict(item) for item in batch.items]
    for name, row, array in found:
        rows = room(name, (batch.size, *array.shape), array.dtype)
        items[row][name] = np.zeros(array.shape, array.dtype) if rows is None else rows[row]
    return batch._replace(items=items), found


def without(there: Sequence[Placed], failed: Mapping[int, Exception]) -> List[Placed]:
    """The items that are left, in their rows among these."""
    return [
        each._replace(row=each.row - sum(place < each.row for place in failed))
        for each in there
        if each.row not in failed
    ]


def all_there(name: str, rows: int, there: Sequence[Placed]) -> bool:
    """True if every row of an input lies on the device."""
    return sum(each.name == name for each in there) == rows


def refused(batch: Batch, where: str, why_not: Callable[[str, DeviceArray], str]) -> Dict[int, EngineError]:
    """The items with an input that cannot stay on the device, and why."""
    return {
        place: EngineError(f"{where}: input {name!r} lies on the GPU, and is {why} there; send a copy on the host")
        for place, item in enumerate(batch.items)
        for name, value in item.items()
        if isinstance(value, DeviceArray)
        for why in [why_not(name, value)]
        if why
    }


OF_ANOTHER_CONTEXT = "of another CUDA context (import pycuda.autoprimaryctx, not pycuda.autoinit)"
"""The reason to refuse an array whose pointer means nothing in the primary context."""


def merged(results: Sequence[Result], failed: Mapping[int, EngineError], count: int) -> List[Result]:
    """``results`` of the items that were handed on, and between them those of ``failed``."""
    rest = iter(results)
    return [Result({}, error=failed[place]) if place in failed else next(rest) for place in range(count)]
