"""Tensors of texts: numpy arrays of Python strings (``dtype=object``), and what they are as bytes on their way.

numpy's own arrays of strings (``<U5``) drop zero characters at a text's end, so that they are only read here. As bytes,
each text is its length in four bytes, little-endian, and its UTF-8, one after the other in row-major order: what KServe
calls ``BYTES``.
"""

from __future__ import annotations

import struct
from typing import Any, List, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

ELEMENTS_MAX = 16_384
"""Texts of one tensor: each is an object of Python, and a message of 64 MiB could bring a gigabyte of short ones. So
many are read in some 3 ms (x86-64)."""

_LENGTH = struct.Struct("<I")


def is_text(value: Any) -> bool:
    """True if a value is an array of texts, by its type."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OU"


def text_array(value: Any) -> NDArray[Any]:
    """A text, a nested list of texts or an array of them as an array of Python strings, not copied where it is one.
    Raises ``ValueError`` for any other value."""
    array: NDArray[Any] = value
    if not isinstance(value, np.ndarray):
        array = np.array(value, dtype=object)
    elif value.dtype.kind == "U":
        array = value.astype(object)
    elif value.dtype.kind != "O":
        raise ValueError(f"it holds {value.dtype}, expected texts")
    for text in array.flat:
        if not isinstance(text, str):
            raise ValueError(f"it holds a {type(text).__name__}, expected texts (str)")
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(f"it holds a text that is no Unicode ({error.reason})") from None
    return array


def to_bytes(texts: Union[str, Sequence[str], NDArray[Any]]) -> bytes:
    """Texts as bytes, without their shape."""
    flat = texts.ravel().tolist() if isinstance(texts, np.ndarray) else [texts] if isinstance(texts, str) else texts
    parts: List[bytes] = []
    for text in flat:
        encoded = text.encode("utf-8")
        parts += (_LENGTH.pack(len(encoded)), encoded)
    return b"".join(parts)


def of_bytes(data: Any) -> List[str]:
    """The texts in a buffer. ``ValueError`` where it does not hold whole texts of UTF-8, or more than
    :data:`ELEMENTS_MAX`."""
    texts: List[str] = []
    at, end = 0, len(data)
    while at < end:
        if end - at < _LENGTH.size:
            raise ValueError(f"{end - at} bytes are left over after the last text")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > end - at:
            raise ValueError(f"a text claims {length} bytes, {end - at} are left")
        try:
            texts.append(str(data[at : at + length], "utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"a text is no UTF-8 ({error.reason})") from None
        at += length
        if len(texts) > ELEMENTS_MAX:
            raise ValueError(f"it has more than {ELEMENTS_MAX} texts")
    return texts


def shaped(texts: Sequence[str], shape: Tuple[int, ...]) -> NDArray[Any]:
    """Texts as an array of a shape. ``ValueError`` where it has another number of elements."""
    array: NDArray[Any] = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)
