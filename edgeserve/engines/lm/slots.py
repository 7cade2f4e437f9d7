"""Which sequence holds which slot of a session's memory, and whose turn it is to use that memory.

Sequences end on any thread: a request is cancelled, the scheduler releases a state, the garbage collector takes one. A
back end is used by one thread at a time. So whoever ends a sequence hangs its slot on a list, and the list is worked
off at once where nobody computes, else by the thread that computes, after its present step.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from typing import Any, Container, Deque, Dict, Iterator, List, Optional

from edgeserve.engines.lm.backend import BackendSession


class Slots:
    """The slots of one session. ``take`` and ``using`` belong to the lane's thread; ``give_back`` to any."""

    def __init__(self, session: BackendSession) -> None:
        self.session = session
        self._lock = threading.Lock()
        self._returned: Deque[int] = deque()
        self._free: List[int] = list(range(session.slots))[::-1]
        self._holders: Dict[int, weakref.ReferenceType[Any]] = {}
        self._closed = False

    def take(self, holder: Any, kept: Container[int]) -> Optional[int]:
        """A free slot for a sequence. Where none is free, the longest unused sequence that is not in one of the slots
        ``kept`` loses its memory and will be computed again; ``None`` where all are kept."""
        self.tidy()
        while not self._free:
            waiting = [slot for slot in self._holders if slot not in kept]
            if not waiting:
                return None
            parked = self._holders[waiting[0]]()
            if parked is not None:
                parked.release()
            else:
                self.give_back(waiting[0])
            self.tidy()
        slot = self._free.pop()
        self._holders[slot] = weakref.ref(holder)
        return slot

    def forget_lost(self) -> None:
        """Where the session's memory is gone, its sequences will be computed again."""
        if self.session.lost():
            self._release_all()

    def touch(self, slot: int) -> None:
        """The sequence in the slot is used now: it is the last to lose its memory."""
        self._holders[slot] = self._holders.pop(slot)

    def give_back(self, slot: int) -> None:
        """The sequence in the slot is over, or is to be computed again. Each slot once."""
        self._returned.append(slot)
        self.tidy()

    @contextlib.contextmanager
    def using(self) -> Iterator[BackendSession]:
        """The session, for one step."""
        with self._lock:
            yield self.session
        self.tidy()

    def tidy(self) -> None:
        """Work off the list, unless somebody computes: that thread looks at the list afterwards."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                while self._returned:
                    slot = self._returned.popleft()
                    self._holders.pop(slot, None)
                    if not self._closed:
                        self.session.free(slot)
                    self._free.append(slot)
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the session; sequences that still hold slots are computed again elsewhere."""
        with self._lock:
            self._closed = True
            self.session.close()
        self._release_all()

    def _release_all(self) -> None:
        for holder in list(self._holders.values()):
            sequence = holder()
            if sequence is not None:
                sequence.release()
