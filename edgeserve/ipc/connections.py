"""The connections of the server's socket: how many there may be, whose they are, and how one is ended.

libzmq accepts without a bound and aborts the process when the system gives it no more file descriptors. So the soft
limit is raised to the hard one (:func:`raise_file_limit`), and connections stay below it: beyond the bound a new one is
ended, unless its owner has fewer than another; then one of that other's is. Knows no message.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import socket
import struct
from typing import Callable, Dict, FrozenSet, List, Optional, TypeVar

from edgeserve.errors import ConfigError
from edgeserve.ipc.other_end import UNKNOWN, TcpEnd, end_of, is_told, process_of
from edgeserve.ipc.other_end import owner_of as told_owner
from edgeserve.ipc.segments import SharedSegment
from edgeserve.owners import pid_of, process_owner, user_of, who_makes_room

log = logging.getLogger("edgeserve")

_Told = TypeVar("_Told")

CLIENTS_MAX = 256
"""Clients of the bus that a server remembers at a time; twice as many connections may be open."""

FILES_KEPT = 256
"""Descriptors that connections leave to everything else: models, devices, recordings, libzmq's own."""

FILES_OPEN = 16
"""Descriptors that a server has at least before its first connection."""

FILES_NEEDED = FILES_KEPT + FILES_OPEN + CLIENTS_MAX
"""Open files that a server needs: with fewer, a burst of connections may end its process."""

FILES_MAX = 1 << 20
"""The soft limit is not raised beyond this, where the hard one is unlimited: some libraries close every number."""

STUCK_MAX = 4
"""Connections of one offender that its clients closed and libzmq has not: with so many it may not connect again."""

_CLOSED = select.POLLHUP | select.POLLERR | select.POLLRDHUP  # by the other side
_RECEIVED = struct.Struct("=128xQ")  # tcpi_bytes_received of the system's struct tcp_info


class Connection:
    """One accepted connection. ``same_host``: not TCP. ``owner``: whose it is (``ipc/other_end.py``). ``place``: its
    other end, which no other connection has meanwhile. ``memory``: what it shares with the server, once it has claimed
    some. ``met_ns``: when it last finished a message without being a client."""

    __slots__ = ("file", "same_host", "owner", "place", "number", "memory", "met_ns")

    def __init__(self, file: int, same_host: bool, number: int) -> None:
        self.file = file
        self.same_host = same_host
        self.owner = owner_of(file, same_host)
        self.place = "" if self.owner == UNKNOWN else self.owner if same_host else _asked(file, False, place_of)
        self.number = number
        self.memory: Optional[SharedSegment] = None
        self.met_ns = 0

    def is_among(self, sockets: FrozenSet[int]) -> bool:
        """True if its other end is one of a process's sockets, over TCP."""
        end = self.end if sockets else None
        return end is not None and end.inode in sockets

    @property
    def end(self) -> Optional[TcpEnd]:
        """The other end's socket, of TCP within this host."""
        return None if self.same_host else _asked(self.file, False, end_of)


