"""The slots of a session's memory, the sequences that hold them, and the turns to use that memory.

Sequences end on any thread: a request is cancelled, the scheduler releases a state, the garbage collector takes one. A
back end is used by one thread at a time. So the thread that ends a sequence puts its slot on a list, and the list is
worked off at once where no thread computes, else by the computing thread, after its present step.

A sequence whose answer is over may leave its memory behind, for others that begin with the same tokens
(``prefixes.py``), until a sequence needs the slot.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from typing import Any, Container, Deque, Dict, Iterator, List, Optional, Tuple

from edgeserve.engines.lm.backend import BackendSession
from edgeserve.engines.lm.prefixes import HeldTokens, Prefixes


class Slots:
    """The slots of one session. ``take``, ``keep`` and ``using`` belong to the lane's thread; ``give_back`` to any.
    ``prefixes``: the kept sequences that ended."""

    def __init__(self, session: BackendSession, prefixes: Prefixes) -> None:
        self.session = session
        self._prefixes = prefixes
        self._lock = threading.Lock()
        self._returned: Deque[int] = deque()
        self._free: List[int] = list(range(session.slots))[::-1]
        self._holders: Dict[int, weakref.ReferenceType[Any]] = {}
        self._closed = False

    def take(self, holder: Any, busy: Container[int]) -> Optional[Tuple[int, int]]:
        """A slot for a sequence, and how many of its tokens are in memory there. Where none is free, what was kept of
        an ended sequence goes, else the longest unused sequence that is not in one of the slots ``busy`` loses its
        memory and will be computed again; ``None`` where all are busy."""
        while True:
            self.tidy()
            with self._lock:  # no other thread frees one meanwhile
                if self._free or self._prefixes:
                    break
                waiting = [known() for slot, known in self._holders.items() if slot not in busy]
            parked = next((sequence for sequence in waiting if sequence is not None), None)
            if parked is None:
                return None
            parked.release()
        slot, count = self._filled(holder)
        self._holders[slot] = weakref.ref(holder)
        return slot, count

    def _filled(self, holder: Any) -> Tuple[int, int]:
        """A slot that is free or kept, and the number of a sequence's tokens in its memory: kept there, or copied."""
        with self._lock:  # nothing that is copied from is freed meanwhile
            match = None
            if holder.owner is not None:
                match = self._prefixes.match(holder.tokens, holder.owner, self._running())
            if match is not None and match.whole:  # a conversation goes on
                self._prefixes.leave(match.slot)
                return match.slot, match.tokens
            is_free = bool(self._free)
            slot = self._free.pop() if is_free else self._prefixes.drop()
            if match is not None and match.slot == slot:
                return slot, match.tokens
            if not is_free:
                self.session.free(slot)
            if match is None:
                return slot, 0
            self._prefixes.used(match)
            self.session.copy(match.slot, slot, match.tokens)
            return slot, match.tokens

    def _running(self) -> List[HeldTokens]:
        """The memory of the sequences that go on."""
        found = []
        for slot, known in list(self._holders.items()):
            sequence = known()
            if sequence is not None and sequence.cached and sequence.owner is not None:
                found.append(HeldTokens(slot, sequence.tokens[: sequence.cached], sequence.owner))
        return found

    def keep(self, held: HeldTokens) -> None:
        """An answer is over: its sequence leaves its memory behind, as far as there is room."""
        freed = self._prefixes.keep(held)
        if held.slot not in freed:
            self._holders.pop(held.slot, None)
            with self._lock:
                self.session.keep(held.slot)
        for slot in freed:
            self.give_back(slot)

    def forget_lost(self) -> None:
        """Forget the slots where the session's memory is gone: its sequences will be computed again."""
        if self.session.lost():
            for slot in self._prefixes.clear():
                self.give_back(slot)
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
        """Work off the list, unless a thread computes: that one looks at the list afterwards."""
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
