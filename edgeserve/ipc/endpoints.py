"""The endpoints of the bus: the default path, the conditions for a safe bind, and the keys of TCP.

Looks at files and addresses before a socket is made; binding is ``bus``'s, connecting is ``link``'s.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import itertools
import os
import re
import socket
import stat
import tempfile
from typing import Any, Optional, Sequence, Tuple

import zmq
import zmq.auth

from edgeserve.config.addresses import is_loopback
from edgeserve.errors import ConfigError

KEEPALIVE_S = 5
KEEPALIVE_PROBES = 3
"""TCP: the system asks a peer this often where nothing is said, and gives it up when so many in a row are not answered
(or what was sent is not acknowledged for as long)."""

IPC_PATH_BYTES_MAX = 107  # Linux: sun_path has 108 bytes with its final zero
_Z85_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}\Z")


def default_endpoint() -> str:
    """The bus of this user: ``ipc://$XDG_RUNTIME_DIR/edgeserve/bus``, or below the directory for temporary files
    where there is no such variable. Names it only; the server makes the directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime):
        return f"ipc://{runtime}/edgeserve/bus"
    return f"ipc://{tempfile.gettempdir()}/edgeserve-{_user()}/bus"


def _user() -> str:
    try:
        return re.sub(r"[^A-Za-z0-9_.-]", "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def prepare_endpoint(endpoint: str, has_keys: bool) -> None:
    """Make ready to bind, or raise :class:`ConfigError` with the reason and the mend: the directory of an ``ipc``
    endpoint exists and is this user's alone, no other server lives there, a dead one's file is gone; ``tcp`` beyond
    loopback has keys."""
    transport, address = split_endpoint(endpoint)
    if transport == "ipc":
        _prepare_ipc(endpoint, address)
    elif transport == "tcp" and not has_keys and not is_loopback(address.rpartition(":")[0].strip("[]")):
        raise ConfigError(
            f"[server] endpoint = {endpoint!r} can be reached from other machines, which needs keys: set "
            "[server] curve_secret_key_file, or bind to tcp://127.0.0.1:PORT"
        )


def split_endpoint(endpoint: str) -> Tuple[str, str]:
    """``"ipc:///run/x"`` to ``("ipc", "/run/x")``; :class:`ConfigError` for what the bus does not speak."""
    transport, mark, address = endpoint.partition("://")
    if not mark or transport not in ("ipc", "tcp", "inproc") or not address:
        raise ConfigError(f"endpoint {endpoint!r}: expected ipc://PATH, tcp://ADDRESS:PORT or inproc://NAME")
    if transport == "ipc":
        if address.startswith("@"):
            raise ConfigError(f"endpoint {endpoint!r}: abstract sockets have no permissions; give a path")
        if len(os.fsencode(address)) > IPC_PATH_BYTES_MAX:
            raise ConfigError(
                f"endpoint {endpoint!r}: the path has {len(os.fsencode(address))} bytes, the system "
                f"takes {IPC_PATH_BYTES_MAX}; give a shorter one"
            )
    elif transport == "tcp" and not re.search(r":([0-9]{1,5}|\*)\Z", address):
        raise ConfigError(f"endpoint {endpoint!r}: expected a port, such as tcp://127.0.0.1:5555 (or :* for any free)")
    return transport, address


def check_server_place(endpoint: str) -> None:
    """Raise :class:`ConfigError` where a client must not connect: an endpoint of wrong form, or this user's default one
    where another user has made its directory or its socket. A directory that is missing is made, so that no other user
    makes it meanwhile."""
    path = split_endpoint(endpoint)[1]
    if endpoint != default_endpoint():
        return
    directory = os.path.dirname(path)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = [(directory, os.stat(directory)), (directory, os.lstat(directory))]  # a link counts, and what it names
        with contextlib.suppress(FileNotFoundError):
            found.append((path, os.lstat(path)))
    except OSError as error:
        raise ConfigError(f"endpoint {endpoint!r}: {directory} cannot be used ({error.strerror})") from None
    for place, status in found:
        if status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"endpoint {endpoint!r}: {place} belongs to user id {status.st_uid}, expected {os.geteuid()} or root: "
                "another user may pose as the server. Remove it, or give the endpoint of a server that you trust"
            )
    if found[0][1].st_mode & 0o022:
        raise ConfigError(
            f"endpoint {endpoint!r}: other users may write to {directory}, and pose as the server; "
            f"run: chmod 700 {directory}"
        )


