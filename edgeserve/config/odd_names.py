"""Names that mean something else in another place: in a path, in a file's name, or of a client."""

from __future__ import annotations

import os
from typing import Collection

from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError

OWNERS = ("uid", "key", "token", "address")
"""The kinds of clients that ``[server] critical_for`` may name (``owners.py``, ``front/origins.py``)."""

FILE_BYTES_MAX = 200
"""Bytes of a file's name: file systems take 255, and a file that is written has an ending of its own."""


def check_odd_names(config: Config) -> None:
    """Raise :class:`ConfigError` for names of models, apps or clients that cannot be told apart where they are used."""
    for client in config.server.critical_for:
        kind, _, name = client.partition(":")
        if kind not in OWNERS or not name or (kind == "uid" and not name.partition("/")[0].isdecimal()):
            raise ConfigError(
                f"[server] critical_for = {client!r}: expected clients such as 'uid:1000', 'key:NAME', 'token:NAME' or "
                "'address:192.0.2.7' (docs/guide/bounds.md); the class of an app's requests is [app.NAME] class"
            )
    for model in config.models:
        if not _names_file(model):
            raise ConfigError(
                f"[model.{model!r}]: its profile is a file of this name below the profiles; expected no part '.', "
                f"'..' or '' between slashes, none of more than {FILE_BYTES_MAX} bytes, and neither 'mode-...' before "
                "a slash (profiles of a power mode lie there) nor '.json' or '.schema' at the end of a part; rename it"
            )
    for name, table in config.fronts.items():
        why = unsayable(config.apps) if table.get("kind", name) == "http" else ""
        if why:
            raise ConfigError(f"{why}, or leave [front.{name}] out")


def _names_file(model: str) -> bool:
    """True if a model's profile can be a file of its name."""
    parts = model.split("/")
    is_plain = os.path.normpath(model) == model and "\0" not in model and parts[0] not in ("", "..")
    is_own = not (parts[1:] and parts[0].startswith("mode-")) and not any(
        part.endswith((".json", ".schema")) for part in parts
    )
    return is_plain and is_own and max(len(part.encode("utf-8", "replace")) for part in parts) <= FILE_BYTES_MAX


def unsayable(apps: Collection[str]) -> str:
    """Which app's path in KServe over HTTP means something else, where clients send slashes as they are, and the fix;
    ``""`` where there is none."""
    for name in apps:
        if name == "stats":
            return "[app.stats]: /v2/models/stats of KServe over HTTP tells of all models; rename the app"
        parts = name.split("/")
        for place in range(1, len(parts)):
            other, rest = "/".join(parts[:place]), parts[place:]
            asked = rest[2:] if rest[0] == "versions" and len(rest) > 1 else rest
            if other in apps and (not asked or (len(asked) == 1 and asked[0] in ("ready", "config", "stats"))):
                return (
                    f"[app.{name!r}]: /v2/models/{name} of KServe over HTTP asks app {other!r} for {'/'.join(rest)}; "
                    "rename one of the two apps"
                )
    return ""
