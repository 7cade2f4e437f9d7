"""Deadlines that refusals said would do: who comes back with one is given the rank that keeps it.

Under overload others keep coming, so a number alone is soon wrong. So a refusal leaves a note, and the request that
comes back with at least that deadline counts :data:`RANK` times its value until it has ended: it goes before its
equals, never before a class above its own. A note is used once and only by the owner who was refused.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Dict, Final, List, Set, Tuple

from edgeserve.units import NS_PER_MS

RANK: Final = 8.0
"""The factor on the value of a request that was promised its deadline."""

VALID_NS: Final = 5_000 * NS_PER_MS
"""The time for which a promise waits for its request."""

NOTES_MAX: Final = 32
"""Promises of one owner, app and class that wait at the same time: the oldest goes. A dozen requests are often given up
in one step: with 8, 16 of 77 came back to a promise that was forgotten (world ``dev/apps/0`` of the bench)."""

OWNERS_MAX: Final = 1024
"""Owners, apps and classes with promises: those promised least recently go."""

NEARLY: Final = 128
"""A deadline that is shorter by this part is the promised one: what answers take is learnt between the two requests."""

BEYOND: Final = 8
"""One that is longer by more than this part is another one: a client asks with several."""

MORE: Final = 256
"""One that is not longer than the refused one by more than this part is the client's usual one."""

KEPT_SHARE: Final = 0.93
"""So many promises are to be kept: the times to promised deadlines are stretched until they are."""

STRETCH_STEP, STRETCH_MAX = 1.5, 4.0
"""After a promise that was not kept they are so many times as long, and at most."""

SHRINK: Final = STRETCH_STEP ** (-(1.0 - KEPT_SHARE) / KEPT_SHARE)
"""The same after one that was kept: of so many kept and broken ones they stay as they are."""

Key = Tuple[str, str, str]
"""Owner, app, class."""


class Promises:
    """The notes that refusals left, by owner, app and class, oldest first; how much longer than worked out the promised
    deadlines of each app must be to be kept; and the apps whose last promise was broken."""

    __slots__ = ("notes", "_stretch", "_broken")

    def __init__(self) -> None:
        self._stretch: Dict[str, float] = {}
        self._broken: Set[str] = set()
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

    def ended(self, app: str, in_time: bool) -> None:
        """A request that was promised its deadline was answered by then, or not."""
        stretch = self._stretch.get(app, 1.0) * (SHRINK if in_time else STRETCH_STEP)
        self._stretch[app] = max(1.0, min(STRETCH_MAX, stretch))
        if in_time:
            self._broken.discard(app)
        else:
            self._broken.add(app)

    def would_do_ns(self, app: str, slo_ns: int, passed_ns: int) -> int | None:
        """The deadline to promise where ``slo_ns`` would do as worked out. Both count from the arrival: what a request
        has waited is stretched too, since it waits anew when it comes back. None where the app has been passed over for
        as long (``passed_ns``) and its last promise was broken: nothing says when it has a turn."""
        stretch = self._stretch.get(app, 1.0)
        if passed_ns >= slo_ns and app in self._broken:
            return None
        return slo_ns if stretch == 1.0 else round(slo_ns * stretch)

    def take(self, key: Key, slo_ns: int, now_ns: int) -> bool:
        """True if a request that arrives with this deadline was promised it; the note is used up."""
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
