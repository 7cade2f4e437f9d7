"""Tensors of the Open Inference Protocol v2 to and from named values of the bus.

Pure functions. A tensor comes as JSON numbers (nested or flat, row-major), as raw little-endian bytes (the binary
extension, gRPC's ``raw_input_contents``), or, for ``BYTES``, as elements that each have their length in
four bytes before them. A fault raises :class:`~edgeserve.errors.BadInput` naming the tensor.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from msgspec import DecodeError, Raw
from msgspec.json import Decoder, encode
from numpy.typing import NDArray

from edgeserve import texts
from edgeserve.errors import BadInput, Malformed, TooLarge, nearest
from edgeserve.front import array_of

DTYPES: Dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""The protocol's names of what a tensor may hold; besides ``BYTES``, whose elements are texts here."""

PIECE_BYTES, PIECE_COUNT = 64 * 1024, 16 * 1024
"""Numbers in JSON that one call reads, and that one writes: a few milliseconds, in which no other thread runs."""

SHOWN_CHARS = 120
"""The characters of what a client sent that an error shows."""

SPACES = b" \t\r\n"
_ANYTHING = Decoder()

DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
TEXT = "BYTES"
RANK_MAX = 8
ELEMENTS_MAX = 2**40  # of a shape: more is no tensor but a mistake, and its product must not be computed


def datatype_of(dtype: str) -> str:
    """The protocol's name of a configured input's dtype: ``float32`` -> ``FP32``, ``text`` -> ``BYTES``; empty for what
    has none."""
    if dtype in ("text", "bytes"):
        return TEXT
    try:
        return DATATYPES.get(np.dtype(dtype).newbyteorder("<"), "")
    except TypeError:
        return ""


def check_shape(name: str, shape: Any) -> Tuple[int, ...]:
    """A request's shape, if it is one. Some clients write whole numbers as floats."""
    if isinstance(shape, list):
        shape = [int(size) if isinstance(size, float) and size.is_integer() else size for size in shape]
    if (
        not isinstance(shape, (list, tuple))
        or len(shape) > RANK_MAX
        or not all(type(size) is int and size >= 0 for size in shape)
    ):
        raise BadInput(
            f"tensor {name!r}: shape {_shown(shape)}, expected a list of at most {RANK_MAX} whole numbers from 0"
        )
    count = 1
    for size in shape:
        count *= size
        if count > ELEMENTS_MAX:
            raise TooLarge(f"tensor {name!r}: shape {list(shape)} has over {ELEMENTS_MAX} elements")
    return tuple(shape)


def _shown(value: Any) -> str:
    return repr(value)[:SHOWN_CHARS]


def _dtype(name: str, datatype: Any) -> np.dtype[Any]:
    dtype = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise BadInput(
            f"tensor {name!r}: datatype {_shown(datatype)} is not served{nearest(str(datatype)[:64], [*DTYPES, TEXT])}"
        )
    return dtype


def from_raw(name: str, datatype: Any, shape: Tuple[int, ...], raw: Any) -> Any:
    """A tensor's bytes as an array over them (not copied), or a text."""
    if datatype == TEXT:
        return shaped_texts(name, shape, split_texts(name, raw))
    dtype = _dtype(name, datatype)
    count = 1
    for size in shape:
        count *= size
    if len(raw) != count * dtype.itemsize:
        raise BadInput(
            f"tensor {name!r}: {len(raw)} bytes of data, {datatype} {list(shape)} needs {count * dtype.itemsize}"
        )
    array = np.frombuffer(raw, dtype) if count else np.zeros(0, dtype)
    if dtype.kind == "b" and count and array.view(np.uint8).max() > 1:
        raise BadInput(f"tensor {name!r}: a BOOL may hold only the bytes 0 and 1")
    return array.reshape(shape)


def from_json(name: str, datatype: Any, shape: Tuple[int, ...], data: Any) -> Any:
    """A tensor's ``data``, as JSON (:class:`msgspec.Raw`) or the list that it is, as an array or a text."""
    text = bytes(data) if isinstance(data, Raw) else b""
    try:
        if len(text) > PIECE_BYTES and text[:1] != b"[":
            raise ValueError(f"{text[:20]!r}..., expected a list")
        if len(text) > PIECE_BYTES and datatype == TEXT:
            # Between two texts of a list stands '","', which at most the end of each text may hold, too.
            if text.translate(None, SPACES + b"[]").count(b'","') >= 2 * texts.ELEMENTS_MAX:
                raise too_many_texts(name, f"over {texts.ELEMENTS_MAX}")
        elif len(text) > PIECE_BYTES:
            text = text.translate(None, SPACES)
            depth = len(text) - len(text.lstrip(b"["))
            if depth > RANK_MAX:
                raise ValueError(f"lists within {depth - 1} lists, expected at most {RANK_MAX - 1}")
            return _as_shaped(_of_pieces(name, datatype, text, depth), shape)
        return _of_list(name, datatype, shape, _ANYTHING.decode(text) if text else data)
    except (DecodeError, RecursionError) as error:
        raise Malformed(f"tensor {name!r}: data is not JSON: {error}") from None
    except (TypeError, ValueError, OverflowError) as error:
        why = str(error)[:SHOWN_CHARS]
        raise BadInput(f"tensor {name!r}: data is no {str(datatype)[:SHOWN_CHARS]} {list(shape)}: {why}") from None


