"""The names of an ONNX file's outputs, read from its bytes: without ONNX Runtime, and without its weights.

A file is a message of protocol buffers (onnx.proto3): the model's field 7 is its graph, the graph's field 12 an output,
whose field 1 is the name and field 2 the type. All other fields are skipped by their lengths.
"""

from __future__ import annotations

import mmap
from typing import Any, Iterator, List, Tuple

GRAPH, OUTPUT, NAME, TYPE, TENSOR = 7, 12, 1, 2, 1
"""Numbers of the fields, as onnx.proto3 has them."""

FIELDS_MAX = 2_000_000
"""Fields that are looked at, of all messages together: a file of more is not read on."""

_LENGTH = 2
_SIZES = {1: 8, 5: 4}  # bytes of a value by its wire type


def output_names(path: str) -> List[str]:
    """The outputs that are tensors; nothing where the file cannot be read as ONNX: its engine says why."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return [
                content[name[0] : name[1]].decode("utf-8")
                for graph in _of(GRAPH, content, (0, len(content)))
                for output in _of(OUTPUT, content, graph)
                for name in _of(NAME, content, output)
                if any(list(_of(TENSOR, content, kind)) for kind in _of(TYPE, content, output))
            ]
    except (OSError, ValueError, IndexError):
        return []


def _of(wanted: int, content: Any, place: Tuple[int, int]) -> Iterator[Tuple[int, int]]:
    """Where the fields of one number lie in a message."""
    at, end = place
    for _ in range(FIELDS_MAX):
        if at >= end:
            return
        key, at = _number(content, at)
        kind = key & 7
        if kind == _LENGTH:
            size, at = _number(content, at)
            if at + size > end:
                raise ValueError("a field is longer than its message")
            if key >> 3 == wanted:
                yield at, at + size
            at += size
        elif kind == 0:
            _, at = _number(content, at)
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            raise ValueError(f"wire type {kind}")


def _number(content: Any, at: int) -> Tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number of more than ten bytes")
