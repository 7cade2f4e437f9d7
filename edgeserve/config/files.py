"""The places of files: relative to the configuration's directory, or in the asset cache; and the identity of their
content.

Fetching assets is a script's business, reading a model's file is the engine's.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, Generic, Iterable, Mapping, Tuple, TypeVar

from edgeserve.errors import ConfigError

Found = TypeVar("Found")

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


Stamp = Tuple[int, ...]
"""Device, inode, size and the times of the last change of content and of the inode, in nanoseconds; ``()``: no file."""


def stamp(path: str) -> Stamp:
    """A value that changes whenever a file is changed or replaced, its size and its modification time kept or not: no
    program sets the time at which an inode changed."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):  # a name with a null in it
        return ()
    return (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


class Remembered(Generic[Found]):
    """The result of a function on a file, remembered for as long as the file stays as it is. Any thread may ask."""

    def __init__(self, find: Callable[[str], Found]) -> None:
        self._find = find
        self._known: Dict[str, Tuple[Stamp, Found]] = {}

    def __call__(self, path: str) -> Found:
        about = stamp(path)
        known = self._known.get(path)
        if known is not None and known[0] == about:
            return known[1]
        found = self._find(path)
        if about == stamp(path) and is_settled(about):
            if len(self._known) >= FILES_MAX:
                self._known.clear()
            self._known[path] = (about, found)
        return found


FILES_MAX = 256
"""Files that are remembered: more than the models of a device have."""

STEP_NS = 2 * 10**9
"""The coarsest step in which a file system keeps times (FAT)."""


def is_settled(about: Stamp) -> bool:
    """True if another change would bring another stamp: not of a file that has just changed, which may change again in
    the same step of its times."""
    return about != () and about[-1] + STEP_NS < _now_ns()


def _now_ns() -> int:
    """The time of the kernel's clock for files, by a file that is made now; 0 where none can be."""
    try:
        file = os.memfd_create("now")
    except (AttributeError, OSError):
        return 0
    try:
        return os.fstat(file).st_ctime_ns
    finally:
        os.close(file)


def sha256_of(blocks: Iterable[bytes]) -> str:
    """Hex digest of bytes, one block after the other."""
    import hashlib  # with OpenSSL: 4 MB that a process without model files spares

    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def read_sha256(path: str) -> str:
    """Hex digest of a file's content, read now. ``OSError`` where it cannot be read."""
    from edgeserve.config.text_files import regular_file

    with open(path, "rb", opener=regular_file) as file:
        return sha256_of(iter(lambda: file.read(_CHUNK_BYTES), b""))


file_sha256: Callable[[str], str] = Remembered(read_sha256)
"""The same, read again when the file has changed."""
