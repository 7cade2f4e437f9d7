"""Signs of the batch in a model's file, by the names and lengths of axes: whether an output can have a row for each
item. Names are only a sign: exporters make them up, and people give wrong ones. A run tells more
(:mod:`edgeserve.engines.row_check`)."""

from __future__ import annotations

import re
from typing import Sequence

from edgeserve.engines.port import Port

BATCH_NAMES = re.compile(r"batch|sample|^(n|b|bs|bsz|rows?|examples?)$", re.IGNORECASE)
"""Names that exporters and people give the axis of a batch."""

IMAGE_NAMES = re.compile(r"height|channel|^(h|c)$", re.IGNORECASE)
"""Names of the first axis of a single image."""

SERIES_NAMES = re.compile(r"sample|time|length", re.IGNORECASE)
"""Names of the only axis of a sound or a series."""

VALUES_NAME = re.compile(r"u\d+")
"""Names that torch gives a length that depends on values."""


def batch_elsewhere(inputs: Sequence[Port]) -> str:
    """The reason why the first axis of ``inputs`` (the request's ones) is no batch by its name; ``""`` where it may be
    one."""
    for port in inputs:
        if any(map(_is_batch, port.axes[1:])) and not _is_batch(_first(port)):
            return f"the batch is not the first axis of input {port.name!r}, but one behind it"
        if SERIES_NAMES.search(_first(port)) if len(port.dims) == 1 else IMAGE_NAMES.search(_first(port)):
            return f"the first axis of input {port.name!r} is {_first(port)!r}"
    told = {_first(port) for port in inputs if _was_chosen(_first(port))}
    lengths = {str(port.dims[0]) for port in inputs if port.dims and port.dims[0] is not None}
    if len(told | lengths) > 1 and told and not all(map(_is_batch, told)):
        shown = [*map(repr, sorted(told)), *sorted(lengths)]
        return f"the first axes of its inputs are different ones: {', '.join(shown)}"
    return ""


def length_of_another(inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    """The reason why an output cannot have a row for each item, since the file fixes other lengths; ``""`` where it
    may. ``outputs``: without states."""
    fixed = {port.dims[0] for port in inputs if port.dims}
    for port in outputs:
        if port.dims and None not in (port.dims[0], *fixed) and port.dims[0] not in fixed:
            shown = " and ".join(map(str, sorted(fixed, key=str)))
            return f"the first axis of output {port.name!r} has a length of {port.dims[0]}, that of its inputs {shown}"
    return ""


def name_of_another(inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    """The output whose first axis has a name that none of the inputs' has, and that a person chose; ``""`` where none.
    A sign, and not always right: an exporter's user may have called a batch ``time``."""
    firsts = {_first(port) for port in inputs} - {""}
    if not firsts and any(port.dims and port.dims[0] is None for port in inputs):
        return ""
    for port in outputs:
        name = _first(port)
        if name not in {"", *firsts} and _was_chosen(name) and not _is_batch(name):
            return f"the first axis of output {port.name!r} is {name!r}, which is no axis of its inputs' batch"
    return ""


def _first(port: Port) -> str:
    return port.axes[0] if port.axes else ""


def _is_batch(name: str) -> bool:
    return bool(name) and BATCH_NAMES.search(name) is not None


def _was_chosen(name: str) -> bool:
    """True if a person chose the name. Converters make up names by counting, another for each tensor: ``unk__7``,
    ``output_dim_0``, ``s0``, ``p2o.DynamicDimension.3``."""
    words = any(map(str.isalpha, name)) and not any(map(str.isdigit, name)) and name != "None"
    return words or VALUES_NAME.fullmatch(name) is not None
