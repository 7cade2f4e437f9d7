"""The mailbox of the loop: any thread posts, the loop takes. It has no lock and wakes a sleeping loop only.

The wake-up is a byte in a pipe, so that the loop can wait for it and for sockets in one call.
"""

from __future__ import annotations

import collections
import os
from typing import Any, Deque, List


class Mailbox:
    """Items in order of posting. ``post`` is for any thread, everything else for the loop's.

    Between :meth:`going_to_sleep` and :meth:`awake` the first post writes one byte; a busy loop costs no system call.
    The order of the two steps on each side makes it safe: a poster appends and then looks whether the loop sleeps,
    the loop says that it sleeps and then looks for items. At least one of them sees the other.
    """

    def __init__(self) -> None:
        self._items: Deque[Any] = collections.deque()
        self._asleep = False
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def fileno(self) -> int:
        """Readable when something was posted while the loop slept."""
        return self._read_fd

    def post(self, item: Any) -> None:
        self._items.append(item)
        if self._asleep:
            self._asleep = False
            self._ring()

    def _ring(self) -> None:
        try:
            os.write(self._write_fd, b"\0")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def take(self) -> List[Any]:
        """Everything posted so far."""
        items = self._items
        taken = []
        while items:
            taken.append(items.popleft())
        return taken

    def __len__(self) -> int:
        return len(self._items)

    def going_to_sleep(self) -> bool:
        """Ask for a wake-up byte. ``False`` when something is here already: do not sleep."""
        self._asleep = True
        if self._items:
            self._asleep = False
            return False
        return True

    def awake(self, rang: bool = True) -> None:
        """The loop is up again: no more bytes, and those that came are read (``rang``: the file is readable)."""
        self._asleep = False
        if not rang:
            return
        try:
            os.read(self._read_fd, 4096)
        except BlockingIOError:
            pass  # something else woke the loop

    def __del__(self) -> None:
        # Not in a close(): a poster could be about to write, and the number might be another file's by then. Whoever
        # can still post keeps the mailbox alive.
        os.close(self._read_fd)
        os.close(self._write_fd)
