"""The memory of the process, and the return of unused memory to the system.

The C library keeps freed memory for later: after a flood of messages that may be a multiple of the server's need.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

from edgeserve.units import NS_PER_S

SLACK_BYTES = 16 * 1024**2
"""So much more than the least that was seen is worth a look."""

FIRST_NS = 2 * NS_PER_S
LATEST_NS = 3600 * NS_PER_S
"""Times between two attempts: twice as long after each, since memory in use (models) cannot be given back, and an
attempt delays other threads' allocations. Where memory has grown by ``SLACK_BYTES`` since, the pause is the first."""

CALM_NS = 60 * NS_PER_S
"""The least time between two attempts after connections were ended, however little they left. The first is after
``FIRST_NS``: libzmq frees what it had for a connection on a thread of its own."""


def resident_bytes() -> int:
    """The memory of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def own_bytes() -> int:
    """The memory of this process without the pages that it shares with files; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
            return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class GiveBack:
    """Gives unused memory back to the system, on a thread of its own: that takes milliseconds."""

    __slots__ = (
        "_least_bytes",
        "_last_bytes",
        "_looked_ns",
        "_pause_ns",
        "_next_ns",
        "_ended_count",
        "_calm_ns",
        "_owes",
    )

    def __init__(self, now_ns: int) -> None:
        self._least_bytes = self._last_bytes = resident_bytes()  # ever; since the last attempt
        self._pause_ns = FIRST_NS
        self._looked_ns = self._next_ns = self._calm_ns = now_ns
        self._ended_count = 0
        self._owes = False  # connections were ended since the last attempt for their sake

    def look(self, now_ns: int, ended_count: int = 0) -> bool:
        """Call it about once a second, with the number of connections that the server ended so far. Whether memory is
        being given back."""
        if ended_count != self._ended_count:
            self._ended_count, self._owes = ended_count, True
            self._calm_ns = max(self._calm_ns, now_ns + FIRST_NS)
        if self._owes and now_ns >= self._calm_ns:
            self._owes, self._calm_ns = False, now_ns + CALM_NS
            return self._try()
        if now_ns < self._next_ns and now_ns - self._looked_ns < FIRST_NS:
            return False
        self._looked_ns = now_ns
        held_bytes = resident_bytes()
        self._least_bytes = min(self._least_bytes, held_bytes)
        self._last_bytes = min(self._last_bytes, held_bytes)
        if held_bytes - self._least_bytes <= SLACK_BYTES:
            self._last_bytes, self._pause_ns, self._next_ns = held_bytes, FIRST_NS, now_ns
            return False
        if held_bytes - self._last_bytes > SLACK_BYTES:
            self._pause_ns, self._next_ns = FIRST_NS, now_ns
        if now_ns < self._next_ns:
            return False
        self._last_bytes = held_bytes
        self._next_ns = now_ns + self._pause_ns
        self._pause_ns = min(LATEST_NS, 2 * self._pause_ns)
        return self._try()

    def _try(self) -> bool:
        try:
            threading.Thread(target=_trim, name="edgeserve-give-back", daemon=True).start()
        except RuntimeError:  # no more threads; the next attempt may have one
            return False
        return True


def _trim() -> None:
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
