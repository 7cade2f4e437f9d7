"""Facts of an ONNX file: its outputs, the files beside it (of weights and of ``EPContext`` engines), single numbers,
and whether it draws some by chance.

The graph is a protocol buffer message (onnx.proto). It is walked where it lies, without a library, past all weights; a
file that is no such message names nothing, and the engine that reads it says why.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Dict, Iterator, List, Optional, Tuple, Union

Data = Union[bytes, mmap.mmap]

_MODEL, _TRAINING, _FUNCTION, _GRAPH, _NODE, _ATTRIBUTE, _SPARSE, _TENSOR, _ENTRY = range(9)

_INNER: Dict[int, Dict[int, int]] = {
    _MODEL: {7: _GRAPH, 20: _TRAINING, 25: _FUNCTION},
    _TRAINING: {1: _GRAPH, 2: _GRAPH},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
}
"""Message -> field number -> the message in it, as far as a tensor may lie within (onnx.proto)."""

_MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""Field of the whole message -> how it is written: 0 a number, 2 with its length."""

_EXTERNAL_DATA, _DATA_LOCATION, _EXTERNAL = 13, 14, 1
"""Fields of a tensor, and the location that means another file."""

_OPERATOR, _ATTRIBUTES, _NAME, _NUMBER, _TEXT = 4, 5, 1, 3, 4
"""Fields: a node's operator and attributes; an attribute's name, number and text."""

CONTEXT_OPERATOR, CONTEXT_FILE, CONTEXT_INSIDE = b"EPContext", b"ep_cache_context", b"embed_mode"
"""A node that stands for an engine, its attribute for the engine or its file, and whether the engine itself is there
(1, also where it is left out)."""

_MODEL_GRAPH, _OUTPUT, _TYPE, _TENSOR_TYPE = 7, 12, 2, 1
"""Fields: a model's graph; a graph's outputs; an output's type; a type's tensor."""

CHANCE_OPERATORS = (b"RandomNormal", b"RandomUniform", b"Multinomial", b"Bernoulli", b"Dropout")
"""Operators that draw numbers, by how their names begin; Dropout does so while training alone."""

CONSTANT_OPERATOR, CONSTANT_NUMBER = b"Constant", b"value_int"
"""A node that is a constant, and its attribute for a single whole number that is in no tensor."""

_DIMS, _ELEMENT_TYPE, _INT32_DATA, _INT64_DATA, _RAW_DATA = 1, 2, 5, 7, 9
"""Fields of a tensor."""

WHOLE_TYPES = (6, 7)
"""Element types: int32 and int64."""

NUMBER_BYTES_MAX = 10
"""A whole number takes no more."""

NODE_BYTES_MAX = 65_536
"""A longer node has weights in it, which are not copied to look at it."""

FIELDS_MAX = 20_000_000
"""The most fields of the messages that are walked: some ten seconds. A graph of 20,000 nodes has 300,000."""


class _Damaged(Exception):
    """The bytes are no message."""


def named_in(path: str) -> Dict[str, int]:
    """Names of files, as the graph has them, in the order of their first use -> the bytes that each must have at least.
    ``OSError`` where ``path`` cannot be read, ``ValueError`` for more fields than any exporter writes."""
    found: Dict[str, int] = {}
    with _opened(path) as data, contextlib.suppress(_Damaged):  # the engine that reads a damaged graph says so
        for kind, start, end in _messages(data):
            if kind == _TENSOR:
                _of_tensor(data, start, end, found)
            elif kind == _NODE:
                _of_node(data, start, end, found)
    return found


def draws_by_chance(path: str) -> bool:
    """True if a node of the graph may draw random numbers; true also where the file cannot be read whole."""
    try:
        with _opened(path) as data:
            return any(
                data[at:to].startswith(CHANCE_OPERATORS)
                for kind, start, end in _messages(data)
                if kind == _NODE
                for at, to in _parts(data, (start, end), _OPERATOR)
            )
    except (OSError, ValueError, _Damaged):
        return True


def whole_numbers(path: str) -> Tuple[int, ...]:
    """The single whole numbers that stand in the graph, in rising order: what it compares with is among them. None
    where the file cannot be read whole."""
    found = set()
    try:
        with _opened(path) as data:
            for kind, start, end in _messages(data):
                if kind == _TENSOR:
                    found.add(_number_of_tensor(data, start, end))
                elif kind == _ATTRIBUTE:
                    fields = {field: (at, to) for field, at, to in _fields(data, start, end)}
                    if data[slice(*fields.get(_NAME, (0, 0)))] == CONSTANT_NUMBER:
                        found.add(_signed(fields.get(_NUMBER, (0, -1))[0]))
    except (OSError, ValueError, _Damaged):
        return ()
    return tuple(sorted(number for number in found if number is not None))


def ends_within(path: str) -> bool:
    """True if a file begins as a graph's message and ends before that is over."""
    with _opened(path) as data:
        at, size = 0, len(data)
        while at < size:
            try:
                tag, begin = _varint(data, at, size)
                if _MODEL_FIELDS.get(tag >> 3) != tag & 7:
                    return False
                length, at = _varint(data, begin, size)
            except _Damaged:
                return at > 0
            at += length if tag & 7 else 0
        return at > size


