"""Lengths of padded axes, rounded up to few: each shape that a runtime has not seen costs it a search for kernels, a
plan or a CUDA graph (``options.pad_multiple``). Pure functions; no array, no model."""

from __future__ import annotations

from typing import Any, Mapping, Sequence, Tuple, Union

from edgeserve.config.readers import integer, takes, tuple_of
from edgeserve.errors import EngineError

Rounding = Union[int, Tuple[int, ...]]
"""A number, whose multiples are the lengths of an axis, or the lengths themselves, rising."""

Shape = Tuple[int, ...]


@takes(anyOf=[{"type": "integer", "minimum": 1}, {"type": "array", "items": {"type": "integer", "minimum": 1}}])
def rounding(value: Any, where: str) -> Rounding:
    """A reader of what an axis is rounded up to."""
    if isinstance(value, (list, tuple)):
        return tuple(sorted(tuple_of(integer(1))(value, where)))
    found: int = integer(1)(value, where)
    return found


def rounded(length: int, to: Rounding, most: int = 0) -> int:
    """The length that one of ``length`` is padded to: no more than ``most`` (0: no bound). A length above the largest
    of a list stays."""
    up = -(-length // to) * to if isinstance(to, int) else min([each for each in to if each >= length], default=length)
    return max(length, min(up, most)) if most else up


def beyond(shape: Shape, to: Sequence[Rounding], most: Shape) -> Shape:
    """The least shape whose axes are rounded to other lengths than those of ``shape``; an axis without one stays."""
    found = []
    for axis, (length, each) in enumerate(zip(shape, to)):
        bound = most[axis] if most else 0
        longer = rounded(length, each, bound) + 1
        is_taken = rounded(longer, each, bound) > longer - 1 and each != 1 and not (bound and longer > bound)
        found.append(longer if is_taken else length)
    return tuple(found)


def check_roundings(
    where: str, roundings: Mapping[str, Sequence[Rounding]], pads: Mapping[str, Any], ranks: Mapping[str, int]
) -> None:
    """Refuse ``options.pad_multiple`` of an input that is not padded, or of another number of axes."""
    for name, axes in roundings.items():
        if name not in pads:
            raise EngineError(
                f"{where}: options.pad_multiple names {name!r}, whose items are not padded; allow it with "
                f"pad = {{{name} = 0.0}}, or leave it out"
            )
        if len(axes) != ranks[name]:
            raise EngineError(
                f"{where}: options.pad_multiple.{name} = {list(axes)} has {len(axes)} values, and an item has "
                f"{ranks[name]} axes (without the batch axis); give one for each, 1 for an axis that stays"
            )
