"""The credential of a connection, its rights, and the client keys that a server lets in.

A credential is vouched for by the transport, never by a message: the user id of an ``ipc`` peer as the
system tells (``SO_PEERCRED``, by way of libzmq), or the client's key on TCP with CURVE. Streams, and the stories of
requests, belong to it; where a connection has none they belong to the connection.
"""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

import zmq
import zmq.auth

from edgeserve.errors import ConfigError
from edgeserve.ipc.endpoints import read_certificate
from edgeserve.ipc.other_end import address_owner
from edgeserve.owners import process_owner
from edgeserve.units import NS_PER_S

KEY_SUFFIX = ".key"
"""The ending of files of public keys, as pyzmq writes them."""

LOOK_NS = NS_PER_S
"""The greatest age of the list of allowed keys when a client connects."""

KEYS_MAX = 4096
"""Files that are read of a folder of keys."""

ZAP_DOMAIN = "edgeserve"

_PEER = re.compile(r"[^:]*:(\d+):\d+:(\d+)\Z")
"""libzmq's address of an ipc peer: name, user id, group id, process id."""


class Credential(NamedTuple):
    """``owner`` is the owner of streams and stories: one connection, or all connections with one key.
    ``may_control``: whether it may change the server for all clients. ``trusted``: whether the class and
    value that it asks with count beside those of other owners, which takes a key: every program of the server's user
    may control it."""

    owner: str
    may_control: bool
    trusted: bool = False


NO_OWNER = Credential("", False)
"""The credential of a connection that is refused before its first message is read."""


class AllowedKeys:
    """The public keys of a folder, ``NAME.key`` each; the folder is read again when it changes. ``None`` for no folder:
    every client that has the server's public key is let in, and none of them has a name.

    Asked by libzmq's authentication thread and by the loop's. Nothing is shared but one table, replaced as a whole.
    """

    def __init__(self, folder: str, clock_ns: Callable[[], int]) -> None:
        self._folder = folder
        self._clock_ns = clock_ns
        self._look_ns = clock_ns()
        self._seen: Tuple[Tuple[str, int, int], ...] = ()
        self._names: Dict[str, str] = {}
        self.names()
        if not os.path.isdir(folder):
            raise ConfigError(
                f"[server] curve_client_keys = {folder!r} is no folder; make a key for each client with: "
                f"edgeserve init --keys NAME --out {folder}"
            )

    def names(self) -> Dict[str, str]:
        """Public key -> name of its file, as the folder is now."""
        now_ns = self._clock_ns()
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            seen = self._files()
            if seen != self._seen:
                self._names = self._read([name for name, _, _ in seen])
                self._seen = seen
        return self._names

    def callback(self, domain: str, key: bytes) -> bool:
        """True if a client with this public key (40 characters, Z85) is let in: what pyzmq's authenticator asks."""
        return key.decode("ascii", "replace") in self.names()

    def _files(self) -> Tuple[Tuple[str, int, int], ...]:
        found: List[Tuple[str, int, int]] = []
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.endswith(KEY_SUFFIX) and entry.is_file() and len(found) < KEYS_MAX:
                        about = entry.stat()
                        found.append((entry.name, about.st_mtime_ns, about.st_size))
        except OSError:  # the folder is gone: no client is let in
            return ()
        return tuple(sorted(found))

    def _read(self, files: Sequence[str]) -> Dict[str, str]:
        names: Dict[str, str] = {}
        for file in files:
            try:
                key = read_certificate(os.path.join(self._folder, file))[0]
            except ConfigError:
                continue  # half copied, or something else: it lets no client in
            names[key.decode("ascii")] = file[: -len(KEY_SUFFIX)]
        return names


