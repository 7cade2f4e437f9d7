"""Shared memory for large tensors, the server's side: a piece of memory per client, and how a client gets it.

Nothing has a name. The server makes a ``memfd`` of fixed size (sealed, so that no access to it can fail) and passes its
descriptor over a Unix socket beside the bus, to a process of its own user alone. With it comes a token, which the
client shows on its connection to the bus; from then on requests of that connection say where in the segment their
tensors lie, and where those of the answer may be put. The system frees a segment when the last process that has it
ends. What a client writes there is copied before it is looked at: the client may change it at any time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import resource
import secrets
import select
import socket
import stat
import struct
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.errors import ConfigError, Malformed, NotAllowed, Rejected
from edgeserve.ipc.endpoints import IPC_PATH_BYTES_MAX, look_for_server, remove_socket, split_endpoint
from edgeserve.ipc.tensors import Buffer, Place, call_when_gone, insert_places
from edgeserve.owners import process_owner
from edgeserve.units import NS_PER_MS, NS_PER_S
from edgeserve.waits import readable_files

log = logging.getLogger("edgeserve")

SUFFIX = ".memory"
"""The socket that segments are passed over lies beside that of the bus, with this at the end of its name."""

OFFER = struct.Struct("<16sQ")
"""The data sent with a descriptor: the token, the segment's bytes."""

TOKEN_BYTES = 16
OFFERS_MAX = 64  # passed and not claimed, at a time
FILES_SHARE = 32  # an offer has two descriptors: offers may have a sixteenth of the files that may be open
OFFER_NS_MAX = 10 * NS_PER_S  # a client claims in milliseconds
LOOK_MS = 1000  # time between two looks for unclaimed offers, while there are any
BACKLOG = 64
ACCEPT_PAUSE_NS = 10 * NS_PER_MS
ALIGN = 64
"""The alignment of an answer's tensors, in bytes: a cache line."""

_PEER = struct.Struct("3i")
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


def is_supported() -> bool:
    """True if this system has sealed memory without a name: Linux, and Python built for it."""
    return hasattr(os, "memfd_create") and all(hasattr(fcntl, seal) for seal in _SEALS)


