"""Named values to and from frames: arrays as raw buffers with a table, strings inside the header.

The half of the wire format that requests and replies share. Pure functions; the whole message is ``wire``'s.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from edgeserve import texts
from edgeserve.config.limits import NAME_CHARS_MAX
from edgeserve.errors import BadInput, Malformed, TooLarge, with_nearest

TENSORS_MAX = 64
TEXTS_MAX = 64
TEXT_ITEMS_MAX = 65_536  # strings in one list output: pages of recognised lines
RANK_MAX = 8
LARGE_BYTES = 64 * 1024
"""The least bytes of a buffer that travels without a copy in Python. Below, a copy costs less than the bookkeeping of
not copying: measured on x86-64, 4 KiB: 3 against 16 us; 64 KiB: 5 against 9; 600 KB: 70 to 600 against 18."""

DTYPES: Dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    )
}
"""The types of a tensor's elements, little-endian; besides, texts (:mod:`edgeserve.texts`)."""
TEXT = "text"
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BOOL = DTYPES["bool"]

Buffer = Union[bytes, memoryview]


class Place(NamedTuple):
    """The place of a tensor in shared memory, instead of in a frame."""

    offset: int
    nbytes: int


class SharedPlaces(Protocol):
    """Shared memory that large tensors are put into."""

    def put(self, value: NDArray[Any]) -> Optional[int]:
        """Copy an array there; its offset, ``None`` where no room is left."""


class _End(weakref.ref):  # type: ignore[type-arg]  # no generic class at run time on Python 3.8
    """The callback for an array that is gone. ``weakref.finalize`` does the same in four times the time."""

    __slots__ = ("call", "told")

    call: Callable[[Any], None]
    told: Any


_ends: Dict[int, _End] = {}


def call_when_gone(value: NDArray[Any], call: Callable[[Any], None], told: Any) -> None:
    """Call ``call(told)`` when an array and all that was made over it are gone: on any thread, also while memory is
    collected, so that it may not wait for anything. Not at the end of the process."""
    end = _End(value, _gone)
    end.call, end.told = call, told
    _ends[id(end)] = end


def _gone(end: _End) -> None:
    del _ends[id(end)]
    end.call(end.told)


NUMBERS = (np.generic, bool, int, float)


def show(value: Any) -> str:
    """A value for an error text: short, for any value."""
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (str, bytes)) and len(value) > 40:
        return f"{value[:40]!r}... ({len(value)} long)"
    return repr(value)


def encode_values(
    values: Mapping[str, Any],
    fields: Dict[str, Any],
    frames: List[Any],
    what: str,
    lists: bool = True,
    places: Optional[SharedPlaces] = None,
) -> int:
    """Add named values to a header's ``tensors`` and ``texts`` and to its frames; returns the bytes of the tensors.

    numpy arrays and scalars and Python numbers travel as tensors (a number as a 0-d one, a list of them as a 1-d one
    where ``lists``), strings (and lists of strings where ``lists``) as texts, other arrays and lists of strings as
    tensors of texts. Anything else raises ``TypeError`` naming it. Large tensors of numbers go into shared memory
    instead of frames where ``places`` has room.
    """
    table: List[Any] = []
    total = 0
    for name, value in values.items():
        if type(name) is not str or not 0 < len(name) <= NAME_CHARS_MAX:
            raise TypeError(f"{what} name {show(name)}: expected 1 to {NAME_CHARS_MAX} characters")
        if type(value) is not np.ndarray:
            if type(value) is str or (lists and type(value) in (list, tuple)):
                if type(value) is str or all(type(item) is str for item in value):
                    if type(value) is not str and len(value) > TEXT_ITEMS_MAX:
                        raise TypeError(
                            f"{what} {name!r} has {len(value)} texts, at most {TEXT_ITEMS_MAX} are in a list"
                        )
                    fields.setdefault("texts", {})[name] = value
                    continue
                if all(isinstance(item, NUMBERS) for item in value):
                    value = np.asarray(value)
            value = _as_array(value, name, what)
        if value.ndim > RANK_MAX:
            raise TypeError(f"{what} {name!r} has {value.ndim} dimensions, at most {RANK_MAX} travel")
        code = DTYPE_NAMES.get(value.dtype)
        if code is None and value.dtype.kind in "OU":
            data = _as_texts(value, name, what)
            if not value.ndim:
                fields.setdefault("texts", {})[name] = data.item()
                continue
            packed = texts.to_bytes(data)
            total += len(packed)
            table.append((name, TEXT, value.shape))
            frames.append(packed)
            continue
        if code is None:
            value, code = _as_little(value, name, what)
        size = value.nbytes
        if code == "bool" and size and value.view(np.uint8).max() > 1:
            value = value.view(np.uint8) != 0
        total += size
        offset = None if places is None or size < LARGE_BYTES else places.put(value)
        if offset is None:
            table.append((name, code, value.shape))
            frames.append(value.tobytes() if size < LARGE_BYTES else np.ascontiguousarray(value).data)
        else:
            table.append((name, code, value.shape, offset, size))
    if table:
        fields["tensors"] = table
    for kind, most in (("tensors", TENSORS_MAX), ("texts", TEXTS_MAX)):
        if len(fields.get(kind, ())) > most:
            raise ValueError(f"{len(fields[kind])} {what} {kind}, at most {most} travel in one message")
    return total