class Credentials:
    """Tells the credential of each connection. ``control_keys`` are names of client keys that may control the server;
    ``allowed`` the folder's keys, ``None`` without one. Belongs to the loop's thread."""

    def __init__(
        self, allowed: Optional[AllowedKeys] = None, control_keys: Sequence[str] = (), owner_uid: int | None = None
    ) -> None:
        self._allowed = allowed
        self._names = {} if allowed is None else allowed.names()
        self._control_keys: FrozenSet[str] = frozenset(control_keys)
        self._owners = {os.geteuid() if owner_uid is None else owner_uid, 0}
        if self._control_keys and allowed is None:
            raise ConfigError(
                f"[server] control_keys = {list(control_keys)!r} names client keys, and there is no "
                "folder of them; set [server] curve_client_keys, or leave control_keys out"
            )

    def of(self, frame: Any, connection: str, in_process: bool) -> Credential:
        """The credential of the connection that a message's ``frame`` came by. ``connection`` names that connection
        alone; ``in_process``: it is no connection, but a socket of this program."""
        if in_process:
            return Credential(connection, True, True)
        uid = uid_of(_property(frame, "Peer-Address"))
        if uid is not None:
            return Credential(connection, uid in self._owners)
        if self._allowed is None:
            return Credential(connection, False)  # a User-Id that no authenticator gave is the client's own word
        key = _property(frame, "User-Id")
        name = self._allowed.names().get(key)
        has_control = name is not None and name in self._control_keys
        return Credential(f"key {key}" if key else connection, has_control, has_control)

    def key_of(self, frame: Any) -> Tuple[str, str]:
        """The public key of a connection and its owner, ``key:NAME``; ``""`` for both where clients need no keys."""
        if self._allowed is None:
            return "", ""
        key = _property(frame, "User-Id")
        name = self._allowed.names().get(key)
        return key, f"key:{name}" if name else ""

    def is_from(self, frame: Any, owner: str) -> bool:
        """True if a message can have come by a connection of this owner: a process of this host, where it is one."""
        address = _property(frame, "Peer-Address")
        return _PEER.match(address) is None or owner == peer_owner(address)

    def owner_of(self, frame: Any) -> str:
        """The owner of the connection by which a message came, also where that is over."""
        return peer_owner(_property(frame, "Peer-Address"))

    def is_allowed(self, key: str) -> bool:
        """True if a client with this key is let in, as the folder was when it was read last."""
        return self._allowed is None or key in self._allowed.names()

    def have_changed(self) -> bool:
        """True if the allowed keys are others than when this was asked last; reads the folder again, if that is due."""
        if self._allowed is None:
            return False
        before, self._names = self._names, self._allowed.names()
        return before is not self._names


def uid_of(address: str) -> Optional[int]:
    """The user id in libzmq's address of a peer, ``None`` for one that came by TCP."""
    match = _PEER.match(address)
    return int(match.group(1)) if match else None


def peer_owner(address: str) -> str:
    """The owner of a connection, from libzmq's address of a peer."""
    match = _PEER.match(address)
    return process_owner(int(match.group(1)), int(match.group(2))) if match else address_owner(address)


def _property(frame: Any, name: str) -> str:
    try:
        return str(frame.get(name))
    except zmq.ZMQError:  # this connection has no such property
        return ""


class Authenticator:
    """Lets those clients connect by TCP whose keys are allowed (ZAP, RFC 27): a thread of pyzmq's that libzmq asks at
    each handshake. One per context."""

    def __init__(self, context: zmq.Context[Any], allowed: AllowedKeys) -> None:
        from zmq.auth.thread import ThreadAuthenticator  # brings asyncio, which a bus without keys spares

        self._thread = ThreadAuthenticator(context)
        self._thread.start()
        self._thread.configure_curve_callback(domain=ZAP_DOMAIN, credentials_provider=allowed)

    def stop(self) -> None:
        """End the thread; sockets that use it let no client in from now on."""
        self._thread.stop()


def refuse_old_greetings(socket: zmq.Socket[Any]) -> None:
    """Have the binds of ``socket`` that follow end a connection that greets with a version before ZMTP 3.0, as libzmq
    does where a domain is set: messages of such a connection say nothing of who sent them."""
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN.encode())


def require_keys(socket: zmq.Socket[Any]) -> None:
    """Let the later binds of ``socket`` admit only clients whose keys the authenticator knows; without one, none."""
    socket.setsockopt(getattr(zmq, "ZAP_ENFORCE_DOMAIN", 93), 1)
