"""Names of apps in the paths of HTTP: any name that the configuration allows, its slashes encoded or as they are.

Clients differ: ``tritonclient`` sends ``Qwen/Qwen3`` with its slash, others as ``Qwen%2FQwen3``. A path that has
several readings means the app that is served. Pure functions.
"""

from __future__ import annotations

from typing import Any, Collection, List, Mapping, NamedTuple, Sequence
from urllib.parse import unquote

VERSIONS = "versions"


def tidied(app: Any) -> Any:
    """``app``, asked without the slashes that clients put twice at the beginning or add at the end. Behind
    ``/v2/models/`` and ``/v1/models/`` the raw path stays as it is there: a name may end in one."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        path, raw = scope.get("path", ""), scope.get("raw_path") or b""
        if raw.endswith(b"/") or raw.startswith(b"//"):
            path = path.lstrip("/").rstrip("/" if raw.endswith(b"/") else "")
            scope = {**scope, "path": "/" + path, "raw_path": b"/" + raw.lstrip(b"/")}
        await app(scope, receive, send)

    return application


class ModelPath(NamedTuple):
    """One reading of a path behind ``/v2/models/``."""

    name: str
    version: str
    verb: str  # "" asks for the app itself


def behind(scope: Mapping[str, Any], prefix: str) -> List[str]:
    """The parts of a request's raw path behind ``prefix``, each decoded."""
    raw = scope.get("raw_path") or scope["path"].encode()
    return [unquote(part) for part in raw.decode("latin-1")[len(prefix) :].split("/")]


def name_behind(scope: Mapping[str, Any], prefix: str, served: Collection[str]) -> str:
    """The name that is all of a path behind ``prefix``; a slash at the end is left out where no app has it."""
    name = "/".join(behind(scope, prefix))
    return name if name in served else name.rstrip("/")


def model_paths(parts: Sequence[str], verbs: Collection[str]) -> List[ModelPath]:
    """Every reading of ``NAME[/versions/VERSION][/VERB]``, the usual one first."""
    found = []
    count = max([place for place, part in enumerate(parts, 1) if part], default=0)
    for rest in [parts] if count == len(parts) else [parts[:count], parts]:
        for verb in dict.fromkeys([*rest[-1:], ""]):
            if verb not in verbs:
                continue
            about = rest[:-1] if verb else rest
            if len(about) > 2 and about[-2] == VERSIONS:
                found.append(ModelPath("/".join(about[:-2]), about[-1], verb))
            found.append(ModelPath("/".join(about), "", verb))
    return [each for each in found if each.name]
