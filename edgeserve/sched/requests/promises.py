"""Deadlines that refusals said would do: who comes back with one is given the rank that keeps it.

Under overload others keep coming, so a number alone is soon wrong. So a refusal leaves a note, and the request that
comes back with at least that deadline counts :data:`RANK` times its value until it has ended: it goes before its
equals, never before a class above its own. A note is used once and only by the owner who was refused.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, List, Tuple

from edgeserve.units import NS_PER_MS

RANK: Final = 8.0
"""How many times its value a request counts that was promised its deadline."""

VALID_NS: Final = 5_000 * NS_PER_MS
"""How long a promise waits for its request."""

NOTES_MAX: Final = 8
"""Promises of one owner, app and class that wait at the same time: the oldest goes."""

OWNERS_MAX: Final = 1024
"""Owners, apps and classes with promises: those promised least recently go."""

NEARLY: Final = 128
"""A deadline that is shorter by this part is the promised one: what answers take is learnt between the two requests."""

BEYOND: Final = 8
"""One that is longer by more than this part is another one: a client asks with several."""

MORE: Final = 256
"""One that is not longer than the refused one by more than this part is the client's usual one."""

Key = Tuple[str, str, str]
"""Owner, app, class."""


class Promises:
    """The notes that refusals left, by owner, app and class, oldest first."""

    __slots__ = ("notes",)

    def __init__(self) -> None:
        self.notes: OrderedDict[Key, List[Tuple[int, int, int]]] = OrderedDict()  # -> from, to, valid until

    def give(self, key: Key, refused_ns: int, slo_ns: int, now_ns: int) -> None:
        """A refusal of a request with one deadline, counted from the arrival, says that another one would do."""
        notes = self.notes.pop(key, [])
        least_ns = max(slo_ns - slo_ns // NEARLY, refused_ns + refused_ns // MORE + 1)
        notes.append((least_ns, slo_ns + slo_ns // BEYOND, now_ns + VALID_NS))
        del notes[:-NOTES_MAX]
        self.notes[key] = notes
        if len(self.notes) > OWNERS_MAX:
            self.notes.popitem(last=False)

    def take(self, key: Key, slo_ns: int, now_ns: int) -> bool:
        """Whether a request that arrives with this deadline was promised it; the note is used up."""
        notes = self.notes.get(key)
        if notes is None:
            return False
        for index, (least_ns, most_ns, until_ns) in enumerate(notes):
            if least_ns <= slo_ns <= most_ns and now_ns <= until_ns:
                del notes[index]
                if not notes:
                    del self.notes[key]
                return True
        return False
