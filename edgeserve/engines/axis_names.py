"""What a model's file tells about the batch by the names and lengths of axes: whether an output can have a row for each
item. Names are only a sign: exporters make them up, and people give wrong ones. A run tells more
(:mod:`edgeserve.engines.row_check`)."""

from __future__ import annotations

import re
from typing import Optional, Protocol, Sequence, Tuple

BATCH_NAMES = re.compile(r"batch|sample|^(n|b|bs|bsz|rows?|examples?)$", re.IGNORECASE)
"""What exporters and people call the axis of a batch."""

VALUES_NAME = re.compile(r"u\d+")
"""What torch calls a length that depends on values."""


class Named(Protocol):
    """An input or output as the model declares it, :class:`edgeserve.engines.ports.Port`."""

    @property
    def name(self) -> str: ...

    @property
    def dims(self) -> Tuple[Optional[int], ...]: ...

    @property
    def axes(self) -> Tuple[str, ...]: ...


def batch_elsewhere(inputs: Sequence[Named]) -> str:
    """Why the first axis of ``inputs``, those that a request brings, is no batch by its name; ``""`` where it may be
    one."""
    for port in inputs:
        if any(map(_is_batch, port.axes[1:])) and not _is_batch(_first(port)):
            return f"the batch is not the first axis of input {port.name!r}, but one behind it"
    told = {_first(port) for port in inputs if _was_chosen(_first(port))}
    if len(told) > 1 and not all(map(_is_batch, told)):
        return f"the first axes of its inputs are different ones: {', '.join(map(repr, sorted(told)))}"
    return ""


def length_of_another(inputs: Sequence[Named], outputs: Sequence[Named]) -> str:
    """Why an output cannot have a row for each item, since the file fixes other lengths; ``""`` where it may.
    ``outputs`` are those that are no states."""
    fixed = {port.dims[0] for port in inputs if port.dims}
    for port in outputs:
        if port.dims and None not in (port.dims[0], *fixed) and port.dims[0] not in fixed:
            shown = " and ".join(map(str, sorted(fixed, key=str)))
            return f"the first axis of output {port.name!r} has a length of {port.dims[0]}, that of its inputs {shown}"
    return ""


def name_of_another(inputs: Sequence[Named], outputs: Sequence[Named]) -> str:
    """Which output's first axis has a name that none of the inputs' has, and that somebody chose; ``""`` where none. A
    sign, and not always right: an exporter's user may have called a batch ``time``."""
    firsts = {_first(port) for port in inputs} - {""}
    if not firsts and any(port.dims and port.dims[0] is None for port in inputs):
        return ""
    for port in outputs:
        name = _first(port)
        if name not in {"", *firsts} and _was_chosen(name) and not _is_batch(name):
            return f"the first axis of output {port.name!r} is {name!r}, which is no axis of its inputs' batch"
    return ""


def _first(port: Named) -> str:
    return port.axes[0] if port.axes else ""


def _is_batch(name: str) -> bool:
    return bool(name) and BATCH_NAMES.search(name) is not None


def _was_chosen(name: str) -> bool:
    """Whether somebody chose the name. Converters make up names by counting, another for each tensor: ``unk__7``,
    ``output_dim_0``, ``s0``, ``p2o.DynamicDimension.3``."""
    words = any(map(str.isalpha, name)) and not any(map(str.isdigit, name)) and name != "None"
    return words or VALUES_NAME.fullmatch(name) is not None
