"""What bounds a bus, and which keys its clients need. Knows no socket."""

from __future__ import annotations

from typing import NamedTuple, Tuple

from edgeserve.ipc.connections import CLIENTS_MAX

BYTES_MAX = 2**62
"""The bound on bytes where none was given."""


class BusBounds(NamedTuple):
    """The bounds of one bus. Bytes are of the messages of requests in flight, but ``message_bytes_max`` of one message,
    both ways, ``unread_bytes_max`` of the answers that one client has not read, and ``shared_memory_bytes`` of what a
    client on this host may share for its large tensors (all together ``pending_bytes_max``)."""

    message_bytes_max: int
    client_silence_ns: int  # how long a client with requests in flight may say nothing
    clients_max: int = CLIENTS_MAX  # clients remembered at a time
    pending_bytes_max: int = BYTES_MAX  # of all
    client_bytes_max: int = BYTES_MAX  # of one connection
    unread_bytes_max: int = BYTES_MAX
    shared_memory_bytes: int = 0


class BusKeys(NamedTuple):
    """The keys of one bus. With ``secret_key_file`` every TCP endpoint is encrypted and clients need the server's
    public key; with ``client_keys`` (a folder) only those whose keys lie there are let in, and ``control`` are the
    names of the clients that may control the server."""

    secret_key_file: str = ""
    client_keys: str = ""
    control: Tuple[str, ...] = ()


NO_KEYS = BusKeys()