def _prepare_ipc(endpoint: str, path: str) -> None:
    directory = os.path.dirname(path) or "."
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        status = os.stat(directory)
    except OSError as error:
        raise ConfigError(
            f"endpoint {endpoint!r}: directory {directory} cannot be made ({error.strerror}); give another path"
        ) from None
    mode = stat.S_IMODE(status.st_mode)
    own = endpoint == default_endpoint()
    if status.st_uid != os.getuid() and (own or status.st_uid != 0):
        raise ConfigError(
            f"endpoint {endpoint!r}: directory {directory} belongs to user id {status.st_uid}, not to "
            f"{os.getuid()}; give another path"
        )
    if mode & 0o077 if own else mode & 0o022 and not mode & stat.S_ISVTX:
        raise ConfigError(
            f"endpoint {endpoint!r}: directory {directory} has mode {mode:04o}, so others could reach or "
            f"replace the bus; run: chmod 700 {directory}"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"endpoint {endpoint!r}: this user may not write into {directory}; give another path")
    _clear_stale(endpoint, path)


def _clear_stale(endpoint: str, path: str) -> None:
    """libzmq would replace a living server's file without a word; a dead server's is removed."""
    if look_for_server(endpoint, path):
        os.unlink(path)


def look_for_server(endpoint: str, path: str) -> bool:
    """True if ``path`` is what a server that is gone left behind. Raises :class:`ConfigError` when one lives there, or
    something else does."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"endpoint {endpoint!r}: {path} exists and is no socket; remove it or give another path")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.setblocking(False)
        code = probe.connect_ex(path)
    finally:
        probe.close()
    if code not in (errno.ECONNREFUSED, errno.ENOENT):
        raise ConfigError(
            f"endpoint {endpoint!r}: another server listens there already; stop it, or give another [server] endpoint"
        )
    return code == errno.ECONNREFUSED


def check_endpoint(endpoint: str, key_file: str = "") -> None:
    """Raise :class:`ConfigError` for an endpoint (``""``: this user's own) that the bus could not bind, before anything
    else is begun."""
    place = endpoint or default_endpoint()
    prepare_endpoint(place, bool(key_file))
    if place.startswith("tcp://") and key_file:
        read_server_keys(key_file)
    _check_port(place)


def _check_port(endpoint: str) -> None:
    """Try the port with an ordinary socket, before the bus binds it. Names of interfaces are left to the bus."""
    transport, _, address = endpoint.partition("://")
    host, _, port = address.rpartition(":")
    if transport != "tcp" or not port.isdecimal():
        return
    if not 0 < int(port) < 65536:
        raise ConfigError(f"[server] endpoint = {endpoint!r}: expected a port from 1 to 65535")
    try:
        places = socket.getaddrinfo("0.0.0.0" if host == "*" else host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return
    family, kind, protocol, _, place = places[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            why = {
                errno.EADDRINUSE: "another program listens there already",
                errno.EADDRNOTAVAIL: "it is no address of this machine",
                errno.EACCES: "this user may not use that port",
            }.get(error.errno or 0, os.strerror(error.errno or 0))
            raise ConfigError(f"[server] endpoint = {endpoint!r}: {why}; stop it, or give another endpoint") from None


def socket_mode(path: str) -> int:
    """The mode of the bus's socket file: its user may open it; the group too where the directory is open to the group
    and to no other user (mode 0750)."""
    mode = stat.S_IMODE(os.stat(os.path.dirname(path) or ".").st_mode)
    return 0o660 if mode & 0o010 and not mode & 0o007 else 0o600


def why_nobody_answers(endpoint: str) -> str:
    """The reason why no connection came about, for the message: who connects to another user's ``ipc`` socket hears
    nothing."""
    transport, address = split_endpoint(endpoint)
    if transport == "ipc":
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
                one.settimeout(0)
                one.connect(address)
        except PermissionError:
            return (
                f"permission denied: user id {os.geteuid()} may not open its socket, which is for the user that "
                "runs the server; ask as that user, or over TCP with keys, or over HTTP"
            )
        except OSError:
            pass
    return "no server listens there"


def remove_socket(path: str, inode: int) -> None:
    """Remove a socket file that libzmq leaves behind, unless another server has put its own there."""
    try:
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
    except FileNotFoundError:
        pass  # another process cleaned up already


def remove_sockets(endpoints: Sequence[str]) -> None:
    """Remove the socket files of a server that is about to end without closing its socket."""
    for endpoint in endpoints:
        transport, address = split_endpoint(endpoint)
        if transport == "ipc":
            with contextlib.suppress(OSError):
                os.unlink(address)


def read_server_keys(path: str) -> Tuple[bytes, bytes]:
    """Public and secret key of the server from its file (``edgeserve init --keys server`` makes one)."""
    public, secret = read_certificate(path)
    if secret is None:
        raise ConfigError(f"{path}: holds no secret key; give the file that ends in .key_secret")
    return public, secret


def read_client_keys(path: str) -> Tuple[bytes, bytes]:
    """Public and secret key of a client from its file (``edgeserve init --keys NAME``); a pair made up on the spot
    without one, for servers that let every client in."""
    if not path:
        return zmq.curve_keypair()
    return read_server_keys(path)


def has_ipv6(endpoint: str) -> bool:
    """True if the endpoint names an IPv6 address, in brackets."""
    return endpoint.startswith("tcp://[")


def notice_gone_peers(zmq_socket: zmq.Socket[Any]) -> None:
    """Let the system notice, for later connections, a TCP peer that vanished (a cable, a power cut). ZMTP's own
    heartbeats are not used: with them a peer can make libzmq abort (docs/develop/libzmq.md)."""
    zmq_socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    zmq_socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S)
    zmq_socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S)
    zmq_socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES)
    zmq_socket.setsockopt(zmq.TCP_MAXRT, KEEPALIVE_S * (KEEPALIVE_PROBES + 1) * 1000)


def read_public_key(key: str) -> bytes:
    """A server's public key, given as its 40 characters or as the file that holds it."""
    if _Z85_KEY.match(key):
        return key.encode("ascii")
    return read_certificate(key)[0]


def read_certificate(path: str) -> Tuple[bytes, Optional[bytes]]:
    """Public and secret key (``None`` where the file has none) of a file of ``edgeserve init --keys`` or pyzmq."""
    from edgeserve.config.text_files import regular_file

    if not zmq.has("curve"):
        raise ConfigError("this libzmq was built without CURVE; install pyzmq from its wheel")
    try:
        with open(path, "rb", opener=regular_file):  # pyzmq would wait for a pipe
            return zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as a CURVE certificate ({error}); make one with: edgeserve init --keys server"
        ) from None