def _of_pieces(name: str, datatype: Any, text: bytes, depth: int) -> NDArray[Any]:
    """Numbers in much JSON without spaces, lists of ``depth``, in pieces of whole rows: other threads run between
    two."""
    if len(text) <= PIECE_BYTES:
        return _numbers(name, datatype, _ANYTHING.decode(text))
    if not text.startswith(b"[" * depth):
        raise ValueError("rows of different depths, expected lists of one shape")
    between = b"]" * (depth - 1) + b","  # two rows
    found: List[NDArray[Any]] = []
    at, end = 1, len(text) - 1
    while at < end:
        to = -1 if end - at <= PIECE_BYTES else text.rfind(between, at, at + PIECE_BYTES)
        is_long = to < 0 and end - at > PIECE_BYTES  # one row is
        if is_long:
            to = text.find(between, at)
        cut = end if to < 0 else to + depth - 1
        if is_long and depth > 1:
            found.append(_of_pieces(name, datatype, text[at:cut], depth - 1)[None])
        else:
            found.append(_numbers(name, datatype, _ANYTHING.decode(b"[" + text[at:cut] + b"]")))
        at = cut + 1
    return np.concatenate(found)


def _of_list(name: str, datatype: Any, shape: Tuple[int, ...], data: Any) -> Any:
    """A list as an array, or a text."""
    if datatype == TEXT and isinstance(data, (list, tuple)):
        try:
            return shaped_texts(name, shape, _as_shaped(texts.text_array(data), shape).ravel().tolist())
        except ValueError as error:
            raise BadInput(
                f"tensor {name!r}: BYTES in JSON are strings, and {error}; send binary data otherwise"
            ) from None
    return _as_shaped(_numbers(name, datatype, data), shape)


def _as_shaped(found: NDArray[Any], shape: Tuple[int, ...]) -> NDArray[Any]:
    """The elements in their shape. Raises ``ValueError`` where the lists that held them have another, of as many
    axes."""
    if found.ndim > 1 and found.ndim == len(shape) and found.shape != shape:
        raise ValueError(f"lists of shape {list(found.shape)}")
    return found.reshape(shape)


def _numbers(name: str, datatype: Any, data: Any) -> NDArray[Any]:
    """The numbers in a list, nested or flat."""
    if not isinstance(data, (list, tuple)):
        raise BadInput(f"tensor {name!r}: data is {type(data).__name__}, expected a list")
    return array_of(data, _dtype(name, datatype), datatype)


def too_many_texts(name: str, count: str) -> TooLarge:
    """The refusal of a tensor with so many."""
    return TooLarge(f"tensor {name!r}: {count} texts, at most {texts.ELEMENTS_MAX} travel in one tensor")


def shaped_texts(name: str, shape: Tuple[int, ...], found: Sequence[str]) -> Any:
    """The texts of a ``BYTES`` tensor: a text where there is one, else an array of texts."""
    if len(found) == 1 and all(size == 1 for size in shape):
        return found[0]
    if len(found) > texts.ELEMENTS_MAX:
        raise too_many_texts(name, str(len(found)))
    try:
        return texts.shaped(found, shape)
    except ValueError:
        raise BadInput(f"tensor {name!r}: BYTES {list(shape)} with {len(found)} elements") from None


def split_texts(name: str, raw: Any) -> List[str]:
    """The elements of a binary ``BYTES`` tensor."""
    try:
        return texts.of_bytes(raw)
    except ValueError as error:
        raise BadInput(f"tensor {name!r}: of its BYTES {error}; send what is no text as UINT8") from None


def described(name: str, value: Any) -> Tuple[str, List[int]]:
    """Datatype and shape of an output."""
    if isinstance(value, np.ndarray):
        datatype = TEXT if texts.is_text(value) else DATATYPES.get(value.dtype)
        if datatype is None:
            raise Malformed(f"output {name!r} has dtype {value.dtype}, which the protocol has no name for")
        return datatype, list(value.shape)
    return TEXT, [1] if isinstance(value, str) else [len(value)]


def to_raw(value: Any) -> bytes:
    """An output as the binary extension has it."""
    return value.tobytes() if isinstance(value, np.ndarray) and not texts.is_text(value) else texts.to_bytes(value)


def to_json(value: Any) -> Raw:
    """An output as a flat list in JSON. Raises ``ValueError`` for infinities and NaN, for which JSON has no word."""
    if not isinstance(value, np.ndarray):
        return Raw(encode([value] if isinstance(value, str) else list(value)))
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise ValueError("infinities and NaN are no JSON")
    flat = value.ravel()
    pieces = [encode(flat[at : at + PIECE_COUNT].tolist())[1:-1] for at in range(0, flat.size, PIECE_COUNT)]
    return Raw(b"[" + b",".join(pieces) + b"]")
