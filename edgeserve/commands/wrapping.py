"""Sentences of commands, wrapped for a terminal."""

from __future__ import annotations

import textwrap
from typing import List


def wrapped(text: str, before: str, columns: int) -> List[str]:
    """A text behind ``before``, wrapped below itself; commands and paths are not broken. Without a terminal
    (``columns`` of 0) it is one line, which programs can search."""
    lines = text.splitlines() or [""]
    if columns:
        room = max(20, columns - len(before))
        lines = [
            line
            for part in lines
            for line in textwrap.wrap(part, room, break_long_words=False, break_on_hyphens=False) or [""]
        ]
    return [(before if index == 0 else " " * len(before)) + line for index, line in enumerate(lines)]