_monitor_numbers = itertools.count(1)
_POLLIN = int(zmq.POLLIN)  # a plain number: the operators of flag enums cost more than the calls they are passed to


def readable(zmq_socket: zmq.Socket[Any]) -> bool:
    """True if a message waits. Also what re-arms libzmq's edge-triggered file."""
    return bool(zmq.zmq_poll([(zmq_socket, _POLLIN)], 0))


def last_endpoint(zmq_socket: zmq.Socket[Any]) -> str:
    """The endpoint of the last ``bind``, with a wildcard port resolved."""
    endpoint = zmq_socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes), endpoint
    return endpoint.rstrip(b"\0").decode()


def watch_socket(zmq_socket: zmq.Socket[Any], context: zmq.Context[Any], events: int) -> zmq.Socket[Any]:
    """The monitor of a socket: a PAIR socket on which libzmq tells about connections."""
    address = f"inproc://edgeserve-monitor-{next(_monitor_numbers)}"
    zmq_socket.monitor(address, events)
    monitor: zmq.Socket[Any] = context.socket(zmq.PAIR)
    monitor.linger = 0
    monitor.setsockopt(zmq.RCVHWM, 0)  # at a bound libzmq's own thread would block; the owner drains it often
    monitor.connect(address)
    return monitor
