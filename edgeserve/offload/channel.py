"""Objects between the two halves of one program over a socket pair: pickled, with arrays sent from where they lie.

``multiprocessing``'s connection joins everything into one block and reads it back in pieces; for a camera frame that is
most of the time. Here arrays travel outside the pickle (protocol 5) and are received into memory of their final size.
For a parent and its own child only. What a parent sends is a pickle, which could run anything; what comes back is plain
(``plain.py``).
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any, List

import numpy as np

from edgeserve.offload.plain import plain_dumps, plain_loads

_COUNT = struct.Struct("!I")
_LENGTH = struct.Struct("!Q")

BUFFER_BYTES = 1 << 20
"""Wished size of the sockets' buffers: fewer changes between the two processes per message (the system may cap it)."""

BLOCKS_MAX = 1 << 20
"""Arrays of one message: a batch has thousands at most."""


class Channel:
    """One end. Not thread-safe: its owner asks and listens by turns. ``is_child``: it is the end that answers."""

    def __init__(self, end: socket.socket, is_child: bool = False) -> None:
        self._socket = end
        self._is_child = is_child
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)

    def send(self, value: Any, timeout_s: float | None = None) -> None:
        """Raises what pickle raises before anything was sent, ``OSError`` when the other end is gone and
        ``socket.timeout`` when it does not read."""
        raw: List[pickle.PickleBuffer] = []
        if self._is_child:
            head = plain_dumps(value, raw.append)
        else:
            head = pickle.dumps(value, protocol=5, buffer_callback=raw.append)
        blocks = [memoryview(head), *(block.raw() for block in raw)]
        self._socket.settimeout(timeout_s)
        lengths = b"".join(_LENGTH.pack(len(block)) for block in blocks)
        self._socket.sendall(_COUNT.pack(len(blocks)) + lengths)
        for block in blocks:
            self._socket.sendall(block)

    def receive(self, timeout_s: float | None = None) -> Any:
        """The next value. Raises ``EOFError`` or ``OSError`` when the other end is gone, ``socket.timeout`` when
        nothing comes for ``timeout_s``, and ``UnpicklingError`` when a child sends values that are not plain. Arrays in
        it are writable and own their memory."""
        self._socket.settimeout(timeout_s)
        (count,) = _COUNT.unpack(self._exactly(_COUNT.size))
        if count > BLOCKS_MAX:
            raise pickle.UnpicklingError(f"{count} blocks, more than {BLOCKS_MAX}")
        lengths = self._exactly(count * _LENGTH.size)
        blocks = [self._exactly(length) for (length,) in _LENGTH.iter_unpack(lengths)]
        loads = pickle.loads if self._is_child else plain_loads
        return loads(blocks[0], buffers=blocks[1:])

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, length: int) -> memoryview:
        try:
            block = np.empty(length, np.uint8).data  # unlike a bytearray it is not filled with zeros first
        except (MemoryError, ValueError):  # a size that no memory has
            raise pickle.UnpicklingError(f"a block of {length} bytes") from None
        filled = 0
        while filled < length:
            read = self._socket.recv_into(block[filled:])
            if read == 0:
                raise EOFError("the other end is closed")
            filled += read
        return block