class Connections:
    """Open connections by their file, as libzmq's monitor tells. ``count_max`` bounds them; ``is_idle(file)`` says
    whether a connection has nothing in flight. ``accepted`` counts all there ever were. ``stuck`` are the ones that
    libzmq does not close. ``waiting(0)`` tells the connections at which bytes wait that libzmq has not read yet."""

    def __init__(self, count_max: int, is_idle: Callable[[int], bool]) -> None:
        self.count_max = count_max
        self.by_file: Dict[int, Connection] = {}
        self.accepted = 0
        self.refused = 0
        self.stuck: Dict[int, Connection] = {}
        self._waiting = select.poll()
        self.waiting = self._waiting.poll
        self._hung_up: FrozenSet[int] = frozenset()
        self._owners: Dict[str, int] = {}
        self._users: Dict[str, int] = {}
        self._is_idle = is_idle

    def opened(self, file: int, same_host: bool) -> Optional[int]:
        """A connection was accepted; the file of the one that was ended for the bound, if one was."""
        self.accepted += 1
        self.closed(file)
        is_full = len(self.by_file) + len(self.stuck) >= self.count_max
        if is_full and self._refuse(file, same_host):
            return file
        connection = self.by_file[file] = Connection(file, same_host, self.accepted)
        owner = connection.owner
        self._waiting.register(file, select.POLLIN)
        _count(self._owners, owner, 1)
        _count(self._users, user_of(owner), 1)
        if not is_full:
            return None
        ended = self._to_end(connection)
        self._count_refused(ended.owner)
        hang_up(ended)
        return ended.file

    def _refuse(self, file: int, same_host: bool) -> bool:
        """End a new connection at once, unless its user or its owner has fewer than another has. By as few calls as
        there may be: libzmq accepts more meanwhile, and aborts where it runs out of files."""
        one = borrowed(file, same_host)
        if one is None:
            return False
        try:
            owner = told_owner(one)
            if owner == UNKNOWN or _is_below(self._users, user_of(owner)) or _is_below(self._owners, owner):
                return False
            one.shutdown(socket.SHUT_RDWR)
        except OSError:  # it closed meanwhile
            return False
        finally:
            one.detach()
        self._count_refused(owner)
        return True

    def processes_of(self, user: str) -> int:
        """The number of a user's processes that have connections."""
        return sum([user_of(owner) == user for owner in self._owners])

    def _count_refused(self, owner: str) -> None:
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # at 1, 2, 4, 8, ...: an attack must not fill the log
            log.warning(
                "%d connections are open, the most there may be: one of %s is ended (%d so far); below "
                "%d the limit of open files (ulimit -n) bounds them",
                self.count_max,
                owner,
                self.refused,
                2 * CLIENTS_MAX,
            )

    def closed(self, file: int) -> None:
        """Forget a connection that has closed."""
        self.stuck.pop(file, None)
        connection = self.by_file.pop(file, None)
        if connection is not None:
            self._waiting.unregister(file)
            _count(self._owners, connection.owner, -1)
            _count(self._users, user_of(connection.owner), -1)

    def look_for_stuck(self) -> List[str]:
        """Call it about once a second. libzmq may keep a connection open that its client has closed, until the socket
        closes (docs/develop/libzmq.md): connections found so at two looks are counted apart. Returns the offenders that
        have too many of them."""
        poll = select.poll()
        for file in self.by_file:
            poll.register(file, _CLOSED)
        hung_up = frozenset([file for file, _ in poll.poll(0)])
        found = hung_up & self._hung_up
        self._hung_up = hung_up
        if not found:
            return []
        for file in sorted(found):
            connection = self.by_file[file]
            self.closed(file)
            self.stuck[file] = connection
        owners = [offender(connection.owner) for connection in self.stuck.values()]
        return [owner for owner in dict.fromkeys(owners) if owners.count(owner) >= STUCK_MAX]

    def _to_end(self, new: Connection) -> Connection:
        """The new one, or the newest of the owner who makes room for it, those with nothing in flight first."""
        before = {**self._owners, new.owner: self._owners[new.owner] - 1}
        greediest = who_makes_room(before, new.owner)
        if greediest is None:
            return new
        return max(
            [connection for connection in self.by_file.values() if connection.owner == greediest],
            key=lambda connection: (self._is_idle(connection.file), connection.number),
        )


def offender(owner: str) -> str:
    """The owner to keep out for the behaviour of a connection of ``owner``: a process, of the server's own user or
    root; any other user as a whole, since it could come back as another process."""
    user = user_of(owner)
    return owner if user in (f"uid:{os.geteuid()}", "uid:0") else user


