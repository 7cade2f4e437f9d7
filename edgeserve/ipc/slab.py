"""Shared memory for large tensors, a client's side: getting it, and which part of it is whose.

The client alone says what lies where: each request borrows places for its large inputs and room for its answer, and
gives them back when its one reply has come and nobody holds the answer's arrays any more. Where no room is left a
tensor travels in a frame. How the memory gets here: ``segments``.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import socket
import threading
import weakref
from bisect import bisect
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

import numpy as np

from edgeserve.errors import Malformed
from edgeserve.ipc.endpoints import split_endpoint
from edgeserve.ipc.segments import OFFER, SUFFIX, is_supported
from edgeserve.ipc.tensors import LARGE_BYTES, Place

PAGE = 4096
"""What places are multiples of, so that few sizes of holes come about."""


class Slab:
    """A segment as its client uses it. Any thread may borrow; ``lent`` has the leases of requests without a reply, by
    their id."""

    def __init__(self, file: int, size: int) -> None:
        self.bytes = size
        self.lent: Dict[Any, Lease] = {}
        self._map = mmap.mmap(file, size)
        self.memory = np.frombuffer(self._map, np.uint8)
        self._holes: List[Tuple[int, int]] = [(0, size)]  # (begin, end), in order, none beside another
        self._back: Deque[Tuple[int, int]] = deque()  # given back: from any thread, also while memory is collected
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Optional[int]:
        """The first place that is large enough; ``None`` where there is none."""
        size = -(-nbytes // PAGE) * PAGE
        with self._lock:
            while self._back:
                self._insert(*self._back.popleft())
            for index, (begin, end) in enumerate(self._holes):
                if end - begin >= size:
                    if end - begin == size:
                        del self._holes[index]
                    else:
                        self._holes[index] = (begin + size, end)
                    return begin
        return None

    def give_back(self, offset: int, nbytes: int) -> None:
        """A place is free again. Never blocks."""
        self._back.append((offset, offset + -(-nbytes // PAGE) * PAGE))

    def lend_block(self, offset: int, nbytes: int) -> np.ndarray:
        """A place that is free again when the last array over it is gone."""
        # Not a slice of self.memory: arrays over a slice would hold what was sliced, and not the slice.
        block = np.frombuffer(self._map, np.uint8, nbytes, offset)
        weakref.finalize(block, self.give_back, offset, nbytes).atexit = False
        return block

    def free_bytes(self) -> int:
        """How much is not borrowed."""
        with self._lock:
            while self._back:
                self._insert(*self._back.popleft())
            return sum(end - begin for begin, end in self._holes)

    def _insert(self, begin: int, end: int) -> None:
        holes = self._holes
        index = bisect(holes, (begin, end))
        if index < len(holes) and holes[index][0] == end:
            end = holes.pop(index)[1]
        if index and holes[index - 1][1] == begin:
            begin = holes[index - 1][0]
            holes[index - 1] = (begin, end)
        else:
            holes.insert(index, (begin, end))


class Lease:
    """What one request has borrowed of a slab."""

    __slots__ = ("slab", "room", "_inputs", "_block")

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self.room: Optional[Tuple[int, int]] = None  # offset, bytes: where the answer may be put
        self._inputs: List[Tuple[int, int]] = []
        self._block: Optional[np.ndarray] = None

    def is_empty(self) -> bool:
        """Nothing was borrowed."""
        return not self._inputs and self.room is None

    def put(self, value: np.ndarray) -> Optional[int]:
        """Copy an input into the slab; its offset, ``None`` where no room is left."""
        offset = self.slab.take(value.nbytes)
        if offset is not None:
            self._inputs.append((offset, value.nbytes))
            np.ndarray(value.shape, value.dtype, self.slab.memory.data, offset)[...] = value
        return offset

    def reserve(self, nbytes: int) -> Optional[Tuple[int, int]]:
        """Keep room for the answer, if there is some."""
        offset = self.slab.take(nbytes)
        if offset is not None:
            self.room = (offset, nbytes)
        return self.room

    def window(self, place: Place) -> memoryview:
        """A part of the answer. The room is free again when the last array over it is gone."""
        begin, size = self.room or (0, 0)
        if place.offset < begin or place.offset + place.nbytes > begin + size:
            raise Malformed(f"tensors: bytes {place.offset} to {place.offset + place.nbytes} of the shared memory, the "
                            f"room for this answer is {begin} to {begin + size}")
        if self._block is None:
            self._block = self.slab.lend_block(begin, size)
        return self._block.data[place.offset - begin:place.offset - begin + place.nbytes].toreadonly()

    def end(self) -> None:
        """The reply has come, or nobody will send one. Idempotent."""
        for offset, nbytes in self._inputs:
            self.slab.give_back(offset, nbytes)
        self._inputs.clear()
        if self.room is not None and self._block is None:
            self.slab.give_back(*self.room)
        self.room = self._block = None


class Wish:
    """The connection on which a client waits for its memory. ``token`` is to be shown to the bus."""

    def __init__(self, endpoint: str) -> None:
        self.token = b""
        self.slab: Optional[Slab] = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect(split_endpoint(endpoint)[1] + SUFFIX)
        except OSError:
            self._socket.close()
            raise

    def look(self) -> bool:
        """Whether the memory has come. Raises :class:`OSError` when none will."""
        files = array.array("i")
        try:
            said, ancillary, _, _ = self._socket.recvmsg(OFFER.size, socket.CMSG_SPACE(files.itemsize),
                                                         getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        except (BlockingIOError, InterruptedError):
            return False
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files.frombytes(content[:len(content) - len(content) % files.itemsize])
        try:
            if len(said) != OFFER.size or len(files) != 1:
                raise OSError("the server gives no shared memory")
            self.token, size = OFFER.unpack(said)
            if os.fstat(files[0]).st_size < size or not fcntl.fcntl(files[0], fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise OSError("the shared memory that the server gave could become shorter than it says")
            self.slab = Slab(files[0], size)
        finally:
            for file in files:
                os.close(file)
        return True

    def close(self) -> None:
        """The memory is claimed, or given up."""
        with contextlib.suppress(OSError):
            self._socket.close()


def may_share(endpoint: str) -> bool:
    """Whether a client of this endpoint can have shared memory, if its server gives some."""
    return endpoint.startswith("ipc://") and is_supported()


def large_bytes(values: Dict[str, Any]) -> int:
    """What the large arrays among named values need of a slab, each rounded up."""
    total = 0
    for value in values.values():
        if type(value) is np.ndarray and value.nbytes >= LARGE_BYTES:
            total += -(-value.nbytes // PAGE) * PAGE
    return total