class SharedSegment:
    """The memory of one client's connection, ``bytes`` long. Only the thread of the bus reads and writes it."""

    __slots__ = ("file", "bytes", "pid", "_map", "_copies", "__weakref__")

    def __init__(self, size: int, pid: int = 0) -> None:
        self.bytes = size
        self.pid = pid  # whose it is
        self.file = os.memfd_create("edgeserve", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._map: Optional[NDArray[Any]] = None
        self._copies = Copies(size)
        try:
            os.ftruncate(self.file, size)
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except OSError:
            self.close_file()
            raise

    def __del__(self) -> None:
        self.close_file()

    def close_file(self) -> None:
        """Close the descriptor, which is passed on or not needed any more."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def open(self) -> None:
        """Make it readable here."""
        mapped = mmap.mmap(self.file, self.bytes)
        mapped.madvise(mmap.MADV_DONTFORK)  # children of this process have no part in it
        self._map = np.frombuffer(mapped, np.uint8)
        self.close_file()

    def find(self, fields: Mapping[str, Any], buffers: List[Any]) -> int:
        """Put places into ``buffers`` where a header's table names some; how many bytes they have together. Raises
        :class:`Malformed` for one beyond the segment's end."""
        total = insert_places(fields.get("tensors"), buffers)
        if total:
            for place in buffers:
                if type(place) is Place and place.offset + place.nbytes > self.bytes:
                    raise Malformed(
                        f"tensors: bytes {place.offset} to {place.offset + place.nbytes} of the shared "
                        f"memory, which has {self.bytes}"
                    )
        return total

    def copy(self, buffers: List[Any]) -> None:
        """Replace the places in ``buffers`` by what lies there now."""
        assert self._map is not None, "opened when it was claimed"
        for index, place in enumerate(buffers):
            if type(place) is Place:
                buffers[index] = self._copies.of(self._map[place.offset : place.offset + place.nbytes])

    def room(self, place: Sequence[int]) -> Optional[AnswerRoom]:
        """The part of the segment at ``place``, for the tensors of an answer."""
        return None if self._map is None else AnswerRoom(self._map, place[0], place[0] + place[1])


class Copies:
    """Copies of what clients wrote, in memory that is used again: fresh memory of this size costs its page faults,
    several times what copying does. At most ``spare_bytes_max`` wait for their next use."""

    def __init__(self, spare_bytes_max: int) -> None:
        self._spare: Dict[int, List[bytearray]] = {}
        self._spare_bytes = 0
        self._spare_bytes_max = spare_bytes_max
        self._back: Deque[bytearray] = deque()  # no longer used: from any thread, also while memory is collected

    def of(self, held: NDArray[Any]) -> Buffer:
        """A read-only copy of some bytes."""
        if not held.nbytes:
            return b""
        while self._back:
            self._keep(self._back.popleft())
        size = -(-held.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        spare = self._spare.get(size)
        if spare:
            block = spare.pop()
            self._spare_bytes -= size
        else:
            block = bytearray(size)
        copied = np.frombuffer(block, np.uint8, held.nbytes)  # arrays over it hold it, and not the block alone
        copied[:] = held
        call_when_gone(copied, self._back.append, block)
        return copied.data.toreadonly()

    def _keep(self, block: bytearray) -> None:
        size = len(block)
        if self._spare_bytes + size > self._spare_bytes_max:  # sizes that do not come any more
            self._spare.clear()
            self._spare_bytes = 0
        if size <= self._spare_bytes_max:
            self._spare.setdefault(size, []).append(block)
            self._spare_bytes += size


class AnswerRoom:
    """The part of a segment that a client keeps free for an answer: filled from its begin, each tensor at a multiple of
    ``ALIGN``."""

    __slots__ = ("_map", "_next", "_end")

    def __init__(self, mapped: NDArray[Any], begin: int, end: int) -> None:
        self._map = mapped
        self._next = begin
        self._end = end

    def put(self, value: NDArray[Any]) -> Optional[int]:
        """Copy an array there; its offset in the segment, ``None`` where no room is left."""
        offset = -(-self._next // ALIGN) * ALIGN
        end = offset + value.nbytes
        if end > self._end:
            return None
        np.ndarray(value.shape, value.dtype, self._map.data, offset)[...] = value
        self._next = end
        return offset


def check_room(room: Sequence[int], segment: Optional[SharedSegment]) -> None:
    """Raise :class:`Malformed` for room where the connection has none."""
    if segment is None:
        raise Malformed("room: this connection has no shared memory; claim some first (kind = memory)")
    if room[0] + room[1] > segment.bytes:
        raise Malformed(f"room: bytes {room[0]} to {room[0] + room[1]} of the shared memory, which has {segment.bytes}")


class _Offer(NamedTuple):
    """A segment that was passed to a process and is not claimed yet."""

    segment: SharedSegment
    pid: int
    uid: int
    until_ns: int


class Offers:
    """Passes segments of ``segment_bytes`` to clients that connect to the socket beside ``endpoint``, at most
    ``bytes_max`` together. One process gets at most half of what the others leave (and one at least), so that there is
    always some for another. A thread of its own accepts them; :meth:`claim` is for the thread of the bus.

    ``uids``: whose processes get one; this process's user alone, unless told otherwise.
    """

    def __init__(
        self, endpoint: str, segment_bytes: int, bytes_max: int, clock_ns: Callable[[], int], uids: Sequence[int] = ()
    ) -> None:
        self.path = split_endpoint(endpoint)[1] + SUFFIX
        self._segment_bytes = -(-segment_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._segments_max = bytes_max // self._segment_bytes
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._offers_max = OFFERS_MAX if files < 0 else min(OFFERS_MAX, files // FILES_SHARE)
        self._clock_ns = clock_ns
        self._uids = frozenset(uids or (os.getuid(),))
        self._offers: Dict[bytes, _Offer] = {}  # shared: the thread that pops a token has its segment
        self._open: Dict[int, Tuple[socket.socket, bytes, int]] = {}  # the thread's: file -> connection, token, until
        self._segments: weakref.WeakSet[SharedSegment] = weakref.WeakSet()
        self._wake_read, self._wake_write = os.pipe()
        self._listener = _listen(endpoint, self.path)
        self._inode = os.stat(self.path).st_ino
        self._thread = threading.Thread(target=self._run, name="edgeserve-memory", daemon=True)
        self._thread.start()

    def claim(self, token: bytes, owner: str) -> SharedSegment:
        """The segment that was passed with ``token``, to the process whose connection now shows it. Raises
        :class:`NotAllowed` for a token that was not given, was shown before, or was given to another, and
        :class:`Rejected` where this process may not have so much memory."""
        offer = self._offers.pop(token, None)
        if offer is None or process_owner(offer.uid, offer.pid) != owner:
            raise NotAllowed(
                "token: no shared memory was given to this process with it (or it is too old); connect to "
                f"{self.path} first"
            )
        try:
            offer.segment.open()
        except (OSError, ValueError, MemoryError) as error:
            raise Rejected(
                f"the server cannot map {self._segment_bytes} bytes of shared memory ({error}); send frames",
                "server_bytes",
            ) from None
        return offer.segment

    def close(self) -> None:
        """Pass no more; segments that clients have stay theirs. Idempotent."""
        if self._thread.is_alive():
            os.write(self._wake_write, b"\0")
            self._thread.join()
            os.close(self._wake_read)
            os.close(self._wake_write)
            remove_socket(self.path, self._inode)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        try:
            while True:
                for file, _ in poll.poll(LOOK_MS if self._open else None):
                    if file == self._wake_read:
                        return
                    if file == self._listener.fileno():
                        self._accept(poll)
                    else:
                        self._end(file, poll)  # the client closed: it has what it wants, or is gone
                now_ns = self._clock_ns()
                for file in [file for file, (_, _, until_ns) in self._open.items() if now_ns > until_ns]:
                    self._end(file, poll)
        finally:
            for file in list(self._open):
                self._end(file, poll)
            self._listener.close()

    def _accept(self, poll: Any) -> None:
        try:
            connection = self._listener.accept()[0]
        except OSError:  # it went before it was accepted, or there are no descriptors left: then it still waits
            readable_files((self._wake_read,), ACCEPT_PAUSE_NS)
            return
        try:
            offered = self._offer(connection)
        except OSError as error:
            log.warning("shared memory could not be given to a client, which sends frames instead: %s", error)
            offered = None
        if offered is None:
            connection.close()
            return
        self._open[connection.fileno()] = (connection, *offered)
        poll.register(connection, select.POLLIN)

    def _offer(self, connection: socket.socket) -> Optional[Tuple[bytes, int]]:
        """Pass a segment; its token, and until when it may be claimed. ``None`` where this client gets none."""
        pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid not in self._uids or len(self._open) >= self._offers_max:
            return None
        pids = [segment.pid for segment in self._segments]
        own = pids.count(pid)
        left = self._segments_max - (len(pids) - own)
        if left < 1 or own + 1 > max(1, left // 2):
            return None
        connection.setblocking(False)
        segment = SharedSegment(self._segment_bytes, pid)
        token = secrets.token_bytes(TOKEN_BYTES)
        until_ns = self._clock_ns() + OFFER_NS_MAX
        self._segments.add(segment)
        self._offers[token] = _Offer(segment, pid, uid, until_ns)
        try:
            connection.sendmsg(
                [OFFER.pack(token, segment.bytes)],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", segment.file))],
            )
        except OSError:
            self._offers.pop(token, None)
            raise
        return token, until_ns

    def _end(self, file: int, poll: Any) -> None:
        connection, token, _ = self._open.pop(file)
        poll.unregister(file)
        connection.close()
        self._offers.pop(token, None)  # not there where it was claimed


def offers_for(
    endpoints: Sequence[str], segment_bytes: int, bytes_max: int, clock_ns: Callable[[], int]
) -> Optional[Offers]:
    """The server of segments beside the first ``ipc`` endpoint; ``None`` where it is off or the system has none."""
    local = [endpoint for endpoint in endpoints if endpoint.startswith("ipc://")]
    if not segment_bytes or not local or not is_supported():
        return None
    try:
        return Offers(local[0], segment_bytes, bytes_max, clock_ns)
    except (OSError, ConfigError) as error:
        log.warning("there is no shared memory for large tensors, which travel as frames: %s", error)
        return None


def _listen(endpoint: str, path: str) -> socket.socket:
    if len(os.fsencode(path)) > IPC_PATH_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, "the path is too long", path)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode) and look_for_server(endpoint + SUFFIX, path):
            os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