def output_names(path: str) -> List[str]:
    """The outputs that are tensors; none where the file cannot be read whole: its engine says why."""
    found: List[str] = []
    try:
        with _opened(path) as data:
            for graph in _parts(data, (0, len(data)), _MODEL_GRAPH):
                for output in _parts(data, graph, _OUTPUT):
                    if any(list(_parts(data, kind, _TENSOR_TYPE)) for kind in _parts(data, output, _TYPE)):
                        names = _parts(data, output, _NAME)
                        found += [data[at:to].decode("utf-8", "backslashreplace") for at, to in names]
    except (OSError, _Damaged):
        return []
    return found


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Data]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
        else:
            yield b""  # nothing is mapped of an empty file


def _parts(data: Data, message: Tuple[int, int], field: int) -> Iterator[Tuple[int, int]]:
    """The places of the fields of one number in a message, where they have a length."""
    return ((at, to) for number, at, to in _fields(data, *message) if number == field and to >= at)


def _messages(data: Data) -> Iterator[Tuple[int, int, int]]:
    """Every message in which a file may be named: its kind, and where it begins and ends."""
    waiting, left = [(_MODEL, 0, len(data))], FIELDS_MAX
    while waiting:
        kind, start, end = waiting.pop()
        yield kind, start, end
        inner = _INNER.get(kind, {})
        parts = []
        for field, at, to in _fields(data, start, end) if inner else ():
            left -= 1
            if field in inner and to >= at:
                parts.append((inner[field], at, to))
            if not left:
                raise ValueError(f"its graph has more than {FIELDS_MAX} fields; expected a file that an exporter wrote")
        waiting += [part for part in reversed(parts) if _may_name(data, *part)]


def _may_name(data: Data, kind: int, start: int, end: int) -> bool:
    """False for most nodes, which are most of a graph's messages: to look for a word is faster than to walk."""
    if kind != _NODE or end - start > NODE_BYTES_MAX:
        return True
    text = data[start:end]
    return b"location" in text or any(word in text for word in (CONTEXT_OPERATOR, CONSTANT_OPERATOR, *CHANCE_OPERATORS))


def _of_tensor(data: Data, start: int, end: int, found: Dict[str, int]) -> None:
    external = False
    entries: Dict[bytes, bytes] = {}
    for field, at, to in _fields(data, start, end):
        if field == _DATA_LOCATION and to < at:
            external = at == _EXTERNAL
        elif field == _EXTERNAL_DATA and to >= at:
            texts = {number: data[low:high] for number, low, high in _fields(data, at, to) if high >= low}
            entries[texts.get(1, b"")] = texts.get(2, b"")
    if external:
        name = entries.get(b"location", b"").decode("utf-8", "backslashreplace")
        ends = [_number(entries.get(key, b"")) for key in (b"offset", b"length")]
        found[name] = max(found.get(name, 0), sum(ends))


def _of_node(data: Data, start: int, end: int, found: Dict[str, int]) -> None:
    fields = list(_fields(data, start, end))
    if not any(field == _OPERATOR and data[at:to] == CONTEXT_OPERATOR for field, at, to in fields if to >= at):
        return
    inside, file = True, b""
    for field, at, to in fields:
        if field == _ATTRIBUTES and to >= at:
            parts = {number: (low, high) for number, low, high in _fields(data, at, to)}
            attribute = data[slice(*parts.get(_NAME, (0, 0)))]
            if attribute == CONTEXT_INSIDE:
                inside = parts.get(_NUMBER, (0, -1))[0] != 0
            elif attribute == CONTEXT_FILE:
                file = data[slice(*parts.get(_TEXT, (0, 0)))]
    if file and not inside:
        found.setdefault(file.decode("utf-8", "backslashreplace"), 0)


def _number_of_tensor(data: Data, start: int, end: int) -> Optional[int]:
    """The one element of a tensor of whole numbers; ``None`` of any other tensor."""
    is_whole, elements = False, 1
    number: Optional[int] = None
    for field, at, to in _fields(data, start, end):
        if field == _DIMS:
            for dim in [at] if to < at else _varints(data, at, to):
                elements *= dim
        elif field == _ELEMENT_TYPE:
            is_whole = at in WHOLE_TYPES
        elif field in (_INT32_DATA, _INT64_DATA):
            number = _signed(at if to < at else _varint(data, at, to)[0])  # the first of several
        elif field == _RAW_DATA and to - at <= NUMBER_BYTES_MAX:
            number = int.from_bytes(data[at:to], "little", signed=True)
    return number if is_whole and elements == 1 else None


def _varints(data: Data, at: int, end: int) -> Iterator[int]:
    while at < end:
        value, at = _varint(data, at, end)
        yield value


def _signed(value: int) -> int:
    """The number that a field of 64 bits stands for: negative ones are written in two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 20 else 0


def _fields(data: Data, start: int, end: int) -> Iterator[Tuple[int, int, int]]:
    """(field number, begin, end) of each field within a message; of a number its value, and an end below 0."""
    at = start
    while at < end:
        tag, at = _varint(data, at, end)
        kind = tag & 7
        if tag < 8:
            raise _Damaged  # no message has a field 0
        if kind == 0:
            value, at = _varint(data, at, end)
            yield tag >> 3, value, -1
            continue
        if kind == 2:
            length, at = _varint(data, at, end)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise _Damaged
        if at + length > end:
            raise _Damaged
        if kind == 2:
            yield tag >> 3, at, at + length
        at += length


def _varint(data: Data, at: int, end: int) -> Tuple[int, int]:
    value, shift = 0, 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise _Damaged
