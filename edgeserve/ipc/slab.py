"""Shared memory for large tensors, on a client's side: its request, and the share of each request in it.

The client alone places the tensors: each request borrows one block for its large inputs, and its answer may be put
into the same block, since the server has copied the inputs by then. It gives the block back when its one reply has come
and the answer's arrays are gone. Arrays that lie in the memory already (``Slab.buffer``, answers) are not
copied. Where no room is left a tensor travels in a frame. How the memory gets here: ``segments``.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import math
import mmap
import os
import socket
import threading
from bisect import bisect
from collections import deque
from typing import Any, Deque, Dict, List, Mapping, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.errors import Malformed
from edgeserve.ipc.endpoints import split_endpoint
from edgeserve.ipc.segments import OFFER, SUFFIX, is_supported
from edgeserve.ipc.tensors import LARGE_BYTES, Place, call_when_gone

PAGE = 4096
"""The bytes that sizes of blocks are multiples of, so that few sizes of holes come about."""


class Slab:
    """A segment as its client uses it. Any thread may borrow; ``lent`` has the leases of requests without a reply, by
    their id."""

    def __init__(self, file: int, size: int) -> None:
        self.bytes = size
        self.lent: Dict[Any, Lease] = {}
        self._map = mmap.mmap(file, size)
        self.memory = np.frombuffer(self._map, np.uint8)
        self._address = address_of(self.memory)
        self._holes: List[Tuple[int, int]] = [(0, size)]  # (begin, end), in order, none beside another
        self._back: Deque[Tuple[int, int]] = deque()  # given back: from any thread, also while memory is collected
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Optional[int]:
        """A place that is large enough; ``None`` where there is none. The place that was given back last comes first
        (its bytes are in the processor's cache), then what lies last in the memory."""
        size = rounded(nbytes)
        with self._lock:
            back = self._back
            if back:
                begin, end = back.pop()
                if end - begin == size:
                    return begin
                self._insert(begin, end)
            while back:
                self._insert(*back.popleft())
            holes = self._holes
            for index in range(len(holes) - 1, -1, -1):
                begin, end = holes[index]
                if end - begin >= size:
                    if end - begin == size:
                        del holes[index]
                    else:
                        holes[index] = (begin, end - size)
                    return end - size
        return None

    def give_back(self, offset: int, nbytes: int) -> None:
        """Free a place. Never blocks."""
        self._back.append((offset, offset + rounded(nbytes)))

    def lend_block(self, offset: int, nbytes: int) -> NDArray[Any]:
        """A place that is free again when the last array over it is gone."""
        # Not a slice of self.memory: arrays over a slice would hold what was sliced, and not the slice.
        block = np.frombuffer(self._map, np.uint8, nbytes, offset)
        call_when_gone(block, self._back.append, (offset, offset + rounded(nbytes)))
        return block

    def buffer(self, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> Optional[NDArray[Any]]:
        """An array to be filled; ``None`` where no room is left. Its place is free again when the last array over it is
        gone and no request is under way with it."""
        nbytes = math.prod(shape) * dtype.itemsize
        offset = self.take(nbytes)
        return None if offset is None else np.ndarray(shape, dtype, self.lend_block(offset, nbytes))

    def offset_of(self, value: NDArray[Any]) -> Optional[int]:
        """The offset of an array in this memory; ``None`` where it lies elsewhere, or not in one piece."""
        offset = address_of(value) - self._address
        inside = 0 <= offset <= self.bytes - value.nbytes
        return offset if inside and value.flags.c_contiguous else None

    def free_bytes(self) -> int:
        """The bytes that are not borrowed."""
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
    """The memory that one request has borrowed of a slab: one block, for its large inputs and then for its answer."""

    __slots__ = ("slab", "room", "_begin", "_next", "_end", "_held", "_block")

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self.room: Optional[Tuple[int, int]] = None  # offset, bytes: where the answer may be put
        self._begin = self._next = self._end = 0
        self._held: Dict[int, Tuple[NDArray[Any], int]] = {}  # by id: inputs that lie in the slab, and where
        self._block: Optional[NDArray[Any]] = None

    def is_empty(self) -> bool:
        """Nothing was borrowed."""
        return self._end == 0 and not self._held

    def borrow(self, inputs: Mapping[str, Any], answer_bytes: int, stays: bool = False) -> None:
        """Borrow for the large arrays among ``inputs`` and for an answer of so many bytes, as far as there is room.
        ``stays``: the inputs do not change until the reply, so that inputs in the memory are not copied."""
        needed = 0
        for value in inputs.values():
            if type(value) is np.ndarray and value.nbytes >= LARGE_BYTES:
                place = self.slab.offset_of(value) if stays else None
                if place is None:
                    needed += rounded(value.nbytes)
                else:
                    self._held[id(value)] = (value, place)
        for size in (max(needed, answer_bytes), needed):
            offset = self.slab.take(size) if size else None
            if offset is not None:
                self._begin = self._next = offset
                self._end = offset + rounded(size)
                if answer_bytes and size >= answer_bytes:
                    self.room = (offset, answer_bytes)
                return

    def put(self, value: NDArray[Any]) -> Optional[int]:
        """The offset of an input in the slab, where it was copied to unless it lies there and stays as it is; ``None``
        where no room is left."""
        held = self._held.get(id(value)) if self._held else None
        if held is not None:
            return held[1]
        offset = self._next
        if offset + value.nbytes > self._end:
            return None
        self._next = offset + rounded(value.nbytes)
        np.ndarray(value.shape, value.dtype, self.slab.memory.data, offset)[...] = value
        return offset

    def window(self, place: Place) -> memoryview:
        """A part of the answer. The room is free again when the last array over it is gone."""
        begin, size = self.room or (0, 0)
        if place.offset < begin or place.offset + place.nbytes > begin + size:
            raise Malformed(
                f"tensors: bytes {place.offset} to {place.offset + place.nbytes} of the shared memory, the "
                f"room for this answer is {begin} to {begin + size}"
            )
        if self._block is None:
            self._block = self.slab.lend_block(begin, size)
        return self._block.data[place.offset - begin : place.offset - begin + place.nbytes].toreadonly()

    def end(self) -> None:
        """Give the block back: the reply has come, or none will. Idempotent."""
        begin = self._begin
        if self._block is not None and self.room is not None:  # its arrays give the room back
            begin += rounded(self.room[1])
        if begin < self._end:
            self.slab.give_back(begin, self._end - begin)
        self._held.clear()
        self._begin = self._next = self._end = 0
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
        """True if the memory has come. Raises :class:`OSError` when none will."""
        files = array.array("i")
        try:
            said, ancillary, _, _ = self._socket.recvmsg(
                OFFER.size, socket.CMSG_SPACE(files.itemsize), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return False
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files.frombytes(content[: len(content) - len(content) % files.itemsize])
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
        """Take the offer back: the memory is claimed, or given up."""
        with contextlib.suppress(OSError):
            self._socket.close()


def may_share(endpoint: str) -> bool:
    """True if a client of this endpoint can have shared memory, if its server gives some."""
    return endpoint.startswith("ipc://") and is_supported()


def large_bytes(values: Dict[str, Any]) -> int:
    """The bytes that the large arrays among named values need of a slab, each rounded up."""
    total = 0
    for value in values.values():
        if type(value) is np.ndarray and value.nbytes >= LARGE_BYTES:
            total += rounded(value.nbytes)
    return total


def rounded(nbytes: int) -> int:
    """So many bytes in whole pages."""
    return -(-nbytes // PAGE) * PAGE


def address_of(value: NDArray[Any]) -> int:
    """The address of an array's first element in this process."""
    address: int = value.__array_interface__["data"][0]
    return address
