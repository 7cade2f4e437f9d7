"""Optimisation profiles: from batch sizes and the ranges of other open axes to the shapes of every input.

Pure functions. TensorRT chooses kernels per profile; a profile with one batch size (smallest = usual = largest) gets
the best kernels for it, and an input outside every profile cannot run.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.collate import dims_text
from edgeserve.engines.options import of_name
from edgeserve.engines.tensorrt.settings import BuildRequest
from edgeserve.errors import EngineError

Dims = Tuple[int, ...]


class Input(NamedTuple):
    """An input of a network. ``dims`` has -1 for open axes, the batch axis included. ``is_shape``: its values decide
    how large other tensors are."""

    name: str
    dims: Dims
    is_shape: bool = False


class ProfileShape(NamedTuple):
    """Smallest, usual and largest shape of one input in one profile."""

    low: Dims
    usual: Dims
    high: Dims


Profile = Dict[str, ProfileShape]
"""Input -> its shapes."""


def fixed_batch(inputs: Sequence[Input], request: BuildRequest) -> Optional[int]:
    """The size that the network's batch axis is fixed at, ``None`` when it is open."""
    for port in _batched(inputs, request):
        if port.dims and port.dims[0] >= 0:
            return port.dims[0]
    return None


def profiles_of(inputs: Sequence[Input], request: BuildRequest, where: str) -> List[Tuple[int, Profile]]:
    """One profile per batch size, in rising order, times the copies that the caller makes. Raises
    :class:`EngineError` that names the input and the key that mends it; ``where`` names the model."""
    names = {port.name for port in inputs}
    for name in request.ranges:
        if name not in names:
            raise EngineError(
                f"{where}: options.ranges names {name!r}, which is no input of the model "
                f"(inputs: {', '.join(sorted(names))})"
            )
    fixed = fixed_batch(inputs, request)
    if fixed is not None and max(request.sizes) > fixed:
        raise EngineError(
            f"{where}: batch = {request.sizes}, but the model's batch axis is fixed at {fixed}; set "
            "batch = [1], or export the model with an open batch axis"
        )
    sizes = request.sizes if fixed is None else [fixed]
    return [(size, {port.name: _shape(port, size, inputs, request, where) for port in inputs}) for size in sizes]


def item_ranges(inputs: Sequence[Input], request: BuildRequest, where: str) -> Dict[str, ProfileShape]:
    """Batched input -> the shapes of an item (no batch axis) that its profiles take."""
    return {port.name: _item_shape(port, inputs, request, where) for port in _batched(inputs, request)}


def _batched(inputs: Sequence[Input], request: BuildRequest) -> List[Input]:
    given = {*request.states, *request.constants, *request.masks.values()}
    return [port for port in inputs if port.name not in given]


def _shape(port: Input, size: int, inputs: Sequence[Input], request: BuildRequest, where: str) -> ProfileShape:
    if port.is_shape:
        raise EngineError(
            f"{where}: the values of input {port.name!r} decide the sizes of other tensors; this engine "
            "needs sizes that follow from the inputs' shapes. Export the model with fixed sizes, or run "
            "it with engine = 'onnx'"
        )
    if port.name in request.constants:
        one = _constant_dims(port, np.asarray(request.constants[port.name]))
        return ProfileShape(one, one, one)
    if port.name in request.states:
        axis = of_name(request.state_axis, port.name)
        lengths = request.shapes.get(port.name) or [*port.dims[:axis], *port.dims[axis + 1 :]]
        one = (*lengths[:axis], size, *lengths[axis:])
        if min(one) < 0 or len(one) != len(port.dims):
            raise EngineError(
                f"{where}: state {port.name!r} has the shape {list(port.dims)}; give its lengths per "
                f"item in shapes = {{{port.name} = [...]}}"
            )
        return ProfileShape(one, one, one)
    masked = {mask: padded for padded, mask in request.masks.items()}.get(port.name)
    if masked is not None:
        of = _item_shape(next(item for item in inputs if item.name == masked), inputs, request, where)
        axes = len(port.dims) - 1
        return ProfileShape(*((size, *row[:axes]) for row in of))
    return ProfileShape(*((size, *row) for row in _item_shape(port, inputs, request, where)))


def _constant_dims(port: Input, value: NDArray[Any]) -> Dims:
    return tuple(value.shape) if value.ndim == len(port.dims) else tuple(max(1, dim) for dim in port.dims)


def _item_shape(port: Input, inputs: Sequence[Input], request: BuildRequest, where: str) -> ProfileShape:
    """The shapes of one item: fixed axes as the model has them, open ones from ``ranges``, else from ``shapes``."""
    own = port.dims[1:]
    shown = dims_text([None if dim < 0 else dim for dim in own])
    one = request.shapes.get(port.name)
    rows = request.ranges.get(port.name) or ([one] * 3 if one is not None else [list(own)] * 3)
    what = f"options.ranges.{port.name}" if port.name in request.ranges else f"shapes.{port.name}"
    if any(len(row) != len(own) for row in rows) or any(
        dim >= 0 and row[axis] != dim for row in rows for axis, dim in enumerate(own)
    ):
        raise EngineError(
            f"{where}: {what} = {rows[0] if rows[0] == rows[2] else rows}, but input {port.name!r} has "
            f"the shape {shown} per item"
        )
    if any(dim < 0 for row in rows for dim in row):
        raise EngineError(
            f"{where}: input {port.name!r} has open axes, {shown} per item; TensorRT needs their bounds: "
            f"options.ranges = {{{port.name} = [smallest, usual, largest]}}, or one length each "
            f"in shapes = {{{port.name} = [...]}}"
        )
    return ProfileShape(*(tuple(int(dim) for dim in row) for row in rows))


def longest_items(profiles: Sequence[Tuple[int, Profile]]) -> Dict[str, Dims]:
    """Input -> the longest shape of an item that every profile takes."""
    return {name: tuple(map(min, zip(*(shapes[name].high[1:] for _, shapes in profiles)))) for name in profiles[0][1]}


def outside(shape: Sequence[int], allowed: ProfileShape) -> bool:
    """True if an item's shape lies outside what the profiles take."""
    return len(shape) != len(allowed.low) or any(
        not low <= dim <= high for dim, low, high in zip(shape, allowed.low, allowed.high)
    )


def as_json(profiles: Sequence[Tuple[int, Profile]]) -> List[Any]:
    """Profiles for a plan's metadata: ``[[size, {input: [low, usual, high]}], ...]``."""
    return [
        [size, {name: [list(row) for row in shape] for name, shape in profile.items()}] for size, profile in profiles
    ]
