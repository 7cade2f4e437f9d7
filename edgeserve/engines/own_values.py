"""The values that go into a function and come out of it, kept apart from those of others.

A request's inputs are read by each node that begins with them and by the caller, and what a node made by all of its
successors: a function that wrote into them would give the others wrong answers. So it gets arrays that cannot be
written (as they come over the bus, too) and containers of its own. It may fill the same array again for its next item,
before what it returned was read: that is copied.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Set, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.base import Result, Values

COPIED_BYTES_MAX = 1 << 14
"""Copying an array of as many took 1 us on an AMD EPYC, of twice as many 26 us."""

DEPTH_MAX = 8
"""The depth of containers in containers to which they are made the function's own."""

_CONTAINERS = (list, dict, set, bytearray)
_NESTED = {list, tuple, dict}


def lent(item: Values) -> Values:
    """An item as a function gets it: writing to its arrays raises ``ValueError``, its lists and dicts are its own."""
    return {name: _lent(value, DEPTH_MAX) for name, value in item.items()}


def _lent(value: Any, depth: int) -> Any:
    if isinstance(value, np.ndarray):
        if not value.flags.writeable:
            return value
        view = value.view()
        view.flags.writeable = False
        return view
    kind = type(value)
    if kind not in _NESTED:
        return value.copy() if kind in _CONTAINERS else value
    inner = value.values() if kind is dict else value
    if not depth or not any(_is_shared(one) for one in set(map(type, inner))):
        return value if kind is tuple else value.copy()
    if kind is dict:
        return {name: _lent(one, depth - 1) for name, one in value.items()}
    return kind([_lent(one, depth - 1) for one in value])


def _is_shared(kind: type) -> bool:
    """True for types whose values could be written to."""
    return kind in _CONTAINERS or kind is tuple or issubclass(kind, np.ndarray)


def owned(result: Result, lent_item: Values, given: Values) -> Result:
    """The result with values of its own: what the function could still write to is copied. An array of ``lent_item``,
    as :func:`lent` made it, that it returns is the one of ``given`` for which it stands."""
    arrays = {name: value for name, value in lent_item.items() if isinstance(value, np.ndarray)}
    inputs = {id(value): given[name] for name, value in arrays.items()}
    bases = {id(value.base) for value in arrays.values() if value.base is not None}
    result.outputs = _owned(result.outputs, inputs, bases)
    if result.parts:
        result.parts = [_owned(part, inputs, bases) for part in result.parts]
    return result


def _owned(values: Values, inputs: Dict[int, Any], bases: Set[int]) -> Values:
    return {
        name: inputs[id(value)] if id(value) in inputs else _kept(value, inputs, bases)
        for name, value in values.items()
    }


def _kept(value: Any, inputs: Dict[int, Any], bases: Set[int]) -> Any:
    kind = type(value)
    if kind is np.ndarray:
        is_others = (value.nbytes <= COPIED_BYTES_MAX or _is_held(value)) and (
            id(value.base) not in bases and id(value.base) not in inputs
        )
        return value.copy() if is_others else value
    return value.copy() if kind in _CONTAINERS else value


def _references(array: NDArray[Any]) -> Tuple[int, int]:
    """The numbers of references to an array, and to the array that it is a view of."""
    base = array.base
    return sys.getrefcount(array), 0 if base is None else sys.getrefcount(base)


def _is_held(array: NDArray[Any]) -> bool:
    """True if something besides the returned dict refers to an array, or to what it is a view of."""
    found = _references(array)
    return found[0] > _ALONE[0] or found[1] > _ALONE[1]


def _counted(array: NDArray[Any]) -> Tuple[int, int]:
    return _counted_as_held(array)


def _counted_as_held(array: NDArray[Any]) -> Tuple[int, int]:
    return _references(array)


_ALONE = next(iter({name: _counted(value) for name, value in {"x": np.zeros(2)[:1]}.items()}.values()))
"""References to an array and its base that only a dict holds, counted on the way by which :func:`_kept` counts them:
the interpreter's own differ between versions."""
