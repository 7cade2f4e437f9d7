"""Where a model's file lies, and what identifies it: the configuration's directory or the asset cache. And how files
are written that must not be found half written.

Fetching assets is a script's business, reading a model's file is the engine's.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import tempfile
from typing import Mapping

from edgeserve.config.schema import ModelConfig
from edgeserve.errors import EngineError

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
    """The path that ``file`` means: ``"cache:NAME/path"`` below the asset cache, else relative to ``directory``."""
    if file.startswith(CACHE_PREFIX):
        return os.path.join(cache_directory(), *file[len(CACHE_PREFIX):].split("/"))
    return os.path.normpath(os.path.join(directory, os.path.expanduser(file)))


def write_whole(path: str, text: str, mode: int = 0o666) -> None:
    """Write a file so that neither a reader nor a power cut ever sees half of it: beside its place first, onto the
    disk, then renamed. ``mode`` is the file's, less the process's umask."""
    folder = os.path.dirname(path) or "."
    number, part = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:64]}-", suffix=".part", dir=folder)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode & ~_umask())
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise
    sync_folder(folder)


def write_new_file(path: str, text: str) -> None:
    """Write a file that is this user's alone from its first byte on (mode 0600). ``FileExistsError`` where there is
    one."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(os.path.dirname(path) or ".")


def sync_folder(folder: str) -> None:
    """Make what was renamed or made in a folder last over a power cut, where the file system can."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have no such thing for folders
            raise
    finally:
        os.close(number)


def _umask() -> int:
    """The process's umask; the system tells it only by setting another, which other threads would see."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    return 0o022


def model_path(model: ModelConfig, directory: str) -> str:
    """The existing file of a model; :class:`EngineError` says where it was looked for and what to do."""
    if not model.file:
        raise EngineError(f"model {model.name!r}: engine {model.engine!r} needs a file; "
                          f"set [model.{model.name}] file = '...'")
    path = resolve_path(model.file, directory)
    if not os.path.isfile(path):
        mend = ("fetch the assets first (or point EDGESERVE_CACHE at the cache that has them)"
                if model.file.startswith(CACHE_PREFIX) else
                f"correct [model.{model.name}] file = {model.file!r} (relative to the configuration file)")
        raise EngineError(f"model {model.name!r}: there is no file {path}; {mend}")
    return path


def weights_size_bytes(path: str) -> int:
    """Size of a model's file, with the sidecar that exporters put large weights into (``FILE.data``/``FILE_data``)."""
    return sum(os.path.getsize(name) for name in (path, f"{path}.data", f"{path}_data") if os.path.isfile(name))


def file_sha256(path: str) -> str:
    """Hex digest of a file's content; of a file that has not changed it is remembered."""
    about = os.stat(path)
    return _sha256(path, about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _sha256(path: str, size_bytes: int, mtime_ns: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()
