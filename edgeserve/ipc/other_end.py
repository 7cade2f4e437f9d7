"""The owner of a connection: by the system's knowledge of the other end, never by a message.

A Unix socket tells the user and the process. A TCP connection within this host, over any of its addresses, belongs to
the user of the other end's own socket, which the system is asked for by its addresses and ports (``sock_diag``: what
``/proc/net/tcp`` shows, for one row, in time that does not grow with the table). Any other connection tells its
address alone.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from functools import lru_cache
from typing import Any, FrozenSet, NamedTuple, Optional, Tuple

from edgeserve.owners import process_owner

UNKNOWN = "unknown"
"""The owner of a connection that closed before it was looked at."""

LOOPBACK = "address:127.0.0.1"
"""The owner of a connection over any address of loopback whose other end is not known: it closed, or the system does
not say. The behaviour of such a connection is charged to no other owner."""

SOME_PROCESS = 0
"""Stands for the process of a TCP connection: the system tells its user alone."""

IPV6_PREFIX = 64
"""Bits of an IPv6 address that count: one machine may use every address behind them."""

PROCESSES_MAX = 4096
FILES_MAX = 32768
"""Looked at, in all, to find the process of a socket: about 50 ms."""

_PEER = struct.Struct("3i")
_SOCK_DIAG = 4  # linux/netlink.h: NETLINK_SOCK_DIAG
_BY_FAMILY, _REQUEST = 20, 1  # linux/sock_diag.h: SOCK_DIAG_BY_FAMILY; linux/netlink.h: NLM_F_REQUEST
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ASKED = struct.Struct("=BBBxI")  # struct inet_diag_req_v2 up to its socket id
_COOKIE = struct.pack("=III", 0, 2**32 - 1, 2**32 - 1)  # any interface, any cookie
_STATE = struct.Struct("=xB")  # of struct inet_diag_msg
_TOLD = struct.Struct("=II")  # its user and inode, the last two
_TOLD_AT = _HEADER.size + 4 + 48 + 12


def is_told(owner: str) -> bool:
    """True if the system identified the owner, and the connection did not leave it open."""
    return owner not in (LOOPBACK, UNKNOWN)


class TcpEnd(NamedTuple):
    """The owner and the inode of the socket at a connection's other end."""

    uid: int
    inode: int


def owner_of(one: socket.socket) -> str:
    """The owner of a connection (``edgeserve.owners``): ``uid:N/pid:P``, ``address:IP``, :data:`LOOPBACK` or
    :data:`UNKNOWN`."""
    try:
        if one.family == socket.AF_UNIX:
            pid, uid, _ = _PEER.unpack(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            return process_owner(uid, pid)
        return owner_of_tcp(one.getpeername(), one.getsockname())
    except OSError:
        return UNKNOWN


def owner_of_tcp(peer: Tuple[Any, ...], own: Tuple[Any, ...]) -> str:
    """The owner of a TCP connection, by the (address, port, ...) of both ends."""
    end = tcp_end(peer, own)
    return address_owner(str(peer[0])) if end is None else process_owner(end.uid, SOME_PROCESS)


def end_of(one: socket.socket) -> Optional[TcpEnd]:
    """:func:`tcp_end` of a connection."""
    try:
        return tcp_end(one.getpeername(), one.getsockname())
    except OSError:
        return None


@lru_cache(maxsize=1024)
def address_owner(address: str) -> str:
    """The owner of all connections from an address; ``address:unknown`` for a text that is no address."""
    found = _address(address)
    if found is None:
        return "address:unknown"
    if found.is_loopback:
        return LOOPBACK
    if isinstance(found, ipaddress.IPv6Address):
        return f"address:{ipaddress.ip_network((found, IPV6_PREFIX), strict=False).network_address}"
    return f"address:{found}"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0].strip("[]"))
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped


def tcp_end(peer: Tuple[Any, ...], own: Tuple[Any, ...]) -> Optional[TcpEnd]:
    """The other end's socket; ``None`` where it is not of this host (or of another network namespace), has closed, or
    the system does not say. A socket that no process holds any more would be reported as root's."""
    there, here = _address(str(peer[0])), _address(str(own[0]))
    if there is None or here is None or there.version != here.version:
        return None
    family = socket.AF_INET if there.version == 4 else socket.AF_INET6
    asked = (
        _ASKED.pack(family, socket.IPPROTO_TCP, 0, 2**32 - 1)
        + struct.pack("!HH", int(peer[1]), int(own[1]))
        + there.packed.ljust(16, b"\0")
        + here.packed.ljust(16, b"\0")
        + _COOKIE
    )
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as system:
            system.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 0, 0) + asked)
            told = system.recv(4096, socket.MSG_DONTWAIT)
    except OSError:
        return None
    if len(told) < _TOLD_AT + _TOLD.size or _HEADER.unpack_from(told)[1] != _BY_FAMILY:
        return None
    uid, inode = _TOLD.unpack_from(told, _TOLD_AT)
    return TcpEnd(uid, inode) if inode else None


def process_of(end: TcpEnd) -> Optional[int]:
    """A process that holds the socket; ``None`` where none is found among the processes that may be read."""
    left = FILES_MAX
    for name in _numbers("/proc")[:PROCESSES_MAX]:
        try:
            if os.stat(f"/proc/{name}").st_uid != end.uid:
                continue
        except OSError:
            continue
        inodes, read = _sockets_of(name, left)
        left -= read
        if end.inode in inodes:
            return int(name)
        if left <= 0:
            break
    return None


def sockets_of(pid: int) -> FrozenSet[int]:
    """The inodes of the sockets that a process holds, as far as they may be looked at; of none for ``pid`` 0."""
    return _sockets_of(str(pid), FILES_MAX)[0]


def _sockets_of(pid: str, count_max: int) -> Tuple[FrozenSet[int], int]:
    found = []
    names = _numbers(f"/proc/{pid}/fd")[: max(0, count_max)]
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            found.append(int(target[len("socket:[") : -1]))
    return frozenset(found), len(names)


def _numbers(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []
