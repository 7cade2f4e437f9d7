"""Requests that differ from an earlier one of their connection in a few numbers alone: ``id``, ``sent_ns``, and where
in shared memory their tensors lie and their answer may be put.

Most clients ask for the same thing again and again: app, tensors and options are the same bytes. The header of such a
request is compared, not decoded and checked again. Which bytes are the numbers is found by changing them and decoding:
a form is only made where exactly these numbers differ then. Pure, as ``wire`` is.
"""

from __future__ import annotations

import struct
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgeserve.errors import RequestError
from edgeserve.ipc.tensors import Buffer, Place
from edgeserve.ipc.wire import Ask, unpack_header

HEADER_BYTES_MAX = 1024
"""Of a header that a form is made of: a longer one holds texts, which are seldom the same."""

FIRST_LEARN_AFTER = 2
LEARN_AFTER = 8
"""After so many requests of a connection that had to be decoded, one becomes its form: a client whose requests all
differ pays little for the attempts."""

TRIES_MAX = 4
"""Places where the name of a number is looked for: an input may have the same name."""

OFFSET_TRIES_MAX = 36
"""The same for all offsets of a request together: others may be the same number. Each try decodes the header, so a
client must not make the server try often. Eight equal offsets are found."""

_WIDTHS: Mapping[int, Tuple[str, int]] = {
    0xCC: ("B", 1),
    0xCD: ("H", 2),
    0xCE: ("I", 4),
    0xCF: ("Q", 8),
    0xD3: ("Q", 8),
}
"""How msgpack writes whole numbers from 0: first byte -> (form, bytes that follow)."""

_CONSTANT = frozenset(
    (
        "kind",
        "id",
        "app",
        "tensors",
        "sent_ns",
        "slo_ms",
        "class",
        "value",
        "stream",
        "on_late",
        "client",
        "origin",
        "quality_min",
        "room",
    )
)
"""Keys of the headers that forms are made of."""

_NUMBER_MAX = 2**63 - 1
_OFFSET_MARK, _OFFSET_MAX = 0xCE, 2**32 - 1
"""An offset of four bytes: all from 64 KiB on, in any memory that is given."""

_SMALL_MAX = 0x7F  # a number up to here is one byte, without another before it


class _Placed(NamedTuple):
    """A tensor in shared memory: its number, where its offset is in what :meth:`Form.match` found, and its bytes."""

    number: int
    at: int
    nbytes: int


class Form:
    """What the requests of one form have in common. ``checked`` is for whoever checks what a request means: by what
    its inputs were found good last. ``key_at`` and ``sent_at`` say where the numbers stand in what :meth:`match` found
    (``sent_at`` 0: the form has no ``sent_ns``). ``placed_bytes``: of its tensors that lie in shared memory."""

    __slots__ = (
        "checked",
        "key_at",
        "sent_at",
        "placed_bytes",
        "_size",
        "_unpack",
        "_parts",
        "_key_max",
        "_tensors",
        "_sizes",
        "_places",
        "_room",
        "_bounds",
        "_app",
        "_slo_ms",
        "_klass",
        "_value",
        "_stream",
        "_on_late",
        "_client",
        "_origin",
        "_quality_min",
    )

    def __init__(
        self,
        parts: Sequence[bytes],
        kinds: Sequence[str],
        key_at: int,
        sent_at: int,
        key_max: int,
        ask: Ask,
        places: Sequence[_Placed] = (),
        room: Optional[Tuple[int, int]] = None,
        memory_bytes: int = 0,
    ) -> None:
        self.checked: Any = None
        self.key_at = key_at
        self.sent_at = sent_at
        layout = struct.Struct(">" + "".join([f"{len(part)}s{kind}" for part, kind in zip(parts, (*kinds, ""))]))
        self._size = layout.size
        self._unpack = layout.unpack
        self._parts = tuple(parts)
        self._key_max = key_max
        self._tensors = tuple([(name, value.shape, value.dtype) for name, value in ask.inputs.items()])
        self._places = tuple(places)
        self._room = room
        placed = {place.number for place in places}
        self._sizes = [value.nbytes for index, value in enumerate(ask.inputs.values()) if index not in placed]
        self.placed_bytes = sum(place.nbytes for place in places)
        self._bounds = [(place.at, memory_bytes - place.nbytes) for place in places]
        if room is not None:
            self._bounds.append((room[0], memory_bytes - room[1]))
        self._app, self._slo_ms, self._klass, self._value = ask.app, ask.slo_ms, ask.klass, ask.value
        self._stream, self._on_late, self._client = ask.stream, ask.on_late, ask.client
        self._origin, self._quality_min = ask.origin, ask.quality_min

    def match(self, header: Buffer, buffers: Sequence[Buffer]) -> Optional[Tuple[Any, ...]]:
        """The numbers of a request of this form, among other things; ``None`` for any other message."""
        if len(header) != self._size or list(map(len, buffers)) != self._sizes:
            return None
        found = self._unpack(header)
        if (
            found[::2] != self._parts
            or found[self.key_at] > self._key_max
            or (self.sent_at and found[self.sent_at] > _NUMBER_MAX)
        ):
            return None
        for at, last in self._bounds:
            if found[at] > last:
                return None  # beyond the memory's end: decoding says so
        return found

    def insert_places(self, found: Tuple[Any, ...], buffers: List[Any]) -> None:
        """Put the places of tensors in shared memory among a request's buffers, as ``tensors.insert_places``."""
        for index, at, nbytes in self._places:
            buffers.insert(index, Place(found[at], nbytes))

    def fill(self, ask: Ask, found: Tuple[Any, ...], buffers: Sequence[Buffer]) -> None:
        """As ``wire.decode_infer``, of a request that was found to :meth:`match`."""
        ask.id = 0
        ask.app = self._app
        if len(buffers) == 1:  # most have one, and a comprehension is a call
            name, shape, dtype = self._tensors[0]
            ask.inputs = {name: np.ndarray(shape, dtype, buffers[0])}
        else:
            ask.inputs = {
                name: np.ndarray(shape, dtype, buffer) for (name, shape, dtype), buffer in zip(self._tensors, buffers)
            }
        ask.sent_ns = found[self.sent_at] if self.sent_at else None
        ask.slo_ms, ask.klass, ask.value, ask.stream = self._slo_ms, self._klass, self._value, self._stream
        ask.on_late, ask.client, ask.origin = self._on_late, self._client, self._origin
        ask.quality_min = self._quality_min
        room = self._room
        ask.room = None if room is None else (found[room[0]], room[1])
        ask.hints = ask.traceparent = None
        ask.pieces = ask.reset = False
        ask.form = self


