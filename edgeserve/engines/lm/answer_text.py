"""Tokens' bytes to text that may be sent: whole characters only, and nothing that may begin a stop string.

A token may end inside a character: UTF-8 writes most of the world's characters in two to four bytes. Such bytes wait
for the next token. What is no UTF-8 at all becomes U+FFFD, as Python's ``errors="replace"`` does.
"""

from __future__ import annotations

import codecs
from typing import List, Sequence


class AnswerText:
    """The text of one answer as it grows. ``add`` and ``finish`` return what may be sent on; what they returned so far,
    in order, is ``text``. After a stop string ``stopped`` is true: the text ends before that string.
    """

    __slots__ = ("_stops", "_bytes", "_held", "_sent", "stopped")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._bytes = b""  # the begin of a character
        self._held = ""  # may be the begin of a stop string
        self._sent: List[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        return "".join(self._sent)

    def copy(self) -> AnswerText:
        copy = AnswerText(self._stops)
        copy._bytes, copy._held, copy._sent, copy.stopped = self._bytes, self._held, list(self._sent), self.stopped
        return copy

    def add(self, data: bytes) -> str:
        """What may be sent after a token's bytes."""
        if self.stopped:
            return ""
        data = self._bytes + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._bytes = data[used:]
        return self._release(text, last=False) if text else ""

    def finish(self) -> str:
        """What is left when no token follows."""
        if self.stopped:
            return ""
        text = self._bytes.decode("utf-8", "replace")
        self._bytes = b""
        return self._release(text, last=True)

    def _release(self, text: str, last: bool) -> str:
        text = self._held + text
        ends = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if ends:
            self.stopped = True
            text, self._held = text[: min(ends)], ""
        else:
            kept = 0 if last else self._begun(text)
            text, self._held = text[: len(text) - kept], text[len(text) - kept :]
        if text:
            self._sent.append(text)
        return text

    def _begun(self, text: str) -> int:
        """The length of the longest end of ``text`` with which a stop string begins."""
        longest = max([len(stop) for stop in self._stops], default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
