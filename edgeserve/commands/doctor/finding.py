"""The findings that a check returns, and the reading of small files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Tuple

from edgeserve.device.files import read_integer

GOOD, NOTE, WRONG = "good", "note", "wrong"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: ``good``, ``note`` (works, could be better) or ``wrong``; ``mend`` is a command
    or, where there is none, what to change."""

    subject: str
    status: str
    text: str
    mend: str = ""


def good(subject: str, text: str) -> List[Finding]:
    """The finding that something is as it should be."""
    return [Finding(subject, GOOD, text)]


def note(subject: str, text: str, mend: str) -> List[Finding]:
    """The finding that something works and could be better."""
    return [Finding(subject, NOTE, text, mend)]


def wrong(subject: str, text: str, mend: str = "") -> List[Finding]:
    """The finding that something is wrong."""
    return [Finding(subject, WRONG, text, mend)]


def number(root: str, path: str) -> int:
    """A file's number, 0 where it cannot be read: for limits and states whose 0 means nothing."""
    return max(0, read_integer(root, path) or 0)


def dotted(version: Tuple[int, ...]) -> str:
    """``3.10`` of ``(3, 10)``."""
    return ".".join(str(part) for part in version)
