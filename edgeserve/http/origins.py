"""Who asks the front: the tokens that let clients in, and the name under which the server shares places and lane time
among them.

An origin is ``token:NAME`` where the client showed a token with a name, else ``address:IP``. Knows no transport.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from functools import lru_cache
from typing import Dict, Mapping, Optional

from edgeserve.config.text_files import read_text
from edgeserve.errors import ConfigError

TOKEN_CHARS_MIN = 16
TOKENS_MAX = 256
"""Of one file: every request is compared with each of them."""

IPV6_PREFIX = 64
"""Bits of an IPv6 address that count: one machine may use every address behind them."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


class Tokens:
    """The tokens of a front: token -> name, ``""`` for one without a name. Empty: everybody is let in."""

    def __init__(self, names: Optional[Mapping[str, str]] = None) -> None:
        self._names = [(b"Bearer " + token.encode(), name) for token, name in (names or {}).items()]

    def __len__(self) -> int:
        return len(self._names)

    def name_of(self, shown: str) -> Optional[str]:
        """The name of the token in an ``authorization`` header; ``None`` where that is none of these."""
        found: Optional[str] = None
        sent = shown.encode("latin-1", "replace")
        for expected, name in self._names:  # each of them, so that the time tells nothing
            if hmac.compare_digest(sent, expected):
                found = name
        return found


def read_tokens(path: str) -> Tokens:
    """The tokens in a file: one alone, or a line ``NAME TOKEN`` for each client. None without a file."""
    if not path:
        return Tokens()
    try:
        lines = [line.split() for line in read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"[http] token_file = {path!r} cannot be read: {error}") from None
    names: Dict[str, str] = {}
    for words in lines:
        name, token = words if len(words) == 2 else ("", words[0])
        if len(words) > 2 or len(token) < TOKEN_CHARS_MIN or not (token.isascii() and token.isprintable()):
            raise ConfigError(
                f"[http] token_file = {path!r}: expected a token of at least {TOKEN_CHARS_MIN} letters "
                "and digits, such as 'openssl rand -hex 24' prints, or lines of NAME TOKEN"
            )
        if (name or len(lines) > 1) and not _NAME.match(name):
            raise ConfigError(
                f"[http] token_file = {path!r}: with several tokens each line is NAME TOKEN, the name of "
                "letters, digits, '.', '_' and '-'"
            )
        if token in names or name in names.values():
            raise ConfigError(f"[http] token_file = {path!r}: {name} or its token is there twice")
        names[token] = name
    if not names or len(names) > TOKENS_MAX:
        raise ConfigError(f"[http] token_file = {path!r}: it holds {len(names)} tokens, expected 1 to {TOKENS_MAX}")
    return Tokens(names)


def origin_of(token_name: str, address: str) -> str:
    """Whose request it is. ``address``: of the other end of the connection, ``""`` where it is not known."""
    return f"token:{token_name}" if token_name else _of_address(address)


@lru_cache(maxsize=1024)
def _of_address(address: str) -> str:
    """Kept for the next requests of the same connection: reading an address takes longer than a route's choice."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0].strip("[]"))
    except ValueError:
        return "address:unknown"
    if isinstance(found, ipaddress.IPv6Address):
        mapped = found.ipv4_mapped
        if mapped is None:
            return f"address:{ipaddress.ip_network((found, IPV6_PREFIX), strict=False).network_address}"
        found = mapped
    return f"address:{found}"
