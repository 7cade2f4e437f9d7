"""Frames of the bus, and nothing else: requests and replies to and from lists of buffers.

Pure functions: no socket, no clock, no thread; ``bus`` and ``link`` move what is made here.
``docs/reference/protocol.md`` describes the same bytes for people who write a client in another language.

A message is a header frame (one version byte, then a msgpack map) and one raw frame per tensor. Nothing is ever
unpickled. Every count, size, dtype and shape is checked against a bound before anything of that size is allocated,
and any fault of a message becomes a typed error that names the key, the value and what was expected.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple, Union

import msgpack
import msgspec
import numpy as np

from edgeserve.config.limits import HINTS_MAX, NAME_CHARS_MAX
from edgeserve.errors import (
    REFUSAL_NUMBERS,
    REQUEST_ERRORS,
    BadInput,
    Failed,
    Malformed,
    Refusal,
    RequestError,
    TooLarge,
    WrongVersion,
    with_nearest,
)
from edgeserve.ipc.tensors import (
    TEXT_ITEMS_MAX,
    TEXTS_MAX,
    Buffer,
    Place,
    SharedPlaces,
    decode_tensors,
    encode_values,
    insert_places,
    show,
)
from edgeserve.request import Ask as Ask
from edgeserve.request import Key as Key

VERSION = 1
"""First byte of every header. A server answers another version with the error ``wrong_version``."""

HEADER_BYTES_MAX = 1024**2  # a prompt travels in the header: a megabyte is about 250,000 tokens of text
ID_BYTES_MAX = 64

INFER_BYTES_MAX = 4096
"""A header up to here is read whole before its lists are bounded: most have 100 bytes, 64 tensors some 2,000."""

_REQUEST_ARRAY_LEN_MAX = 64  # longest list in a request's header: the tensor table
_REQUEST_MAP_LEN_MAX = 64

CONTROL_KINDS = ("models", "apps", "stats", "health", "story", "trace", "drain", "reload")
REQUEST_KINDS = ("infer", "cancel", "beat", "bye", "memory") + CONTROL_KINDS

_VERSION_BYTE = bytes([VERSION])


class Reply(msgspec.Struct):
    """One reply as the client reads it. ``kind`` is ``answer``, ``piece``, ``error``, ``info`` or ``beat``; the
    fields of the other kinds stay at their defaults."""

    kind: str
    key: Optional[Key]
    request_id: int = 0
    outcome: str = ""
    reason: str = ""
    late: bool = False
    finished_ns: int = 0
    total_ns: int = 0
    breakdown: Sequence[int] = (0, 0, 0, 0)
    outputs: Dict[str, Any] = {}
    error: Optional[RequestError] = None
    info: Dict[str, Any] = {}
    quality: Optional[float] = None
    branches: Sequence[str] = ()
    variant: str = ""


# --- headers ----------------------------------------------------------------------------------------------------


def pack_header(fields: Mapping[str, Any]) -> bytes:
    """The version byte and the map."""
    packed: bytes = msgpack.packb(fields)
    return _VERSION_BYTE + packed


def unpack_header(
    frame: Buffer, array_len_max: int = _REQUEST_ARRAY_LEN_MAX, map_len_max: int = _REQUEST_MAP_LEN_MAX
) -> Dict[str, Any]:
    """The map of a header frame. Lists and maps that claim to be longer than the bounds are refused unread."""
    size = len(frame)
    if size < 2:
        raise Malformed(f"the header has {size} bytes, expected a version byte and a msgpack map")
    if frame[0] != VERSION:
        raise WrongVersion(f"the message speaks protocol version {frame[0]}, this side speaks {VERSION}")
    if size > HEADER_BYTES_MAX:
        raise TooLarge(
            f"the header has {size} bytes, at most {HEADER_BYTES_MAX} are allowed; send long data as tensors"
        )
    try:
        fields = msgpack.unpackb(
            memoryview(frame)[1:],
            raw=False,
            strict_map_key=True,
            max_array_len=array_len_max,
            max_map_len=map_len_max,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        # msgpack reports each kind of damage with another of these; none of them says which bytes.
        why = str(error) or type(error).__name__
        raise Malformed(f"the header is not a msgpack map within bounds: {why}") from None
    if type(fields) is not dict:
        raise Malformed(f"the header is a {type(fields).__name__}, expected a msgpack map")
    return fields


def take_key(fields: Dict[str, Any]) -> Key:
    """The request's ``id``, removed from the header's fields."""
    return check_key(fields.pop("id", None))


def check_key(key: Any) -> Key:
    """A request's ``id``, if it can be one."""
    if type(key) is int and 0 <= key < 2**63:
        return key
    if type(key) is bytes and 0 < len(key) <= ID_BYTES_MAX:
        return key
    raise Malformed(f"id = {show(key)}: expected a whole number from 0 to 2^63 - 1, or 1 to {ID_BYTES_MAX} bytes")


