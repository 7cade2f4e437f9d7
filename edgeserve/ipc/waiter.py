"""The wait of the bus's loop, and when its socket is asked whether a message waits. Knows no message."""

from __future__ import annotations

import select
from typing import Callable, Optional, Sequence, Tuple

from edgeserve.units import NS_PER_MS
from edgeserve.waits import readable_files

PROBE_MESSAGES_MAX = 2
"""The number of messages of a burst before each of which the socket is asked whether one waits; then messages are read
until none is there. The exception that an empty socket raises costs as much as three questions."""

POLL_NS_MIN = 2 * NS_PER_MS
"""The shortest wait that is left to ``poll``, which counts milliseconds; shorter ones are kept to microseconds."""


class Waiter:
    """Sleeps on ``file``, which tells of messages, on ``monitor_file``, which tells of connections, and on one file of
    the caller's. libzmq's file is edge-triggered: it tells of a message only after ``readable()`` found none and while
    nothing else was done with the socket. So it is trusted only then."""

    def __init__(self, readable: Callable[[], object], file: int, monitor_file: int) -> None:
        self.readable = readable
        self._file = file
        self._monitor_file = monitor_file
        self.is_armed = False  # the socket was found empty and not used since
        self._has_come = False  # the last wait ended for a message
        self._comes_in_bursts = False  # the last read found several
        self._is_quiet = False  # the last wait listened for news of connections and heard none
        self._other_file = -1
        self._poll: Callable[[int], Sequence[Tuple[int, int]]]

    def wait(self, file: int, timeout_ns: int) -> Tuple[bool, bool, Optional[bool]]:
        """Sleep until there is something, at most for ``timeout_ns``. Whether ``file`` can be read, whether a message
        came, and whether something happened to a connection, ``None`` where that was not asked."""
        if not self.is_armed:
            if self.readable():
                self._has_come = True
                return False, True, None
            self.is_armed = True
        if timeout_ns < POLL_NS_MIN:
            found = readable_files((file, self._file), timeout_ns)
            self._has_come = self._file in found
            return file in found, self._has_come, None
        if file != self._other_file:
            self._other_file = file
            poll = select.poll()
            for one in (self._file, file, self._monitor_file):
                poll.register(one, select.POLLIN)
            self._poll = poll.poll
        rang = came = stirred = False
        for found_one, _ in self._poll(timeout_ns // NS_PER_MS):
            if found_one == self._file:
                came = self._has_come = True
            elif found_one == file:
                rang = True
            else:
                stirred = True
        self._is_quiet = not stirred
        return rang, came, stirred

    def used(self) -> None:
        """Note another use of the socket, after which its file may not tell of what comes."""
        self.is_armed = False

    def begin(self) -> Tuple[int, int, bool]:
        """Reading begins: of which messages the socket is asked first whether they are there, from and to; and whether
        the last wait listened for news of connections and heard none."""
        known, is_quiet = 1 if self._has_come else 0, self._is_quiet
        self._has_come = self._is_quiet = False
        return known, 1 if self._comes_in_bursts else PROBE_MESSAGES_MAX, is_quiet

    def end(self, count: int, is_empty: bool) -> None:
        """So many messages were read; ``is_empty``: no more is there."""
        self.is_armed = is_empty
        self._comes_in_bursts = count > PROBE_MESSAGES_MAX
