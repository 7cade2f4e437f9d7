"""The values that go into a function and come out of it, kept apart from those of others.

A request's inputs are read by each node that begins with them and by the caller, and what a node made by all of its
successors: a function that wrote into them would give the others wrong answers. So it gets arrays that cannot be
written (as they come over the bus, too) and containers of its own. It may fill the same array again for its next item,
before what it returned was read: that is copied.
"""

from __future__ import annotations

import array
import collections
import copy
import sys
from typing import Any, Callable, Dict, Set, Tuple

import numpy as np
from numpy.typing import NDArray

Values = Dict[str, Any]

COPIED_BYTES_MAX = 1 << 14
"""Copying an array of as many took 1 us on an AMD EPYC, of twice as many 26 us."""

DEPTH_MAX = 8
"""The depth of containers in containers to which they are made the function's own."""

_CONTAINERS = (list, tuple, dict, set, collections.deque, bytearray, memoryview, array.array)


def lent(item: Values) -> Values:
    """An item as a function gets it: writing to its arrays raises ``ValueError``, its lists, dicts and arrays of other
    libraries are its own."""
    return {name: _remade(value, _read_only) for name, value in item.items()}


def private(state: Any) -> Any:
    """A state as a function gets it: its arrays (also torch's), lists and dicts are copies, so that a call that fails
    has changed none. Objects of other classes are the same."""
    return _remade(state, _copied)


def owned(result: Any, lent_item: Values, given: Values) -> Any:
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
    def kept(array: Any) -> Any:
        if id(array) in inputs:
            return inputs[id(array)]
        base = id(getattr(array, "base", None))
        return array if base in bases or base in inputs else _copied(array)

    return {
        name: value if type(value) is np.ndarray and _is_alone(value) else _remade(value, kept)
        for name, value in values.items()
    }


def _remade(value: Any, of_array: Callable[[Any], Any], depth: int = DEPTH_MAX) -> Any:
    """A value whose containers are new, with its arrays as ``of_array`` has them."""
    if _is_array(value):
        return of_array(value)
    if not isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, memoryview):
        is_fixed = value.readonly and isinstance(value.obj, bytes)
        return value if is_fixed else np.array(value).data.toreadonly()
    inner = value.values() if isinstance(value, dict) else value
    is_deep = depth > 0 and any(map(_is_shared, set(map(type, inner))))
    if isinstance(value, tuple):
        if not is_deep:
            return value
        parts = [_remade(one, of_array, depth - 1) for one in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    made: Any = copy.copy(value)
    if is_deep and not isinstance(value, set):
        for place in list(made) if isinstance(made, dict) else range(len(made)):
            made[place] = _remade(made[place], of_array, depth - 1)
    return made


def _is_array(value: Any) -> bool:
    """True for an array of numpy, or of a library whose arrays copy themselves, such as torch's."""
    return isinstance(value, np.ndarray) or _copies_itself(type(value))


def _copies_itself(kind: type) -> bool:
    return hasattr(kind, "__array__") and hasattr(kind, "__deepcopy__") and not issubclass(kind, np.generic)


def _is_shared(kind: type) -> bool:
    """True for a type whose values could be written to."""
    return issubclass(kind, (*_CONTAINERS, np.ndarray)) or _copies_itself(kind)


def _read_only(array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        return _copied(array)
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _copied(array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        return array.clone() if hasattr(array, "clone") else copy.deepcopy(array)
    base: Any = array.base
    if isinstance(base, bytes):
        return array
    made = array.copy()
    if made.dtype == object and any(map(_is_shared, set(map(type, made.flat)))):
        for place, one in enumerate(made.flat):
            made.flat[place] = _remade(one, _copied)
    return made


def _is_alone(array: NDArray[Any]) -> bool:
    """True for a large array of numbers in memory of numpy's own, to which nothing but the returned dict refers."""
    found = _references(array)  # before a local name refers to it, too
    owner = array if array.base is None else array.base
    is_own = type(owner) is np.ndarray and owner.flags.owndata and not array.dtype.hasobject
    return is_own and array.nbytes > COPIED_BYTES_MAX and found[0] <= _ALONE[0] and found[1] <= _ALONE[1]


def _references(array: NDArray[Any]) -> Tuple[int, int]:
    """The numbers of references to an array, and to the array that it is a view of."""
    base = array.base
    return sys.getrefcount(array), 0 if base is None else sys.getrefcount(base)


def _counted(array: NDArray[Any]) -> Tuple[int, int]:
    return _references(array)


_ALONE = next(iter({name: _counted(value) for name, value in {"x": np.zeros(2)[:1]}.items()}.values()))
"""References to an array and its base that only a dict holds, counted on the way by which :func:`_is_alone` counts
them: the interpreter's own differ between versions."""
