"""The origin of a request to the gateway: the tokens that let clients in, and the name under which the server shares
places and lane time among them.

An origin is ``token:NAME`` where the client showed a token with a name; else ``uid:N`` for a process of this machine
(``ipc/other_end.py``), and ``address:IP`` for any other.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from edgeserve.config.text_files import read_text
from edgeserve.errors import ConfigError
from edgeserve.front.own_errors import Unauthorized
from edgeserve.ipc.other_end import address_owner as _of_address
from edgeserve.ipc.other_end import owner_of, owner_of_tcp
from edgeserve.owners import user_of

log = logging.getLogger("edgeserve")

TOKEN_CHARS_MIN = 16
TOKENS_MAX = 256
"""The most tokens of one file: every request is compared with each of them."""

USER = "uid:"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


class Tokens:
    """The tokens of a front: token -> name, ``""`` for one without a name. Empty: every client is let in. With a
    ``path`` they are the file's at any time; while it cannot be read, the last ones stay."""

    def __init__(self, names: Optional[Mapping[str, str]] = None, path: str = "", where: str = "token_file") -> None:
        self._names = [(token.encode(), name) for token, name in (names or {}).items()]
        self._path = path
        self._where = where
        self._stamp = _stamp_of(path)

    def _look(self) -> None:
        stamp = _stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._names = read_tokens(self._path, self._where)._names
            log.info("%s = %r is read again: %d tokens", self._where, self._path, len(self._names))
        except ConfigError as error:
            log.error("%s; the tokens that it held before are still let in", error)

    def __len__(self) -> int:
        self._look()
        return len(self._names)

    def name_of(self, shown: str) -> Optional[str]:
        """The name of the token in an ``authorization`` header; ``None`` where that is none of these. The scheme's case
        means nothing (RFC 9110, 11.1)."""
        self._look()
        found: Optional[str] = None
        scheme, _, token = shown.partition(" ")
        sent = token.strip(" ").encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
        for expected, name in self._names:  # each of them, so that the time tells nothing
            if hmac.compare_digest(sent, expected):
                found = name
        return found

    def shown_by(self, shown: str) -> str:
        """The same, ``""`` where every client is let in. Raises :class:`Unauthorized`."""
        name = self.name_of(shown) if self else ""
        if name is None:
            raise Unauthorized("this front needs 'Authorization: Bearer TOKEN' with a token of its token_file")
        return name


def read_tokens(path: str, where: str = "token_file") -> Tokens:
    """The tokens in a file that the key at ``where`` names: one alone, or a line ``NAME TOKEN`` for each client. None
    without a file."""
    if not path:
        return Tokens()
    try:
        lines = [line.split() for line in read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where} = {path!r} cannot be read: {error}") from None
    names: Dict[str, str] = {}
    for words in lines:
        name, token = words if len(words) == 2 else ("", words[0])
        if len(words) > 2 or len(token) < TOKEN_CHARS_MIN or not (token.isascii() and token.isprintable()):
            raise ConfigError(
                f"{where} = {path!r}: expected a token of at least {TOKEN_CHARS_MIN} letters "
                "and digits, such as 'openssl rand -hex 24' prints, or lines of NAME TOKEN"
            )
        if (name or len(lines) > 1) and not _NAME.match(name):
            raise ConfigError(
                f"{where} = {path!r}: with several tokens each line is NAME TOKEN, the name of "
                "letters, digits, '.', '_' and '-'"
            )
        if token in names or name in names.values():
            raise ConfigError(f"{where} = {path!r}: {name} or its token is there twice")
        names[token] = name
    if not names or len(names) > TOKENS_MAX:
        raise ConfigError(f"{where} = {path!r}: it holds {len(names)} tokens, expected 1 to {TOKENS_MAX}")
    return Tokens(names, path, where)


def _stamp_of(path: str) -> Any:
    """A value that changes with a file; None without a file."""
    try:
        about = os.stat(path) if path else None
    except OSError:
        return None
    return about and (about.st_mtime_ns, about.st_size, about.st_ino)


def origin_of(token_name: str, address: str) -> str:
    """The origin of a request. ``address``: of the other end of the connection, or its user as :func:`user_at` tells
    it; ``""`` where neither is known."""
    if token_name:
        return f"token:{token_name}"
    return address if address.startswith(USER) else _of_address(address)


def user_at(connection: Any) -> str:
    """The owner of a connection that a gateway has accepted (asyncio's transport or writer): ``uid:N`` of this
    machine's users, else ``address:IP``."""
    peer, own = connection.get_extra_info("peername"), connection.get_extra_info("sockname")
    if isinstance(peer, tuple) and isinstance(own, tuple):
        return user_of_address(str(peer[0]), int(peer[1]), [own])
    one = connection.get_extra_info("socket")
    return user_of(owner_of(one)) if one is not None else _of_address("")


def user_of_address(address: str, port: int, own: Sequence[Tuple[Any, ...]]) -> str:
    """The same of a connection that tells its other end alone; ``own``: where it may have come in."""
    for place in own:
        owner = owner_of_tcp((address, port), place)
        if owner.startswith(USER):
            return user_of(owner)
    return _of_address(address)
