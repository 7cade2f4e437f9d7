"""Small files of the kernel below a root directory: read once, or again and again without looking up their paths.

A file that is absent, may not be read or whose sensor is off reads as ``""`` or None, never as zero: that says nothing
about the machine. The root is ``/``, or a directory that stands for another machine.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from typing import Dict, Iterator, List, Optional, Set, Tuple

TEXT_BYTES_MAX = 1 << 20
POLLED_BYTES_MAX = 1 << 16  # of a file that is read again and again: /proc/meminfo has 2 KiB, /proc/buddyinfo 1 KiB

_looked_at: List[Set[str]] = []  # one set per recording that goes on


@contextlib.contextmanager
def looked_at() -> Iterator[Set[str]]:
    """The paths of what is read or found while the block runs: what a recording of this machine must hold."""
    seen: Set[str] = set()
    _looked_at.append(seen)
    try:
        yield seen
    finally:
        _looked_at.remove(seen)


def _note(*paths: str) -> None:
    for seen in _looked_at:
        seen.update(map(os.path.abspath, paths))


def read_text(root: str, path: str) -> str:
    """A small file's text; ``""`` when it cannot be read."""
    _note(os.path.join(root, path))
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read(TEXT_BYTES_MAX)
    except (OSError, ValueError):
        return ""


def integer_of(text: str) -> Optional[int]:
    """A file's only number; None when there is none."""
    text = text.strip()
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    return sign * int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 20 else None


def read_integer(root: str, path: str) -> Optional[int]:
    """A file's only number; None when there is none, or no file."""
    return integer_of(read_text(root, path))


def listing(root: str, pattern: str) -> List[str]:
    """Paths relative to the root that fit a pattern, sorted with their numbers in order."""
    found = glob.glob(os.path.join(glob.escape(root), pattern))
    _note(*found)
    return sorted((os.path.relpath(path, root) for path in found), key=_by_numbers)


def _by_numbers(path: str) -> List[Tuple[bool, int, str]]:
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split("([0-9]+)", path)]


class PolledFiles:
    """Files that are read again and again. Each is opened once: the kernel makes the contents of its files anew at
    each read from their beginning, so one system call is enough, without a look-up of the path.

    One thread only. :meth:`close` gives the files back.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._open: Dict[str, int] = {}

    def text(self, path: str) -> str:
        """The file's text now; ``""`` when it cannot be read."""
        file = self._open.get(path)
        try:
            if file is None:
                _note(os.path.join(self.root, path))
                file = self._open[path] = os.open(os.path.join(self.root, path), os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(file, POLLED_BYTES_MAX, 0).decode("utf-8", "replace")
        except OSError:
            if file is not None:
                self._forget(path)  # perhaps the driver was loaded anew: the next read opens it again
            return ""

    def integer(self, path: str) -> Optional[int]:
        """The file's only number now; None when it cannot be read."""
        return integer_of(self.text(path))

    def _forget(self, path: str) -> None:
        os.close(self._open.pop(path))

    def close(self) -> None:
        """No file stays open."""
        for path in list(self._open):
            self._forget(path)
