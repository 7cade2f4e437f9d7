"""Events of the Wyoming protocol as they come, read within bounds, and text that comes in pieces."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Callable, List, Mapping, Optional, Sequence

from wyoming.event import Event

from edgeserve.waits import await_within

PART_BYTES_MAX = 4 * 1024**2
"""The most bytes of an event's data, and of its sound: two minutes."""

PARTS_S = 30.0
"""The time in which the bytes behind an event's line must come: their room is held meanwhile."""

TEXT_CHARS_MAX = 64 * 1024

ODD = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""The errors that the package's events raise for data of another form."""

SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|\n+")


class Sentences:
    """Text that comes in pieces of any size, cut into sentences. A piece costs its own length."""

    def __init__(self) -> None:
        self._parts: List[str] = []
        self._chars = 0

    @property
    def rest(self) -> str:
        """The text that is no whole sentence yet."""
        return "".join(self._parts)

    def add(self, text: str) -> List[str]:
        """The sentences that end in another piece. Raises ``ValueError`` where one becomes too long."""
        before = self._parts[-1][-1:] if self._parts else ""  # a sign may end the piece before
        *whole, rest = SENTENCE_END.split(before + text)
        if whole:
            whole[0] = self.rest + whole[0][len(before) :]
            self._parts, self._chars = [], 0
        elif before:
            rest = text
        if rest:
            self._parts.append(rest)
            self._chars += len(rest)
        if self._chars > TEXT_CHARS_MAX:
            chars, self._parts, self._chars = self._chars, [], 0
            raise ValueError(f"a sentence of {chars} characters, at most {TEXT_CHARS_MAX} are allowed")
        return [sentence for sentence in whole if sentence.strip()]


class OddEvent(ValueError):
    """An event that this front cannot read; the next one may do."""


async def read_event(reader: asyncio.StreamReader, hold: Callable[[int], None] = lambda count: None) -> Optional[Event]:
    """The next event, None at the end. The sender says how many bytes follow a line, and ``hold`` takes the room for
    them before they are read. Raises :class:`OddEvent` where the bytes are no event, and ``ValueError`` where the
    beginning of the next one is unknown."""
    line = await reader.readline()  # bounded by the stream itself
    if not line:
        return None
    try:
        head = json.loads(line)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(head, dict):
        raise OddEvent(f"a line of JSON that is a {type(head).__name__}, expected an object")
    counts = [_count(head.get(key)) for key in ("data_length", "payload_length")]
    hold(sum(counts))
    try:
        parts = await await_within(_parts(reader, counts), PARTS_S) if any(counts) else [b"", b""]
    except asyncio.TimeoutError:
        raise ValueError(f"the {sum(counts)} bytes of an event did not come within {PARTS_S:g} s") from None
    data = head.get("data") or {}
    try:
        data = {**data, **(json.loads(parts[0]) if parts[0] else {})}
        if b"\\u" in line + parts[0]:
            json.dumps(data, ensure_ascii=False).encode()  # raises for half of a character
        return Event(type=text_in(head, "type"), data=data, payload=parts[1] or None)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise OddEvent(f"{type(error).__name__}: {error}") from None


async def _parts(reader: asyncio.StreamReader, counts: Sequence[int]) -> List[bytes]:
    return [await reader.readexactly(count) if count else b"" for count in counts]


def _count(count: Any) -> int:
    if count is not None and (type(count) is not int or not 0 <= count <= PART_BYTES_MAX):
        raise ValueError(f"a part of {str(count)[:40]} bytes, expected 0 to {PART_BYTES_MAX}")
    return count or 0


def text_in(table: Mapping[str, Any], key: str) -> str:
    """A text there. Raises ``TypeError`` for another value, and ``KeyError`` for none."""
    value = table[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is {str(value)[:40]}, expected a text")
    return value
