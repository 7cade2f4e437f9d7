"""ZeroMQ's REQ and DEALER sockets, answered over asyncio's connections (ZMTP 3.0, RFC 23; mechanism NULL).

libzmq's own ROUTER socket keeps all that a client sends: frames without a last one, and messages ahead of their
answers. Here each connection is read no further than its next message, and one that breaks a bound is ended.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Callable, Final, List, Sequence, Tuple

GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY: Final = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"ROUTER"
READY_BYTES_MAX: Final = 512
MORE, LONG, COMMAND = 1, 2, 4

PIECE_BYTES: Final = 64 * 1024
"""What is too long is thrown away in such pieces."""


class OddPeer(ValueError):
    """Bytes that no REQ or DEALER socket sends, or more than is read of one."""


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Greet the peer as a ROUTER does. Raises :class:`OddPeer` where it is no socket that a ROUTER answers."""
    writer.write(GREETING)
    greeting = await reader.readexactly(len(GREETING))
    mechanism = greeting[12:32].rstrip(b"\0")
    if greeting[:1] != GREETING[:1] or greeting[9:10] != GREETING[9:10] or greeting[10] < 3 or mechanism != b"NULL":
        raise OddPeer(f"a greeting of {greeting[:32]!r}; expected ZMTP 3 without keys")
    writer.write(bytes([COMMAND, len(READY)]) + READY)
    flags, size = await _head(reader)
    if not flags & COMMAND or size > READY_BYTES_MAX:
        raise OddPeer(f"{size} bytes before the command READY")
    kind = _socket_type(await reader.readexactly(size))
    if kind not in (b"REQ", b"DEALER"):
        raise OddPeer(f"a socket of type {kind!r}; expected REQ")


async def read_message(
    reader: asyncio.StreamReader, bytes_max: Sequence[int], hold: Callable[[int], None]
) -> Tuple[List[bytes], int]:
    """The frames of the next message after its empty one, each of at most so many bytes, and the number of longer ones
    that were thrown away. ``hold`` hears how many bytes will be kept, before they are read. Raises :class:`OddPeer` for
    more frames or for one that is longer than any may be, and :class:`asyncio.IncompleteReadError` at the end."""
    flags, size = await _head(reader)
    if flags & COMMAND or size or not flags & MORE:
        raise OddPeer("a message without an empty frame before its request, as REQ sockets send it")
    frames: List[bytes] = []
    kept = too_long = 0
    while flags & MORE:
        flags, size = await _head(reader)
        if flags & COMMAND or len(frames) == len(bytes_max):
            raise OddPeer(f"a request of more than {len(bytes_max)} frames")
        if size > max(bytes_max):
            raise OddPeer(f"a frame of {size} bytes, of {max(bytes_max)} at most")
        if size > bytes_max[len(frames)]:
            too_long += 1
            await _skip(reader, size)
            size = 0
        kept += size
        hold(kept)
        frames.append(await reader.readexactly(size))
    await asyncio.sleep(0)  # what has come is read without a wait: other connections have a turn
    return frames, too_long


def as_message(frame: bytes) -> bytes:
    """The bytes of an answer of one frame."""
    size = bytes([0, len(frame)]) if len(frame) < 256 else bytes([LONG]) + struct.pack(">Q", len(frame))
    return bytes([MORE, 0]) + size + frame


async def _head(reader: asyncio.StreamReader) -> Tuple[int, int]:
    """Flags and length of the next frame."""
    flags = (await reader.readexactly(1))[0]
    size = await reader.readexactly(8 if flags & LONG else 1)
    return flags, int.from_bytes(size, "big")


async def _skip(reader: asyncio.StreamReader, size: int) -> None:
    while size:
        size -= len(await reader.readexactly(min(size, PIECE_BYTES)))
        await asyncio.sleep(0)


def _socket_type(ready: bytes) -> bytes:
    """The property of that name in the body of a READY command; empty where it has none."""
    place = 1 + ready[0] if ready else 0
    while place < len(ready):
        name_end = place + 1 + ready[place]
        value_end = name_end + 4 + int.from_bytes(ready[name_end : name_end + 4], "big")
        if ready[place + 1 : name_end].lower() == b"socket-type":
            return ready[name_end + 4 : value_end]
        place = value_end
    return b""
