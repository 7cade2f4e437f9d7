"""A front that other machines of the network find by its name (mDNS)."""

from __future__ import annotations

import logging
import socket
from contextlib import asynccontextmanager
from typing import AsyncIterator

from edgeserve.errors import ConfigError

log = logging.getLogger("edgeserve")

SERVICE = "_wyoming._tcp.local."


@asynccontextmanager
async def announced(where: str, name: str, host: str, port: int) -> AsyncIterator[None]:
    """While this lasts, Home Assistant finds the front (mDNS) by a name, which stands ``where``. Without a name nothing
    is announced. Raises :class:`ConfigError`."""
    if not name:
        yield
        return
    from zeroconf import BadTypeInNameException, InterfaceChoice
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

    anywhere = host in ("0.0.0.0", "::")
    try:
        address = _own_address() if anywhere else socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(f"{where} = {name!r}: {host} has no IPv4 address to announce ({error.strerror})") from None
    try:
        service = AsyncServiceInfo(
            SERVICE, f"{name}.{SERVICE}", addresses=[socket.inet_aton(address)], port=port, server=f"{name}.local."
        )
    except BadTypeInNameException as error:
        raise ConfigError(f"{where} = {name!r}: mDNS has no such name ({error})") from None
    zeroconf = AsyncZeroconf(interfaces=InterfaceChoice.Default if anywhere else [address])
    try:
        await zeroconf.async_register_service(service, allow_name_change=True)
        if service.name != f"{name}.{SERVICE}":
            log.warning("%s = %r is taken on this network: announced as %s", where, name, service.name)
        yield
        await zeroconf.async_unregister_service(service)
    finally:
        await zeroconf.async_close()


def _own_address() -> str:
    """The address under which other machines of the network see this one: that of the way to mDNS's group."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect(("224.0.0.251", 5353))  # sends nothing
        return str(way.getsockname()[0])
