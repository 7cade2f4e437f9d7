"""True if the first axis of a model's inputs is a batch: by the names that the file gives to axes, and by runs.

The items of a batch do not know each other. So where another item changes the answers of the others, or an output has
not a row for each, the first axis may be part of the one item that the model takes: a filter over joints, a policy's
observation, a track in time, an image whose boxes come as one list.
"""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

import numpy as np

from edgeserve.commands.init.compute import CPU
from edgeserve.commands.init.roles import WITHOUT_BATCH_AXIS, NoBatchAxis, Roles, Shape, is_image, roles_of
from edgeserve.commands.init.trial import ModelTrial, opened, try_model
from edgeserve.engines.axis_names import batch_elsewhere, length_of_another
from edgeserve.engines.describe import FileDescription
from edgeserve.engines.port import Port
from edgeserve.engines.row_check import RowCheck
from edgeserve.errors import EngineError, WrongRows

MIXES = 0.05
"""By so much of its value another item changes an answer where both are parts of one thing. Less is a model of batches
that does not keep them wholly apart: numbers that are quantised by the range of the batch."""

AXES_MAX = 3
"""Floats of more axes than that with an open first one are a batch, as exporters write it, which the model mixes."""


def try_roles(
    name: str,
    path: str,
    description: FileDescription,
    shapes: Mapping[str, Shape],
    said: Optional[bool],
    gpu: Optional[bool],
) -> Tuple[Roles, ModelTrial]:
    """The role of each input, and how the model ran so; with the batch axis as the user says it (``said``), else as
    names and runs show it. :class:`EngineError` where neither tells, or nothing runs."""
    roles = find_roles(name, path, description, shapes, said)
    may_be_whole = said is None and roles.batch_axis and _can_be_whole(description)
    try:
        tried = _try_types(name, path, roles, gpu)
    except WrongRows as error:
        if not may_be_whole:
            raise
        try:
            whole = _whole(description, shapes, path, "an output has not a row for each item of a batch")
            return whole, try_model(name, path, whole, gpu)
        except EngineError:
            raise error from None
    why = ""
    if tried.mixing >= MIXES and all(map(_is_series, roles.given)):
        why = "one item of a batch would change the answers of the others"
    elif tried.other_rows and not any(map(is_image, roles.given)):
        why = "an output has not a row for each item of a batch"
    if may_be_whole and why and not roles.state:
        whole = _whole(description, shapes, path, why)
        return whole, try_model(name, path, whole, gpu)
    if tried.ended:
        roles.notes.append(f"no larger batches: {' '.join(tried.ended.split())}")
    return roles, tried


def _try_types(name: str, path: str, roles: Roles, gpu: Optional[bool]) -> ModelTrial:
    """Floats are tried where the file says no types, and then whole numbers; the error is that of the floats."""
    try:
        return try_model(name, path, roles, gpu)
    except WrongRows:
        raise
    except EngineError as error:
        if not roles.description.opaque:
            raise
        floats, roles.given = roles.given, [port._replace(dtype=np.dtype(np.int64)) for port in roles.given]
        try:
            tried = try_model(name, path, roles, gpu)
        except EngineError:
            roles.given = floats
            raise EngineError(
                f"{error}. TorchScript does not say types: float32 and int64 were tried; for others write "
                "options.inputs with a dtype for each by hand"
            ) from None
        roles.notes.append("int64 is written as the type of its inputs: with float32 it does not run")
        return tried


def find_roles(
    name: str, path: str, description: FileDescription, shapes: Mapping[str, Shape], said: Optional[bool]
) -> Roles:
    """The role of each input, with the batch axis as the user says it, else as the file shows it, and a run where it
    fixes a length. :class:`EngineError` where neither tells."""
    if said is not None or not _can_be_whole(description):
        return roles_of(description, shapes, path, said is not False)
    try:
        roles = roles_of(description, shapes, path)
    except NoBatchAxis:
        return roles_of(description, shapes, path, batch_axis=False)
    states = set(roles.state.values())
    answers = [port for port in description.outputs if port.name not in states]
    elsewhere = batch_elsewhere(roles.given)
    why = length_of_another(roles.given, answers) or elsewhere
    if elsewhere or (why and not states):
        return _whole(description, shapes, path, why)
    if roles.fixed_batch is None or roles.fixed_batch == 1:
        return roles
    if any(map(_is_frame, roles.given)):
        return _whole(description, shapes, path, "three axes, one of them colours, are one image")
    if _is_one_item(name, path, roles, roles.fixed_batch):
        return roles_of(description, shapes, path, batch_axis=False)
    if all(len(port.dims) == 1 for port in roles.given):
        shown = ", ".join(f"{port.name} [{roles.fixed_batch}]" for port in roles.given)
        raise EngineError(
            f"{path}: a run does not tell whether {shown} is one item or a batch of {roles.fixed_batch}: each answer "
            "depends on its own value alone. Give --batch-axis no for one item, --batch-axis yes for a batch"
        )
    return roles


def _can_be_whole(description: FileDescription) -> bool:
    return description.engine in WITHOUT_BATCH_AXIS and not description.opaque


def _whole(description: FileDescription, shapes: Mapping[str, Shape], path: str, why: str) -> Roles:
    roles = roles_of(description, shapes, path, batch_axis=False)
    roles.notes.append(f"one request is one run of the model, without a batch axis: {' '.join(why.split())}")
    return roles


def _is_one_item(name: str, path: str, roles: Roles, size: int) -> bool:
    """True if what looks like a batch of a fixed size is one item."""
    try:
        with opened(name, path, roles, roles.candidates[0], (size,), roles.description.engine, CPU) as (engine, lane):
            check = RowCheck((size,), engine.rows())
            check.begin(engine.open(lane), engine.example())
            check.look(size)
    except EngineError:
        return True
    return check.mixing > 0.0 or check.wrong_rows is not None


def _is_frame(port: Port) -> bool:
    """True if an input is one image and no batch: bytes with their colours last, or three colours first."""
    if len(port.dims) != 3:
        return False
    first, second, last = (dim or 0 for dim in port.dims)
    is_bytes = np.dtype(port.dtype) == np.uint8 and last in (1, 3, 4) and min(first, second) > 4
    return is_bytes or (first == 3 and min(second, last) > 4)


def _is_series(port: Port) -> bool:
    """True if an input may be one item with its first axis: numbers along it, and no image."""
    return np.dtype(port.dtype).kind == "f" and len(port.dims) <= AXES_MAX and not is_image(port)
