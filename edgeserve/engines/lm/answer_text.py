"""Tokens' bytes to text that may be sent: whole characters only, nothing that may begin a stop string, and no call.

A token may end inside a character: UTF-8 writes most of the world's characters in two to four bytes. Such bytes wait
for the next token. Bytes that are no UTF-8 become U+FFFD, as Python's ``errors="replace"`` does.
"""

from __future__ import annotations

import codecs
from typing import List, Sequence

from edgeserve.engines.lm.tools import CALL_MARKS


class AnswerText:
    """The text of one answer as it grows. ``add`` and ``finish`` return what may be sent on; what they returned so far,
    in order, is ``text``. After a stop string ``stopped`` is true: the text ends before that string.

    ``calls``: the answer may call functions, so text from where a call may begin is kept to the end, in ``kept``.
    """

    def __init__(self, stops: Sequence[str] = (), calls: bool = False) -> None:
        self._stops = tuple(stops)
        self._calls = calls
        self.kept = ""
        self._bytes = b""  # the begin of a character
        self._held = ""  # may be the begin of a stop string
        self._sent: List[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        return "".join(self._sent)

    def copy(self) -> AnswerText:
        copy = AnswerText(self._stops, self._calls)
        copy.kept = self.kept
        copy._bytes, copy._held, copy._sent, copy.stopped = self._bytes, self._held, list(self._sent), self.stopped
        return copy

    def add(self, data: bytes) -> str:
        """The text that may be sent after a token's bytes."""
        if self.stopped:
            return ""
        data = self._bytes + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._bytes = data[used:]
        return self._release(text, last=False) if text else ""

    def finish(self) -> str:
        """The remaining text when no token follows."""
        if self.stopped:
            return ""
        text = self._bytes.decode("utf-8", "replace")
        self._bytes = b""
        return self._release(text, last=True)

    def _release(self, text: str, last: bool) -> str:
        text, self.kept = self.kept + self._held + text, ""
        ends = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if ends:
            self.stopped = True
            text, self._held = text[: min(ends)], ""
        else:
            kept = 0 if last else self._begun(text)
            text, self._held = text[: len(text) - kept], text[len(text) - kept :]
        if self._calls:
            place = self._call_begins(text)
            text, self.kept = text[:place], text[place:]
        if text:
            self._sent.append(text)
        return text

    def give_up(self) -> str:
        """Release the kept text: it is no call."""
        kept, self.kept = self.kept, ""
        if kept:
            self._sent.append(kept)
        return kept

    def leave(self, calls: str, said: str) -> str:
        """Release ``said``, the part of the kept text that stands beside its ``calls``."""
        self.kept = calls
        if said:
            self._sent.append(said)
        return said

    def _call_begins(self, text: str) -> int:
        """The place where a call begins in the text to send: at a mark, or at the first bracket of an answer."""
        places = [place for place in (text.find(mark) for mark in CALL_MARKS) if place >= 0]
        if text.lstrip()[:1] in ("{", "[") and not self.text.strip():
            places.append(0)
        return min(places, default=len(text))

    def _begun(self, text: str) -> int:
        """The length of the longest end of ``text`` with which a stop string, or a mark of calls, begins."""
        marks = (*self._stops, *CALL_MARKS) if self._calls else self._stops
        longest = max([len(mark) for mark in marks], default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(mark.startswith(end) for mark in marks):
                return length
        return 0
