"""Whether the first axis of a model's inputs is a batch: found out by a run, since a file does not say so.

The items of a batch do not know each other. So where another item 0 changes the answers of the others, the first axis
is part of the one item that the model takes: a filter over joints, a policy's observation.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

import numpy as np

from edgeserve.engines.base import Batch, Values, run_whole
from edgeserve.engines.describe import FileDescription
from edgeserve.errors import EngineError
from edgeserve.tools.init.compute import CPU
from edgeserve.tools.init.roles import NoBatchAxis, Roles, Shape, roles_of
from edgeserve.tools.init.trial import opened

SEED = 3
TOLERANCE = 1e-4
"""Relative change of an output that counts: kernels may add up one row in another order when another row differs."""

AXES_MAX = 2
"""Inputs of floats with an open first axis and more axes than that are not tried: a batch, as exporters write it."""


def find_roles(
    name: str, path: str, description: FileDescription, shapes: Mapping[str, Shape], said: Optional[bool]
) -> Roles:
    """What each input is, with the batch axis as the user says it, else as a run shows it. :class:`EngineError` where
    neither tells."""
    if said is not None or description.engine != "onnx":
        return roles_of(description, shapes, path, said is not False)
    try:
        roles = roles_of(description, shapes, path)
    except NoBatchAxis:
        return roles_of(description, shapes, path, batch_axis=False)
    if not _is_doubtful(roles):
        return roles
    if _items_mix(name, path, roles):
        return roles_of(description, shapes, path, batch_axis=False)
    if roles.fixed_batch is not None and all(len(port.dims) == 1 for port in roles.given):
        shown = ", ".join(f"{port.name} [{roles.fixed_batch}]" for port in roles.given)
        raise EngineError(
            f"{path}: a run does not tell whether {shown} is one item or a batch of {roles.fixed_batch}: each answer "
            "depends on its own value alone. Give --batch-axis no for one item, --batch-axis yes for a batch"
        )
    return roles


def _is_doubtful(roles: Roles) -> bool:
    if roles.fixed_batch is not None:
        return roles.fixed_batch > 1
    return all(np.dtype(port.dtype).kind == "f" and len(port.dims) <= AXES_MAX for port in roles.given)


def _items_mix(name: str, path: str, roles: Roles) -> bool:
    """Whether another item 0 changes the answers of the other items, or the outputs have no row per item. ``False`` too
    where the model answers the same question differently each time."""
    size = roles.fixed_batch or 2
    try:
        with opened(name, path, roles, roles.candidates[0], (size,), "onnx", CPU) as (engine, lane):
            session, example = engine.open(lane), engine.example()
            draw = np.random.RandomState(SEED)
            items = [_drawn(example, draw) for _ in range(size)]
            other = [_drawn(example, draw), *items[1:]]
            before, again, after = (
                [result.outputs for result in run_whole(session, Batch(batch, size))[0]]
                for batch in (items, items, other)
            )
    except EngineError:
        return roles.fixed_batch is not None
    return not _differ(before, again) and _differ(before[1:], after[1:])


def _drawn(example: Values, draw: Any) -> Values:
    item: Dict[str, Any] = {}
    for name, value in example.items():
        kind = value.dtype.kind
        item[name] = (draw.random_sample(value.shape) if kind == "f" else draw.randint(0, 2, value.shape)).astype(
            value.dtype
        )
    return item


def _differ(some: List[Any], others: List[Any]) -> bool:
    for one, other in zip(some, others):
        for name, value in one.items():
            kind = np.asarray(value).dtype.kind
            if kind == "f" and np.allclose(value, other[name], TOLERANCE, TOLERANCE * np.abs(value).max(), True):
                continue
            if not np.array_equal(value, other[name]):
                return True
    return False
