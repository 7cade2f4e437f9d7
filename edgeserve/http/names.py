"""Names of apps in the paths of HTTP: any name that the configuration allows, its slashes encoded or as they are.

Clients differ: ``tritonclient`` sends ``Qwen/Qwen3`` with its slash, others as ``Qwen%2FQwen3``. A path that has
several readings means the app that is served. Pure functions.
"""

from __future__ import annotations

from typing import Any, Collection, List, Mapping, NamedTuple, Sequence
from urllib.parse import unquote

VERSIONS = "versions"


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
    for rest in [parts[:-1], parts] if len(parts) > 1 and not parts[-1] else [parts]:
        for verb in [rest[-1], ""] if rest[-1] else [""]:
            if verb not in verbs:
                continue
            about = rest[:-1] if verb else rest
            if len(about) > 2 and about[-2] == VERSIONS:
                found.append(ModelPath("/".join(about[:-2]), about[-1], verb))
            found.append(ModelPath("/".join(about), "", verb))
    return [each for each in found if each.name]