def take_kind(fields: Dict[str, Any], known: Sequence[str] = REQUEST_KINDS) -> str:
    """The message's ``kind``, removed from the header's fields."""
    kind = fields.pop("kind", None)
    if type(kind) is not str:
        raise Malformed(f"kind = {show(kind)}: expected one of {', '.join(known)}")
    if kind not in known:
        raise with_nearest(Malformed(f"kind = {show(kind)} is unknown"), kind[:NAME_CHARS_MAX], known)
    return kind


def refuse_rest(fields: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    """Refuse the keys that are left: they are unknown. The error names the nearest known one."""
    if fields:
        key = next(iter(fields))
        error = Malformed(f"{where} has no key {show(key)}")
        raise with_nearest(error, key[:NAME_CHARS_MAX], known) if type(key) is str else error


# --- requests ---------------------------------------------------------------------------------------------------------

_ORIGIN = re.compile(rf"[A-Za-z0-9.:/_-]{{1,{NAME_CHARS_MAX}}}\Z")


class Infer(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The header of a request: which keys it may have. A value of another type, and a map of any, is left to
    :func:`unpack_header`, which bounds it; :func:`decode_infer` says what was expected."""

    kind: str
    id: Union[int, bytes]
    app: Optional[str] = None
    tensors: Optional[List[Tuple[str, str, List[int]]]] = None
    texts: None = None
    slo_ms: Union[int, float, None] = None
    sent_ns: Optional[int] = None
    priority_class: Optional[str] = msgspec.field(name="class", default=None)
    value: Union[int, float, None] = None
    stream: Optional[str] = None
    reset: bool = False
    on_late: Optional[str] = None
    hints: None = None
    client: Optional[str] = None
    origin: Optional[str] = None
    quality_min: Union[int, float, None] = None
    pieces: bool = False
    room: Optional[List[int]] = None
    traceparent: Optional[str] = None


_INFER = msgspec.msgpack.Decoder(Infer)
_INFER_KEYS = tuple("class" if key == "priority_class" else key for key in Infer.__struct_fields__)


def encode_request(
    key: Key,
    app: str,
    inputs: Mapping[str, Any],
    sent_ns: int | None = None,
    options: Mapping[str, Any] | None = None,
    places: Optional[SharedPlaces] = None,
) -> List[Any]:
    """An inference request as frames: header, then one buffer per tensor. ``options`` are header keys
    (``slo_ms``, ``class``, ...) that are not ``None``. Raises :class:`BadInput` for a value that cannot travel.

    Buffers from :data:`LARGE_BYTES` on are views of the caller's arrays, not copies; or in shared memory and no buffers
    at all, where ``places`` has room.
    """
    fields: Dict[str, Any] = {"kind": "infer", "id": key, "app": app}
    if sent_ns is not None:
        fields["sent_ns"] = sent_ns
    if options:
        fields.update(options)
    frames: List[Any] = [None]
    try:
        encode_values(inputs, fields, frames, "input", lists=False, places=places)
        frames[0] = header = _VERSION_BYTE + msgpack.packb(fields, default=_number_of_numpy)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"the request for app {app!r} cannot be sent: {error}") from None
    if len(header) > HEADER_BYTES_MAX:
        raise TooLarge(
            f"texts and names take {len(header)} bytes, at most {HEADER_BYTES_MAX} fit; "
            "send long data as a uint8 tensor"
        )
    if read_infer(header) is None:
        unpack_header(header)  # the server could not say whose mistake it is: all requests of the client would fail
    return frames


def _number_of_numpy(value: Any) -> Any:
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        return value.item()
    raise TypeError(f"an option is a {type(value).__name__}, expected a number or a string")


def read_infer(header: Buffer) -> Optional[Infer]:
    """The header of most requests; ``None`` for any other message: :func:`unpack_header` reads it within bounds, or
    raises an error."""
    if not 1 < len(header) <= INFER_BYTES_MAX or header[0] != VERSION:
        return None
    try:
        found = _INFER.decode(header[1:])
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found.kind == "infer" else None


def _infer_of(fields: Dict[str, Any]) -> Infer:
    """The same of a header's fields (``kind`` and ``id`` taken), which hold values of any types."""
    known = {key: fields.pop(key) for key in _INFER_KEYS[2:] if key in fields}
    refuse_rest(fields, _INFER_KEYS, "an infer header")
    return Infer("infer", 0, **{"priority_class" if key == "class" else key: value for key, value in known.items()})


def decode_infer(
    ask: Ask, fields: Union[Infer, Dict[str, Any]], buffers: Sequence[Buffer], message_bytes_max: int
) -> None:
    """Fill ``ask`` from the header of an inference request (of fields ``kind`` and ``id`` are taken) and its tensor
    frames. Only the form is checked: types, sizes and counts."""
    told = fields if type(fields) is Infer else _infer_of(fields)  # type: ignore[arg-type]
    ask.id = 0
    app = told.app
    if type(app) is not str or not 0 < len(app) <= NAME_CHARS_MAX:
        raise Malformed(f"app = {show(app)}: expected a name of 1 to {NAME_CHARS_MAX} characters")
    ask.app = app
    table = told.tensors
    inputs = ask.inputs = decode_tensors(table, buffers, message_bytes_max) if table is not None or buffers else {}
    if told.texts is not None:
        _take_texts(told.texts, inputs)
    sent_ns = ask.sent_ns = told.sent_ns
    if sent_ns is not None and (type(sent_ns) is not int or not 0 <= sent_ns < 2**63):
        raise Malformed(f"sent_ns = {show(sent_ns)}: expected nanoseconds of the host's monotonic clock")
    slo_ms = ask.slo_ms = told.slo_ms
    if slo_ms is not None and type(slo_ms) is not int and type(slo_ms) is not float:
        raise Malformed(f"slo_ms = {show(slo_ms)}: expected a number of milliseconds")
    ask.priority_class = None if told.priority_class is None else _text(told.priority_class, "class")
    ask.on_late = None if told.on_late is None else _text(told.on_late, "on_late")
    ask.stream = None if told.stream is None else _text(told.stream, "stream")
    ask.traceparent = None if told.traceparent is None else _text(told.traceparent, "traceparent")
    ask.reset = told.reset is not False and _boolean(told.reset, "reset")
    ask.pieces = told.pieces is not False and _boolean(told.pieces, "pieces")
    client = told.client
    if client is not None and (type(client) is not str or len(client) > NAME_CHARS_MAX or not _is_client(client)):
        raise Malformed(
            f"client = {show(client)}: expected a name of printable characters other than # and @, at "
            f"most {NAME_CHARS_MAX} of them"
        )
    ask.client = client or ""
    origin = told.origin
    if origin is not None and (type(origin) is not str or not _ORIGIN.match(origin)):
        raise Malformed(
            f"origin = {show(origin)}: expected a name of letters, digits and any of . : / _ -, at "
            f"most {NAME_CHARS_MAX} of them"
        )
    ask.origin = origin or ""
    ask.value = None if told.value is None else _number(told.value, "value")
    ask.quality_min = None if told.quality_min is None else _number(told.quality_min, "quality_min")
    room = ask.room = told.room
    if room is not None and (
        type(room) is not list or len(room) != 2 or not all(type(size) is int and size >= 0 for size in room)
    ):
        raise Malformed(f"room = {show(room)}: expected [offset, bytes] in this connection's shared memory")
    ask.hints = None if told.hints is None else _hints_of(told.hints)


def _hints_of(hints: Any) -> Dict[str, float]:
    if type(hints) is not dict or len(hints) > HINTS_MAX:
        raise Malformed(f"hints = {show(hints)}: expected a map of at most {HINTS_MAX} names to numbers")
    return {_name(hint, "hints"): _number(number, f"hints.{hint}") for hint, number in hints.items()}


def _is_client(name: str) -> bool:
    """True if a client may call itself so: ``#`` and ``@`` separate what shares go by (``client_registry.py``)."""
    return name.isprintable() and "#" not in name and "@" not in name


def _take_texts(texts: Any, inputs: Dict[str, Any]) -> None:
    if type(texts) is not dict or len(texts) > TEXTS_MAX:
        raise Malformed(f"texts = {show(texts)}: expected a map of at most {TEXTS_MAX} names to strings")
    for name, text in texts.items():
        if _name(name, "texts") in inputs:
            raise Malformed(f"input {name!r} is both in tensors and in texts, expected it once")
        if type(text) is not str:
            raise Malformed(f"texts.{name} = {show(text)}: expected a string")
        inputs[name] = text


def _name(name: Any, where: str) -> str:
    if type(name) is not str or not 0 < len(name) <= NAME_CHARS_MAX:
        raise Malformed(f"{where}: {show(name)} is no name, expected 1 to {NAME_CHARS_MAX} characters")
    return name


def _number(value: Any, where: str) -> float:
    if type(value) is int or type(value) is float:
        return value
    raise Malformed(f"{where} = {show(value)}: expected a number")


def _boolean(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise Malformed(f"{where} = {show(value)}: expected true or false")
    return value


def _text(text: Any, where: str) -> str:
    if type(text) is str and len(text) <= NAME_CHARS_MAX:
        return text
    raise Malformed(f"{where} = {show(text)}: expected a text of at most {NAME_CHARS_MAX} characters")


# --- replies ----------------------------------------------------------------------------------------------------


class _Answer(msgspec.Struct, gc=False):
    """The header of an answer; fields that are not set do not travel."""

    kind: str
    outcome: str
    late: bool
    finished_ns: int
    total_ns: int
    breakdown_ns: Sequence[int]
    request_id: int
    id: Key
    reason: Any = msgspec.UNSET
    branches: Any = msgspec.UNSET
    variant: Any = msgspec.UNSET
    quality: Any = msgspec.UNSET
    tensors: Any = msgspec.UNSET
    texts: Any = msgspec.UNSET


_pack = msgspec.msgpack.Encoder().encode


def encode_answer(
    key: Key,
    outputs: Mapping[str, Any],
    message_bytes_max: int,
    reason: str = "",
    late: bool = False,
    finished_ns: int = 0,
    total_ns: int = 0,
    breakdown: Sequence[int] = (0, 0, 0, 0),
    request_id: int = 0,
    quality: Optional[float] = None,
    branches: Sequence[str] = (),
    places: Optional[SharedPlaces] = None,
    variant: str = "",
) -> List[Any]:
    """An answer as frames: header, then one buffer per tensor. Raises :class:`Failed` when an output cannot travel.
    ``quality``, the ``variant`` and the names of the ``branches`` that took part travel where there are any. Large
    tensors go where ``places`` has room."""
    frames: List[Any] = [None]
    try:
        answer = _Answer("answer", "completed", late, finished_ns, total_ns, breakdown, request_id, key)
        total = 0
        if outputs:
            values: Dict[str, Any] = {}
            total = encode_values(outputs, values, frames, "output", places=places)
            if "tensors" in values:
                answer.tensors = values["tensors"]
            if "texts" in values:
                answer.texts = values["texts"]
        if reason:
            answer.reason = reason
        if branches:
            answer.branches = list(branches)
        if variant:
            answer.variant = variant
        if quality is not None:
            answer.quality = quality
        frames[0] = _VERSION_BYTE + _pack(answer)
    except (TypeError, ValueError, OverflowError) as error:
        raise Failed(f"the answer cannot be sent: {error}") from None
    _check_bytes("the answer", len(frames[0]), total, message_bytes_max)
    return frames


def _check_bytes(what: str, header_bytes: int, total: int, message_bytes_max: int) -> None:
    """Raise :class:`Failed` for a reply that its client would refuse, and its connection with it."""
    if header_bytes > HEADER_BYTES_MAX:
        raise Failed(
            f"texts and names of {what} take {header_bytes} bytes, at most {HEADER_BYTES_MAX} fit; return long data as "
            "a uint8 tensor"
        )
    if total + header_bytes > message_bytes_max:
        raise Failed(
            f"{what} takes {total + header_bytes} bytes, at most {message_bytes_max} are allowed; raise [server] memory"
        )


def encode_piece(key: Key, outputs: Mapping[str, Any], message_bytes_max: int) -> List[Any]:
    """A piece of an answer as frames, as :func:`encode_answer`."""
    fields: Dict[str, Any] = {"kind": "piece", "id": key}
    frames: List[Any] = [None]
    try:
        total = encode_values(outputs, fields, frames, "output")
        frames[0] = _VERSION_BYTE + _pack(fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise Failed(f"a piece of the answer cannot be sent: {error}") from None
    _check_bytes("a piece of the answer", len(frames[0]), total, message_bytes_max)
    return frames


def encode_error(key: Key | None, error: RequestError) -> bytes:
    """An error reply's header frame; it has no other frame."""
    fields: Dict[str, Any] = {"kind": "error", "id": key, "code": error.code, "message": _sendable(str(error)[:4096])}
    if error.id:
        fields["request_id"] = error.id
    if isinstance(error, Refusal):
        if error.reason:
            fields["reason"] = _sendable(str(error.reason)[:1024])
        if error.expected_ms is not None:
            fields["lane"] = _sendable(error.lane)
            for name in REFUSAL_NUMBERS:
                number = getattr(error, name)
                if number is not None:
                    fields[name] = number
    return pack_header(fields)


def _sendable(text: str) -> str:
    """The text without lone surrogates, as names of files may have them: UTF-8 has no bytes for those."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def pack_info(payload: Mapping[str, Any]) -> bytes:
    """The answer to a control question, for :func:`encode_info`; numpy numbers become plain ones, anything else unknown
    its ``str``. Raises :class:`Failed` for what a client cannot read (keys that are no text, more than fits into a
    header): the client would give up its connection, and all its requests with it."""
    try:
        packed: bytes = msgpack.packb(
            payload, default=lambda value: value.item() if hasattr(value, "item") else str(value)
        )
        unpack_header(encode_info(bytes(ID_BYTES_MAX), packed), TEXT_ITEMS_MAX, TEXT_ITEMS_MAX)
    except (TypeError, ValueError, OverflowError, RecursionError, RequestError) as error:
        raise Failed(f"the answer to this question cannot be sent: {error}") from None
    return packed


def encode_info(key: Key, packed: bytes) -> bytes:
    """The reply to a control question, of what :func:`pack_info` made."""
    head: bytes = msgpack.packb({"kind": "info", "id": key, "info": None})
    return _VERSION_BYTE + head[:-1] + packed


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


_WORDS: Mapping[str, Tuple[str, Any, Callable[[Any], bool], str]] = {
    "story": ("request_id", None, _is_count, "the request_id of an answer or an error"),
    "trace": ("after", 0, _is_count, "the number of a step, 0 for all that are kept"),
    "reload": (
        "model",
        "",
        lambda value: type(value) is str and len(value) <= NAME_CHARS_MAX,
        f"a name of {NAME_CHARS_MAX} characters at most",
    ),
    "memory": (
        "token",
        None,
        lambda value: type(value) is bytes and len(value) <= ID_BYTES_MAX,
        "the bytes that came with the shared memory",
    ),
    "cancel": ("keeps", False, lambda value: type(value) is bool, "true or false"),
}
"""Kind of message -> the field that its header has beside ``kind`` and ``id``: its name, its value where it is left
out, whether a value is one, and what is expected. ``keeps``: the partial answer is wanted."""


def take_word(kind: str, fields: Dict[str, Any]) -> Any:
    """The further field of a message of this ``kind``, removed from its header's fields; ``None`` where it has none."""
    if kind not in _WORDS:
        return None
    name, default, is_one, expected = _WORDS[kind]
    value = fields.pop(name, default)
    if not is_one(value):
        raise Malformed(f"{name} = {show(value)}: expected {expected}")
    return value


def encode_plain(kind: str, key: Key | None = None, **words: Any) -> bytes:
    """A message that is only a header: ``beat``, ``bye``, ``cancel``, ``memory`` and the control questions."""
    return pack_header({"kind": kind, **({} if key is None else {"id": key}), **words})


def encode_question(kind: str, key: Key, words: Mapping[str, Any]) -> bytes:
    """A control question. Raises :class:`BadInput` or :class:`TooLarge` for one that the server could not read."""
    try:
        header = encode_plain(kind, key, **words)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"the question {kind} cannot be sent: {error}") from None
    unpack_header(header)
    return header


class Windows(Protocol):
    """The room in shared memory that a client kept free for an answer."""

    def window(self, place: Place) -> memoryview:
        """The memory at a place of it; raises :class:`Malformed` for one outside."""


NO_WINDOWS: Mapping[Any, Windows] = {}


def decode_reply(
    frames: Sequence[Buffer], message_bytes_max: int, windows: Mapping[Any, Windows] = NO_WINDOWS
) -> Reply:
    """The reply that a client received. Raises :class:`Malformed` (or a subclass) for a message that is no reply.

    Keys that this version does not know are passed over: a newer server may say more. ``windows``: by the id of a
    request, the room that its answer may lie in."""
    if not frames:
        raise Malformed("the reply has no frames, expected a header")
    fields = unpack_header(frames[0], TEXT_ITEMS_MAX, TEXT_ITEMS_MAX)
    kind = take_kind(fields, ("answer", "error", "info", "beat", "piece"))
    raw_key = fields.get("id")
    reply = Reply(kind, None if raw_key is None else take_key(fields))
    if kind == "piece":
        _read_outputs(fields, frames[1:], message_bytes_max, reply)
    elif kind == "answer":
        _read_answer(fields, _with_windows(fields, frames[1:], windows.get(reply.key)), message_bytes_max, reply)
    elif kind == "error":
        reply.error = _read_error(fields)
        reply.reason = getattr(reply.error, "reason", "")
    else:
        reply.info = fields if kind == "beat" else fields.get("info", {})
        if type(reply.info) is not dict:
            raise Malformed(f"info = {show(reply.info)}: expected a map")
    return reply


def _with_windows(fields: Mapping[str, Any], frames: Sequence[Buffer], windows: Optional[Windows]) -> Sequence[Buffer]:
    """The frames of an answer, and what lies in shared memory in its place among them."""
    if windows is None:
        return frames
    buffers: List[Any] = list(frames)
    insert_places(fields.get("tensors"), buffers)
    return [windows.window(buffer) if type(buffer) is Place else buffer for buffer in buffers]


def _read_answer(fields: Dict[str, Any], buffers: Sequence[Buffer], message_bytes_max: int, reply: Reply) -> None:
    take = fields.pop
    _read_outputs(fields, buffers, message_bytes_max, reply)
    reply.outcome = take("outcome", "completed")
    reply.reason = take("reason", "")
    reply.late = take("late", False)
    request_id = reply.request_id = take("request_id", 0)
    if type(request_id) is not int:
        raise Malformed(f"request_id = {show(request_id)}: expected a whole number")
    reply.finished_ns = take("finished_ns", 0)
    reply.total_ns = take("total_ns", 0)
    breakdown = reply.breakdown = take("breakdown_ns", (0, 0, 0, 0))
    if type(breakdown) not in (list, tuple) or len(breakdown) != 4 or not all(type(part) is int for part in breakdown):
        raise Malformed(f"breakdown_ns = {show(breakdown)}: expected four whole numbers")
    if "quality" in fields or "branches" in fields:
        _read_quality(fields, reply)
    if "variant" in fields:
        reply.variant = fields.pop("variant")
        if type(reply.variant) is not str:
            raise Malformed(f"variant = {show(reply.variant)}: expected the name of a model")


def _read_outputs(fields: Dict[str, Any], buffers: Sequence[Buffer], message_bytes_max: int, reply: Reply) -> None:
    take = fields.pop
    table = take("tensors", None)
    if table is not None or buffers:
        reply.outputs = decode_tensors(table, buffers, message_bytes_max)
    texts = take("texts", None)
    if texts is not None:
        if type(texts) is not dict:
            raise Malformed(f"texts = {show(texts)}: expected a map of names to strings or lists of strings")
        both = reply.outputs.keys() & texts.keys()
        if both:
            raise Malformed(f"output {show(min(both, key=str))} is both in tensors and in texts, expected it once")
        reply.outputs.update(texts)


def _read_quality(fields: Dict[str, Any], reply: Reply) -> None:
    """Read the quality of an ensemble's answer, and the branches that took part in a join's."""
    quality, branches = fields.pop("quality", None), fields.pop("branches", ())
    if quality is not None and (type(quality) not in (int, float) or not 0.0 <= quality <= 1.0):
        raise Malformed(f"quality = {show(quality)}: expected a number from 0 to 1")
    if type(branches) not in (list, tuple) or not all(type(name) is str for name in branches):
        raise Malformed(f"branches = {show(branches)}: expected a list of names")
    reply.quality, reply.branches = None if quality is None else float(quality), tuple(branches)


def _read_error(fields: Mapping[str, Any]) -> RequestError:
    kind = REQUEST_ERRORS.get(str(fields.get("code")), RequestError)
    error = kind(str(fields.get("message", "")))
    request_id = fields.get("request_id", 0)
    if type(request_id) is int:
        error.id = request_id
    if isinstance(error, Refusal):
        error.reason = str(fields.get("reason", ""))
        error.lane = str(fields.get("lane", ""))
        for name in REFUSAL_NUMBERS:
            value = fields.get(name)
            if type(value) is int or type(value) is float:
                setattr(error, name, float(value))
    return error
