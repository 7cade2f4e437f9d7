"""Where a model's file lies, and what identifies it: the configuration's directory or the asset cache.

Fetching assets is a script's business, reading a model's file is the engine's.
"""

from __future__ import annotations

import functools
import os
from typing import Mapping

from edgeserve.config.schema import ModelConfig
from edgeserve.errors import ConfigError, EngineError

CACHE_PREFIX = "cache:"
_CHUNK_BYTES = 1 << 20


def cache_directory(environment: Mapping[str, str] | None = None) -> str:
    """The asset cache: ``$EDGESERVE_CACHE``, else ``$XDG_CACHE_HOME/edgeserve``, else ``~/.cache/edgeserve``."""
    env = os.environ if environment is None else environment
    if env.get("EDGESERVE_CACHE"):
        return os.path.abspath(os.path.expanduser(env["EDGESERVE_CACHE"]))
    base = env.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "edgeserve")


def resolve_path(file: str, directory: str) -> str:
    """The path that ``file`` means: ``"cache:NAME/path"`` below the asset cache, else relative to ``directory``. Raises
    :class:`ConfigError` for a path of the cache that leads out of it."""
    if file.startswith(CACHE_PREFIX):
        return _in_cache(file)
    return os.path.normpath(os.path.join(directory, os.path.expanduser(file)))


def _in_cache(file: str) -> str:
    parts = file[len(CACHE_PREFIX) :].split("/")
    cache = cache_directory()
    path = os.path.join(cache, *parts)
    if not set(parts).intersection(("", ".", "..")) and "\0" not in file:
        real = os.path.realpath(cache)
        if os.path.commonpath([real, os.path.realpath(path)]) == real:  # no link leads out of it either
            return path
    raise ConfigError(
        f"{file!r} leads out of the asset cache {cache}: expected '{CACHE_PREFIX}NAME/FILE' with plain "
        "names and no links out of it; a file elsewhere is named by its own path"
    )


def model_path(model: ModelConfig, directory: str) -> str:
    """The existing file of a model; :class:`EngineError` says where it was looked for and what to do."""
    if not model.file:
        raise EngineError(
            f"model {model.name!r}: engine {model.engine!r} needs a file; set [model.{model.name}] file = '...'"
        )
    path = resolve_path(model.file, directory)
    if not os.path.isfile(path):
        mend = (
            "fetch the assets first (or point EDGESERVE_CACHE at the cache that has them)"
            if model.file.startswith(CACHE_PREFIX)
            else f"correct [model.{model.name}] file = {model.file!r} (relative to the configuration file)"
        )
        raise EngineError(f"model {model.name!r}: there is no file {path}; {mend}")
    wrong = no_model_file(path)
    if wrong:
        raise EngineError(f"model {model.name!r}: {path} {wrong}")
    if model.sha256:
        found = file_sha256(path)
        if found != model.sha256:
            raise EngineError(
                f"model {model.name!r}: {path} has sha256 {found}, expected {model.sha256}: it is not "
                f"the file that was meant. If it can be trusted, change [model.{model.name}] sha256"
            )
    return path


def no_model_file(path: str) -> str:
    """What a file evidently is instead of a model, and what to do; ``""`` where that is not known."""
    with open(path, "rb") as file:
        start = file.read(128).lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "is a pointer of git-lfs, not the model: fetch the model with 'git lfs install' and 'git lfs pull'"
    if start.startswith((b"<!doctype html", b"<html")):
        return "is a web page, not a model: take the address of the file itself ('raw', 'resolve' or 'download')"
    return ""


def weights_size_bytes(path: str) -> int:
    """Size of a model's file, with the sidecar that exporters put large weights into (``FILE.data``/``FILE_data``)."""
    return sum(os.path.getsize(name) for name in (path, f"{path}.data", f"{path}_data") if os.path.isfile(name))


def file_sha256(path: str) -> str:
    """Hex digest of a file's content; of a file that has not changed it is remembered."""
    about = os.stat(path)
    return _sha256(path, about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _sha256(path: str, size_bytes: int, mtime_ns: int) -> str:
    import hashlib  # with OpenSSL: 4 MB that a process without model files spares

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()
