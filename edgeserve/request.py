"""The record of one request: what was asked, and by whom. Knows no message, socket or app."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping, Optional, Sequence, Tuple, Union

Key = Union[int, bytes]
"""A client's own number (or bytes) for a request; unique among its requests in flight."""


class Ask:
    """The content of one request. The bus makes one from a message that it checked for form only: whether the app
    exists, and what the options mean, is checked where the request is accepted.

    ``inputs`` are read-only views of what was received (or strings). ``sent_ns`` is ``None`` where it is unknown, or by
    the clock of another host. An option of ``None`` (``slo_ms``, ``priority_class``, ...) means: as the app says.
    ``pieces``: it wants pieces of the answer as they come. ``bytes`` is how many its message has, with its tensors in
    shared memory. ``room``: where in that memory (offset, bytes) large tensors of the answer may be put.
    ``client`` is the client's own name; the bus replaces it by the owner and number of its connection. ``origin`` is
    the client for which a gateway asks, empty where it asks for itself. ``peer``, ``key`` and ``is_req`` are the bus's:
    the connection, the client's own id of the request, and whether a REQ socket sent it. ``id`` is the server's number
    of the request, 0 until it gives one. The live side extends this class, so that a request is one record from its
    message to its answer.
    """

    fields: ClassVar[Tuple[str, ...]] = (
        "id",
        "peer",
        "key",
        "is_req",
        "app",
        "inputs",
        "slo_ms",
        "sent_ns",
        "priority_class",
        "value",
        "stream",
        "reset",
        "on_late",
        "hints",
        "client",
        "origin",
        "quality_min",
        "pieces",
        "bytes",
        "room",
        "traceparent",
    )
    __slots__ = fields

    id: int
    peer: Any
    key: Key
    is_req: bool
    app: str
    inputs: Dict[str, Any]
    slo_ms: Optional[float]
    sent_ns: Optional[int]
    priority_class: Optional[str]
    value: Optional[float]
    stream: Optional[str]
    reset: bool
    on_late: Optional[str]
    hints: Optional[Mapping[str, float]]
    client: str
    origin: str
    quality_min: Optional[float]
    pieces: bool
    bytes: int
    room: Optional[Sequence[int]]
    traceparent: Optional[str]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(" + ", ".join(f"{slot}={getattr(self, slot, None)!r}" for slot in Ask.fields) + ")"
        )
