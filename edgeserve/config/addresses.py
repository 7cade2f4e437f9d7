"""Places that other programs connect to, as the configuration says them: ``HOST:PORT``."""

from __future__ import annotations

import ipaddress
from typing import Tuple

from edgeserve.errors import ConfigError


def host_and_port(where: str, place: str, example: str) -> Tuple[str, int]:
    """``127.0.0.1:8000`` or ``[::1]:8000`` as host and port. Raises :class:`ConfigError`, which names ``where`` it
    stands and shows an ``example``."""
    host, colon, port = place.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and host and port.isdecimal() and int(port) < 65536):
        raise ConfigError(f"{where} = {place!r}: expected HOST:PORT, such as {example}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address, or ``localhost``. A name is not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # "*", an interface or a name: may be reachable from elsewhere
        return False