def learn_form(header: Any, ask: Ask, memory_bytes: int = 0) -> Optional[Form]:
    """The form of a request, of which ``ask`` was made before anything replaced its ``client``; ``None`` where it has
    none. ``memory_bytes``: what its connection shares."""
    if type(header) is not bytes or len(header) > HEADER_BYTES_MAX:
        return None
    fields = unpack_header(header)
    if not _CONSTANT.issuperset(fields) or not all(map(_is_constant, ask.inputs.values())):
        return None
    key, sent = _find(header, fields, "id"), _find(header, fields, "sent_ns")
    if key is None or (sent is None and "sent_ns" in fields) or (sent is not None and sent.kind != "Q"):
        return None
    placed = [index for index, entry in enumerate(fields.get("tensors") or ()) if len(entry) != 3]
    paths: List[Tuple[Any, ...]] = [("tensors", index, 3) for index in placed]
    if ask.room is not None:
        paths.append(("room", 0))
    offsets = _find_offsets(header, fields, paths)
    if offsets is None:
        return None
    varying = [number for number in (key, sent, *offsets) if number is not None]
    if len({number.begin for number in varying}) < len(varying):
        return None
    numbers = sorted(varying)
    parts: List[bytes] = []
    begin = 0
    for number in numbers:
        parts.append(header[begin : number.begin])
        begin = number.begin + number.width
    parts.append(header[begin:])
    at = {number.begin: 2 * index + 1 for index, number in enumerate(numbers)}
    ats = [at[offset.begin] for offset in offsets]
    places = [_Placed(index, where, fields["tensors"][index][4]) for index, where in zip(placed, ats)]
    room = None if ask.room is None else (ats[-1], ask.room[1])
    return Form(
        parts,
        [number.kind for number in numbers],
        at[key.begin],
        0 if sent is None else at[sent.begin],
        key.most,
        ask,
        places,
        room,
        memory_bytes,
    )


class _Number(NamedTuple):
    """Where a number stands in a header, how, and the largest that stands there in this way."""

    begin: int
    kind: str
    width: int
    most: int


def _is_constant(value: Any) -> bool:
    """Whether the bytes of such a value need no look of their own."""
    return type(value) is np.ndarray and value.nbytes > 0 and value.dtype.kind not in "bO"


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
    changed = header[: number.begin] + other.to_bytes(number.width, "big") + header[number.begin + number.width :]
    try:
        return unpack_header(changed) == {**fields, name: other}
    except RequestError:
        return False


def _find_offsets(
    header: bytes, fields: Mapping[str, Any], paths: Sequence[Tuple[Any, ...]]
) -> Optional[List[_Number]]:
    """Where offsets in shared memory stand; ``None`` where that is not sure of each, or one has not four bytes."""
    found: List[_Number] = []
    tries = OFFSET_TRIES_MAX
    for path in paths:
        value = _at(fields, path)
        if not _SMALL_MAX < value <= _OFFSET_MAX:
            return None
        mark = bytes([_OFFSET_MARK]) + value.to_bytes(4, "big")
        at = header.find(mark)
        while at >= 0 and tries:
            tries -= 1
            changed = unpack_header(header[: at + 1] + (value - 1).to_bytes(4, "big") + header[at + 5 :])
            if _at(changed, path) == value - 1:
                break
            at = header.find(mark, at + 1)
        else:
            return None
        _at(changed, path[:-1])[path[-1]] = value
        if changed != fields:
            return None
        found.append(_Number(at + 1, "I", 4, _OFFSET_MAX))
    return found


def _at(fields: Any, path: Tuple[Any, ...]) -> Any:
    for step in path:
        fields = fields[step]
    return fields