def culprit(whose: str, connection: Optional[Connection]) -> str:
    """The owner to keep out for the messages of a connection of an :func:`offender`: over TCP its process is looked
    for. ``""`` where no owner can be identified."""
    if whose == user_of(whose) or pid_of(whose):
        return whose if is_told(whose) else ""
    end = None if connection is None else connection.end
    pid = None if end is None else process_of(end)
    return "" if end is None or pid is None else process_owner(end.uid, pid)


def _is_below(counts: Dict[str, int], name: str) -> bool:
    return counts.get(name, 0) + 1 < max(counts.values(), default=0)


def _count(counts: Dict[str, int], name: str, more: int) -> None:
    counts[name] = counts.get(name, 0) + more
    if not counts[name]:
        del counts[name]


def borrowed(file: int, same_host: bool) -> Optional[socket.socket]:
    """A connection of libzmq's as a socket, which has to be detached again; ``None`` where it closed meanwhile."""
    try:
        if same_host:  # said, they need not be asked of the system
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=file)
        return socket.socket(fileno=file)
    except OSError:
        return None


def owner_of(file: int, same_host: bool) -> str:
    """The owner of a connection."""
    return _asked(file, same_host, told_owner) or UNKNOWN


def place_of(one: socket.socket) -> str:
    """The other end of a connection; ``""`` where it closed meanwhile."""
    try:
        return told_owner(one) if one.family == socket.AF_UNIX else str(one.getpeername())
    except OSError:
        return ""


def _asked(file: int, same_host: bool, question: Callable[[socket.socket], _Told]) -> Optional[_Told]:
    """The answer of a connection's socket to ``question``; ``None`` where it closed meanwhile."""
    one = borrowed(file, same_host)
    if one is None:
        return None
    try:
        return question(one)
    finally:
        one.detach()


def received_bytes(connection: Connection) -> int:
    """The bytes that came by a connection so far; -1 where the system does not tell, as of a Unix socket."""
    told = None if connection.same_host else _asked(connection.file, False, _received)
    return -1 if told is None else told


def _received(one: socket.socket) -> int:
    try:
        told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
    except (OSError, AttributeError):
        return -1
    return int(_RECEIVED.unpack(told)[0]) if len(told) == _RECEIVED.size else -1


def hang_up(connection: Connection) -> None:
    """End a connection. libzmq notices, closes it and frees what it held. Nothing happens where the file is another's
    by now."""

    def end(one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if place_of(one) == connection.place:
                one.shutdown(socket.SHUT_RDWR)

    if connection.place:
        _asked(connection.file, connection.same_host, end)


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:  # a sandbox may forbid it
            log.warning("the limit of open files stays at %d: %s", soft, error)
    return FILES_MAX if soft == resource.RLIM_INFINITY else soft


def check_files(files: int) -> None:
    """Raise :class:`ConfigError` where the limit of open ``files`` is below :data:`FILES_NEEDED`."""
    if files < FILES_NEEDED:
        raise ConfigError(
            f"a server needs {FILES_NEEDED} open files, and the hard limit is {files}: raise it (ulimit -Hn "
            f"{FILES_NEEDED}, LimitNOFILE={FILES_NEEDED} of the unit, docker run --ulimit nofile={FILES_NEEDED})"
        )


def connections_below(files: int, in_use: int = 0) -> int:
    """The number of connections that fit below a limit of open files, of which ``in_use`` are open already."""
    return max(8, files - max(in_use, FILES_OPEN) - min(FILES_KEPT, files // 4))


def connections_max(clients_max: int) -> int:
    """The number of connections that the limit of open files allows: twice the clients, so that old ones may still
    close while new ones come, and less where files are few."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = FILES_MAX if files == resource.RLIM_INFINITY else files
    in_use = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    room = connections_below(files, in_use)
    if room < clients_max:
        log.warning(
            "only %d connections fit below the limit of %d open files, for %d clients; raise the limit (ulimit -n, "
            "LimitNOFILE=)",
            room,
            files,
            clients_max,
        )
    return min(2 * clients_max, room)
