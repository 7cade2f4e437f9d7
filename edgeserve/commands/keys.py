"""CURVE keys for a bus that other machines reach, in files that only their owner can read (``edgeserve init --keys``).

``NAME.key`` holds the public key alone, ``NAME.key_secret`` both. Nothing is overwritten.
"""

from __future__ import annotations

import os
import re
from typing import List, Sequence

import zmq

from edgeserve.config.text_files import write_new_file
from edgeserve.errors import ConfigError
from edgeserve.ipc.credentials import KEY_SUFFIX

SECRET_SUFFIX = ".key_secret"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")


SERVER = "server"
"""The name of the server's own pair."""

FOLDER = "keys"
"""The folder of the files when none is named; it is made with mode 0700."""


def write_keys(name: str, folder: str) -> str:
    """Write a pair of keys; returns what the files are for. Raises :class:`ConfigError`."""
    public, secret = make_keys(folder, name)
    return "\n".join(
        [
            f"{public}: the public key of {name!r}",
            f"{secret}: both keys, mode 0600; never copy it where others can read it",
            *_next_steps(name, public, secret),
        ]
    )


def make_keys(folder: str, name: str) -> Sequence[str]:
    """Write a new pair of keys; the paths of the public and of the secret file. Raises :class:`ConfigError` for a name
    that is none, a file that exists, or a folder that cannot be written."""
    if not _NAME.match(name):
        raise ConfigError(f"--keys {name!r}: expected 1 to 64 letters, digits, '_', '-' and '.', the first no '.'")
    public, secret = zmq.curve_keypair()
    paths = [os.path.join(folder, name + suffix) for suffix in (KEY_SUFFIX, SECRET_SUFFIX)]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for path in paths:
            if os.path.lexists(path):
                raise ConfigError(
                    f"{path} exists and is not overwritten: clients that know it would be locked out. "
                    "Remove it first, or give another name"
                )
        write_new_file(paths[1], _certificate(name, public, secret))
        try:
            write_new_file(paths[0], _certificate(name, public))
        except OSError:
            os.unlink(paths[1])  # half a pair would be in the way of the next try
            raise
    except OSError as error:
        raise ConfigError(
            f"--keys: {error.filename or folder} cannot be written ({error.strerror}); name another folder with --out"
        ) from None
    return paths


def _certificate(name: str, public: bytes, secret: bytes = b"") -> str:
    """The ZPL form that pyzmq reads (``zmq.auth.load_certificate``)."""
    lines = [f"#   {'Both keys' if secret else 'The public key'} of {name}, made by 'edgeserve init --keys'"]
    if secret:
        lines.append("#   DO NOT give this file away")
    lines += ["", "metadata", "curve", f'    public-key = "{public.decode()}"']
    if secret:
        lines.append(f'    secret-key = "{secret.decode()}"')
    return "\n".join(lines) + "\n"


def _next_steps(name: str, public: str, secret: str) -> List[str]:
    if name == SERVER:
        return [
            f"On the server: [server] curve_secret_key_file = {secret!r}",
            f"To each client: {public}, for server_key",
        ]
    return [
        f"On the server: put {public} into the folder [server] curve_client_keys; a running server finds it there",
        f"To the client: {secret}, for client_key, and the server's public key, for server_key",
    ]
