"""Requests that differ from an earlier one of their connection in ``id`` and ``sent_ns`` alone.

Most clients ask for the same thing again and again: app, tensors and options are the same bytes. The header of such a
request is compared, not decoded and checked again. Which bytes are the two numbers is found by changing them and
decoding: a form is only made where exactly the two numbers differ then. Pure, as ``wire`` is.
"""

from __future__ import annotations

import struct
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgeserve.errors import RequestError
from edgeserve.ipc.tensors import DTYPES, Buffer
from edgeserve.ipc.wire import Ask, unpack_header

HEADER_BYTES_MAX = 1024
"""Of a header that a form is made of: a longer one holds texts, which are seldom the same."""

FIRST_LEARN_AFTER = 2
LEARN_AFTER = 8
"""After so many requests of a connection that had to be decoded, one becomes its form: a client whose requests all
differ pays little for the attempts."""

TRIES_MAX = 4
"""Places where the name of a number is looked for: an input may have the same name."""

_WIDTHS: Mapping[int, Tuple[str, int]] = {0xCC: ("B", 1), 0xCD: ("H", 2), 0xCE: ("I", 4), 0xCF: ("Q", 8),
                                          0xD3: ("Q", 8)}
"""How msgpack writes whole numbers from 0: first byte -> (form, bytes that follow)."""

_CONSTANT = frozenset(("kind", "id", "app", "tensors", "sent_ns", "slo_ms", "class", "value", "stream", "on_late",
                       "client", "origin", "quality_min"))
"""Keys of the headers that forms are made of."""

_NUMBER_MAX = 2**63 - 1
_SMALL_MAX = 0x7F  # a number up to here is one byte, without another before it


class Form:
    """What the requests of one form have in common. ``checked`` is for whoever checks what a request means: by what
    its inputs were found good last. ``key_at`` and ``sent_at`` say where the numbers stand in what :meth:`match` found
    (``sent_at`` 0: the form has no ``sent_ns``)."""

    __slots__ = ("checked", "key_at", "sent_at", "_size", "_unpack", "_parts", "_key_max", "_tensors", "_sizes",
                 "_app", "_slo_ms", "_klass", "_value", "_stream", "_on_late", "_client", "_origin", "_quality_min")

    def __init__(self, parts: Sequence[bytes], kinds: Sequence[str], key_at: int, sent_at: int, key_max: int,
                 ask: Ask) -> None:
        self.checked: Any = None
        self.key_at = key_at
        self.sent_at = sent_at
        layout = struct.Struct(">" + "".join([f"{len(part)}s{kind}" for part, kind in zip(parts, (*kinds, ""))]))
        self._size = layout.size
        self._unpack = layout.unpack
        self._parts = tuple(parts)
        self._key_max = key_max
        self._tensors = tuple([(name, value.shape, value.dtype) for name, value in ask.inputs.items()])
        self._sizes = [value.nbytes for value in ask.inputs.values()]
        self._app, self._slo_ms, self._klass, self._value = ask.app, ask.slo_ms, ask.klass, ask.value
        self._stream, self._on_late, self._client = ask.stream, ask.on_late, ask.client
        self._origin, self._quality_min = ask.origin, ask.quality_min

    def match(self, header: Buffer, buffers: Sequence[Buffer]) -> Optional[Tuple[Any, ...]]:
        """The numbers of a request of this form, among other things; ``None`` for any other message."""
        if len(header) != self._size or list(map(len, buffers)) != self._sizes:
            return None
        found = self._unpack(header)
        if found[::2] != self._parts or found[self.key_at] > self._key_max \
                or (self.sent_at and found[self.sent_at] > _NUMBER_MAX):
            return None
        return found

    def fill(self, ask: Ask, found: Tuple[Any, ...], buffers: Sequence[Buffer]) -> None:
        """As ``wire.decode_infer``, of a request that was found to :meth:`match`."""
        ask.id = 0
        ask.app = self._app
        if len(buffers) == 1:  # most have one, and a comprehension is a call
            name, shape, dtype = self._tensors[0]
            ask.inputs = {name: np.ndarray(shape, dtype, buffers[0])}
        else:
            ask.inputs = {name: np.ndarray(shape, dtype, buffer)
                          for (name, shape, dtype), buffer in zip(self._tensors, buffers)}
        ask.sent_ns = found[self.sent_at] if self.sent_at else None
        ask.slo_ms, ask.klass, ask.value, ask.stream = self._slo_ms, self._klass, self._value, self._stream
        ask.on_late, ask.client, ask.origin = self._on_late, self._client, self._origin
        ask.quality_min = self._quality_min
        ask.hints = ask.room = None
        ask.pieces = False
        ask.form = self


def learn_form(header: Any, ask: Ask) -> Optional[Form]:
    """The form of a request, of which ``ask`` was made before anything replaced its ``client``; ``None`` where it has
    none."""
    if type(header) is not bytes or len(header) > HEADER_BYTES_MAX:
        return None
    fields = unpack_header(header)
    if not _CONSTANT.issuperset(fields) or not all(map(_is_constant, ask.inputs.values())) \
            or any(len(entry) != 3 for entry in fields.get("tensors") or ()):  # with a place in shared memory
        return None
    key, sent = _find(header, fields, "id"), _find(header, fields, "sent_ns")
    if key is None or (sent is None and "sent_ns" in fields) or (sent is not None and sent.kind != "Q"):
        return None
    numbers = sorted([number for number in (key, sent) if number is not None])
    parts: List[bytes] = []
    begin = 0
    for number in numbers:
        parts.append(header[begin:number.begin])
        begin = number.begin + number.width
    parts.append(header[begin:])
    key_at = 2 * numbers.index(key) + 1
    return Form(parts, [number.kind for number in numbers], key_at, 0 if sent is None else 4 - key_at, key.most, ask)


class _Number(NamedTuple):
    """Where a number stands in a header, how, and the largest that stands there in this way."""

    begin: int
    kind: str
    width: int
    most: int


def _is_constant(value: Any) -> bool:
    """Whether the bytes of such a value need no look of their own."""
    return type(value) is np.ndarray and value.nbytes > 0 and value.dtype != DTYPES["bool"]


def _find(header: bytes, fields: Mapping[str, Any], name: str) -> Optional[_Number]:
    """Where the whole number of a field stands; ``None`` where it is none, or where that is not sure."""
    if type(fields.get(name)) is not int:
        return None
    mark = bytes([0xA0 + len(name)]) + name.encode()
    at = -1
    for _ in range(TRIES_MAX):
        at = header.find(mark, at + 1)
        number = _number_at(header, at + len(mark)) if at >= 0 else None
        if number is not None and _is_of(number, header, fields, name):
            return number
    return None


def _number_at(header: bytes, at: int) -> Optional[_Number]:
    first = header[at] if at < len(header) else 0xFF
    if first <= _SMALL_MAX:
        return _Number(at, "B", 1, _SMALL_MAX)
    return _Number(at + 1, *_WIDTHS[first], _NUMBER_MAX) if first in _WIDTHS else None


def _is_of(number: _Number, header: bytes, fields: Mapping[str, Any], name: str) -> bool:
    """Whether another number in this place changes this field and nothing else."""
    other = (fields[name] + 1) & _SMALL_MAX
    changed = header[:number.begin] + other.to_bytes(number.width, "big") + header[number.begin + number.width:]
    try:
        return unpack_header(changed) == {**fields, name: other}
    except RequestError:
        return False
