"""How many bytes of answers a client has not read yet, as far as libzmq holds them.

libzmq bounds a client's answers in messages and does not say how many wait. But it tells when it has let go of a buffer
that it was lent. So once in a while an answer's frame is lent instead of copied, as a mark: answers go out in order, so
when the mark is let go of, everything before it is with the client's system. Knows no socket.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Tuple

MARK_BYTES = 256 * 1024
"""A mark per so many bytes: fewer are never counted, and lending costs more than copying."""


class Unread:
    """The answers to one client. ``fresh`` are the bytes sent since the last mark; the bus adds to it. ``total`` are
    those up to the last mark that were not let go of when :meth:`look` looked last."""

    __slots__ = ("fresh", "total", "_marks")

    def __init__(self) -> None:
        self.fresh = 0
        self.total = 0
        self._marks: Deque[Tuple[Any, int]] = deque()

    def mark(self, tracker: Any) -> None:
        """A frame was lent: ``tracker.done`` says when it has been let go of."""
        self._marks.append((tracker, self.fresh))
        self.total += self.fresh
        self.fresh = 0

    def look(self) -> int:
        """How many bytes wait, without the fresh ones."""
        marks = self._marks
        while marks and marks[0][0].done:
            self.total -= marks.popleft()[1]
        return self.total
