"""A client that speaks ZMTP over a plain socket: it sends what no library sends, when no library would."""

from __future__ import annotations

import socket
import struct
from typing import Any, List

import msgpack

PING = b"\x04\x07\x04PING\x00\x00"

SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
OLD_GREETINGS = {
    "1.0": b"\x01\x00",
    "1.0 with a signature": SIGNATURE + b"\x00\x05\x01\x00",
    "2.0": SIGNATURE + b"\x01\x05\x00\x00",
}
"""Version before ZMTP 3.0 -> all that a DEALER without a routing id sends ahead of its messages."""


def dial(endpoint: str, source: str = "") -> socket.socket:
    """A connection on which nothing was said; ``source``: the address that it comes from over TCP."""
    transport, _, address = endpoint.partition("://")
    if transport == "ipc":
        one = socket.socket(socket.AF_UNIX)
        one.connect(address)
    else:
        host, _, port = address.rpartition(":")
        one = socket.create_connection((host.strip("[]"), int(port)), source_address=(source, 0) if source else None)
    one.settimeout(20)
    return one


def connect(endpoint: str, minor: int = 1, source: str = "") -> socket.socket:
    """A connection after the handshake (ZMTP 3, NULL, DEALER)."""
    one = dial(endpoint, source)
    one.sendall(b"\xff" + bytes(8) + b"\x7f\x03" + bytes([minor]) + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    one.sendall(b"\x04" + bytes([len(ready)]) + ready)
    said = _read(one, 64 + 2)  # its greeting, the length of its READY: who sends messages before that is not heard
    _read(one, said[-1])
    return one


def _read(one: socket.socket, count: int) -> bytes:
    said = b""
    while len(said) < count:
        part = one.recv(count - len(said))
        if not part:
            raise ConnectionError("the server ended the connection")
        said += part
    return said


def old_message(version: str, frame: bytes) -> bytes:
    """A message of one short frame, as a version before ZMTP 3.0 has it."""
    return bytes([0, len(frame)] if version == "2.0" else [len(frame) + 1, 0]) + frame


def message(frames: List[bytes]) -> bytes:
    """A message as bytes on the wire."""
    last = len(frames) - 1
    return b"".join(
        [bytes([(index < last) + 2]) + struct.pack(">Q", len(frame)) + frame for index, frame in enumerate(frames)]
    )


def header(**fields: Any) -> bytes:
    return b"\x01" + msgpack.packb(fields)
