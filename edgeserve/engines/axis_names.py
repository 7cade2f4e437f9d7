"""What a model's file tells about the batch by the names and lengths of axes: whether an output can have a row for each
item. Names are only a sign: exporters make them up, and leave them out. What they do not tell, a run does
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


def lacking_rows(inputs: Sequence[Named], outputs: Sequence[Named]) -> str:
    """Why an output has not a row for each item of a batch of ``inputs``; ``""`` where it may have. ``inputs`` are
    those that a request brings, ``outputs`` those that are no states."""
    firsts = {_first(port) for port in inputs} - {""}
    lengths = {port.dims[0] for port in inputs if port.dims}
    fixed = set() if None in lengths else lengths
    for port in inputs:
        if any(map(_is_batch, port.axes[1:])) and not _is_batch(_first(port)):
            return f"the batch is not the first axis of input {port.name!r}, but one behind it"
    told = {name for name in firsts if _was_chosen(name)}
    if len(told) > 1 and not all(map(_is_batch, told)):
        return f"the first axes of its inputs are different ones: {', '.join(map(repr, sorted(told)))}"
    for port in outputs:
        name, length = _first(port), port.dims[0] if port.dims else None
        if (firsts or fixed) and name not in {"", *firsts} and _was_chosen(name) and not _is_batch(name):
            return f"the first axis of output {port.name!r} is {name!r}, which is no axis of its inputs' batch"
        if fixed and length is not None and length not in fixed:
            shown = " and ".join(map(str, sorted(fixed, key=str)))
            return f"the first axis of output {port.name!r} has a length of {length}, that of its inputs {shown}"
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