def _as_array(value: Any, name: str, what: str) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray) and np.any(value.mask):
        raise TypeError(f"{what} {name!r} is a masked array, and masks do not travel; send numbers: x.filled(0)")
    if isinstance(value, (np.ndarray, *NUMBERS)):
        return np.asarray(value)
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if type(value) in (list, tuple):
        return _as_texts(value, name, what)
    raise TypeError(f"{what} {name!r} is a {type(value).__name__}; expected a numpy array, a number or a string")


def _as_texts(value: Any, name: str, what: str) -> NDArray[Any]:
    try:
        array = texts.text_array(value)
    except (ValueError, RuntimeError) as error:  # RuntimeError: more dimensions than numpy iterates over
        if isinstance(value, np.ndarray):
            raise TypeError(f"{what} {name!r} has dtype {value.dtype}, and {error}") from None
        raise TypeError(f"{what} {name!r} is a list of neither strings nor numbers; make it a numpy array") from None
    if array.size > texts.ELEMENTS_MAX:
        raise TypeError(f"{what} {name!r} has {array.size} texts, at most {texts.ELEMENTS_MAX} travel in one tensor")
    return array


def _as_little(value: NDArray[Any], name: str, what: str) -> Tuple[NDArray[Any], str]:
    little = value.dtype.newbyteorder("<")
    code = DTYPE_NAMES.get(little)
    if code is None:
        raise TypeError(f"{what} {name!r} has dtype {value.dtype}; expected one of {', '.join(DTYPES)}")
    return value.astype(little), code


def insert_places(table: Any, buffers: List[Any]) -> int:
    """Take the places in shared memory out of the entries of a table and put them among its frames; how many bytes they
    have together. Whether they lie within that memory is for its owner to check; a table that is none is left alone."""
    total = 0
    if type(table) is not list or len(table) > TENSORS_MAX:
        return total
    for index, entry in enumerate(table):
        if type(entry) is list and len(entry) == 5:
            offset, nbytes = entry[3:]
            if type(offset) is not int or type(nbytes) is not int or offset < 0 or nbytes < 0:
                raise Malformed(
                    f"tensors: place {show(offset)}, {show(nbytes)}: expected an offset and a number of "
                    "bytes, whole numbers from 0"
                )
            del entry[3:]
            buffers.insert(index, Place(offset, nbytes))
            total += nbytes
    return total


def decode_tensors(table: Any, buffers: Sequence[Buffer], message_bytes_max: int) -> Dict[str, Any]:
    """Read-only arrays over received buffers, after every entry of the table was checked against its buffer."""
    if type(table) is not list or len(table) > TENSORS_MAX:
        raise Malformed(f"tensors = {show(table)}: expected a list of at most {TENSORS_MAX} [name, dtype, shape]")
    if len(table) != len(buffers):
        raise Malformed(f"the header announces {len(table)} tensors, but {len(buffers)} frames follow it")
    tensors: Dict[str, Any] = {}
    for entry, buffer in zip(table, buffers):
        if type(entry) not in (tuple, list) or len(entry) != 3:
            raise Malformed(f"tensors: {show(entry)} is no [name, dtype, shape]")
        name, code, shape = entry
        if type(name) is not str or not 0 < len(name) <= NAME_CHARS_MAX or name in tensors:
            raise Malformed(f"tensors: {show(name)} is no name, or appears twice")
        dtype = DTYPES.get(code) if type(code) is str else None
        if code == TEXT:
            tensors[name] = _read_texts(name, _check_shape(name, shape), buffer)
            continue
        if dtype is None:
            error = BadInput(f"tensor {name!r}: dtype {show(code)} is unknown")
            raise with_nearest(error, code[:NAME_CHARS_MAX], (*DTYPES, TEXT)) if type(code) is str else error
        if type(shape) is not list or len(shape) > RANK_MAX:
            _check_shape(name, shape)
        size = span = dtype.itemsize
        for extent in shape:
            if type(extent) is not int or extent < 0:
                _check_shape(name, shape)
            size *= extent
            span *= extent or 1  # an empty tensor must not smuggle in extents that numpy cannot represent
        if span > message_bytes_max:
            raise TooLarge(
                f"tensor {name!r}: shape {shape} needs {span} bytes, at most {message_bytes_max} are "
                "allowed; raise [server] memory"
            )
        if len(buffer) != size:
            raise Malformed(
                f"tensor {name!r}: its frame has {len(buffer)} bytes, dtype {code} and shape {shape} need {size}"
            )
        array = tensors[name] = np.ndarray(shape, dtype, buffer if size else None)
        if not size:
            array.flags.writeable = False
        elif dtype is _BOOL and array.view(np.uint8).max() > 1:
            raise Malformed(f"tensor {name!r}: a bool frame may hold only the bytes 0 and 1")
    return tensors


def _check_shape(name: str, shape: Any) -> Tuple[int, ...]:
    if type(shape) is not list or len(shape) > RANK_MAX:
        raise Malformed(f"tensor {name!r}: shape {show(shape)}, expected a list of at most {RANK_MAX} sizes")
    for extent in shape:
        if type(extent) is not int or extent < 0:
            raise Malformed(f"tensor {name!r}: shape {shape} has a size that is no whole number from 0")
    return tuple(shape)


def _read_texts(name: str, shape: Tuple[int, ...], buffer: Any) -> NDArray[Any]:
    try:
        array = texts.shaped(texts.of_bytes(buffer), shape)
    except (ValueError, OverflowError) as error:
        raise Malformed(f"tensor {name!r} of texts: {error}") from None
    array.flags.writeable = False
    return array
