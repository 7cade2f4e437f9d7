"""Files that others may have written, read within bounds; and files that must not be found half written."""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import os
import select
import stat
from typing import Any, Optional, Union

from edgeserve.errors import ConfigError

TEXT_BYTES_MAX = 64 * 1024**2
"""No profile, ensemble or table of machine costs is longer."""

READER_LOOKS, READER_LOOK_MS = 50, 20
"""Looks for the reader of a pipe, and the time between two: a shell starts both programs at the same time."""


def read_text(path: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """The text of a file that others may have written. Raises ``OSError`` for a path that is no file (a pipe would be
    waited for) or too large, ``ValueError`` for bytes that are no text."""
    with open(path, "rb", opener=regular_file) as file:
        size = os.fstat(file.fileno()).st_size
        if size > bytes_max:
            raise OSError(errno.EFBIG, f"it has {size} bytes, expected at most {bytes_max}", path)
        return decoded(file.read(bytes_max))


def regular_file(path: str, flags: int) -> int:
    """The ``opener`` of :func:`open` for files that a user names: ``OSError`` for a path that is no regular file: a
    pipe would be waited for, a device has no end."""
    number = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(number).st_mode):
        return number
    os.close(number)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is no regular file", path)


def written_file(path: str, flags: int, mode: int = 0o666) -> int:
    """The ``opener`` of :func:`open` for files to be written that a user names: ``OSError`` for a pipe that no program
    has begun to read within a second, which would be waited for."""
    for look in range(READER_LOOKS):
        try:
            number = os.open(path, flags | os.O_NONBLOCK, mode)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if look < READER_LOOKS - 1:
            select.poll().poll(READER_LOOK_MS)
    else:
        raise OSError(errno.ENXIO, "it is a pipe that no program reads", path)
    os.set_blocking(number, True)
    return number


def decoded(data: bytes) -> str:
    """The text of a file that an editor wrote: UTF-8, with a byte order mark or without. ``ValueError`` names any other
    encoding."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)) or b"\0" in data[:4]:
        raise ValueError(
            "it is UTF-16 or UTF-32 (as Notepad's 'Unicode' and PowerShell's '>' write), expected UTF-8: save it so, "
            "or convert it with: iconv -f UTF-16 -t UTF-8"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"line {line} holds the byte 0x{data[error.start]:02x}, which is no UTF-8 there; save it as UTF-8"
        ) from None


def read_json(path: str) -> Any:
    """The value in a JSON file that others may have written. ``OSError`` and ``ValueError`` as of :func:`read_text`."""
    text = read_text(path)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_whole(path: str, text: str) -> None:
    """Write a file so that neither a reader nor a power cut ever sees half of it: beside its place first, onto the
    disk, then renamed."""
    write_whole_bytes(path, text.encode("utf-8"))


def write_whole_bytes(path: str, content: bytes, mode: Optional[int] = None) -> None:
    """Write bytes whole, as :func:`write_whole` does texts. ``mode`` is the file's; left out, as the process's umask
    says."""
    import tempfile  # a megabyte with its own imports, for callers that write

    folder = os.path.dirname(path) or "."
    number, part = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:64]}-", suffix=".part", dir=folder)
    try:
        with os.fdopen(number, "wb") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask() if mode is None else mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        if isinstance(error, OSError):
            error.filename = path  # a full disk names none
        raise
    sync_folder(folder)


def write_file(path: str, content: Union[str, bytes]) -> None:
    """Write the file that a user named, whole or not at all: the old content stays where the disk is full. A link is
    followed, a file keeps its mode, and a path that is no file (a pipe, ``/dev/stdout``) is written to as it is.
    :class:`ConfigError` where that is not possible."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else None
        target = os.path.realpath(path)
        if (mode is not None and not os.path.isfile(path)) or os.path.abspath(path).startswith(("/dev/", "/proc/")):
            with open(path, "wb", opener=written_file) as file:
                file.write(data)
            return
        try:
            write_whole_bytes(target, data, mode)
        except PermissionError:  # the folder takes no new file; this one may still be written to
            if mode is None:
                raise
            with open(target, "r+b") as file:
                file.write(data)
                file.truncate()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); make room there, or name another file"
        ) from None


def write_new_file(path: str, text: str) -> None:
    """Write a file that is this user's alone from its first byte on (mode 0600). ``FileExistsError`` where there is
    one."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)  # also under a stricter or a looser umask
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:  # half a file would be in the way of the next try
        os.unlink(path)
        raise
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
