"""The choice of the candidate that starts on a lane: a tentative schedule of the best batch of each model, critical
requests guarded by count.

The densest candidates enter a schedule, each with what waits behind it, as long as all in it start in time (DASA: Clark
1990); of the ones that may go first without making another late, the one with the largest index starts. Work that
brings far less than the lane's price goes where nothing else waits; work that would make critical requests late, open
or expected, counts as if it lost several requests of its own for each of them. Pure.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, Final, List, NamedTuple, Sequence, Tuple

from edgeserve.priority_class import YIELDING
from edgeserve.sched.plan.candidate import Behind, Candidate
from edgeserve.sched.requests.critical import NO_ROOMS, Rooms

GUARD_MIN: Final = 3.0
"""Requests that a batch must bring for each critical one that it makes late, at its last moment."""

GUARD_MAX: Final = 10.0
"""The same of a batch that has time to wait for a gap."""

CRITICAL_WAIT: Final = 0.5
"""Share of its slack for which a critical batch may wait in the schedule while a late critical request is remembered:
what goes before it may take longer than expected. Before, all of it, in equal parts at the stages that are left.
(Held-out robot, seeds 11 to 15, 50 s, at load 1 and 1.3: half from the start 80.6 and 66.1, so 82.0 and 66.6; all of it
at each stage: workstation, seeds 11 to 18 at .7, critical requests of the worst run 98.8 % for 100.)"""

SPARED: Final = 0.1
"""A batch that brings less per time than the lane's price counts as so much of itself: it is not given up for it."""

CHEAP: Final = 0.5
"""A batch that brings less than this share of the lane's price goes where nothing else waits: the lane's time has a
better use. (``shapes``, seeds 1000 to 1023, load 1 and 2: 86.1 and 66.2 % of the value without, 86.9 and 68.4 so.)"""

FULL: Final = 0.7
"""A batch whose jobs take less than this share of its lane time in full batches, what a fuller one would save counted,
lets others go first while it can wait for them: the lane falls behind long before anything is given up for it."""

PATIENT: Final = 16
"""A batch that can wait so many times as long as the most urgent one lets it go first."""


def weigh(candidate: Candidate, rooms: Rooms, gap_ns: int, price: float = 0.0) -> None:
    """Set the worth per time of a candidate, which takes what a fuller batch would save besides, less the loss of
    critical requests, and less the ``price`` that others pay for the time: at least :data:`SPARED` of the rest. One
    that brings less than the price, and would save time by waiting, is early: it lets what brings more go first. One
    that brings less than :data:`CHEAP` of the price is cheap: it goes where nothing else waits. One that is less full
    than :data:`FULL`, and would save time by waiting, is sparse: it lets others go first while it can wait for them."""
    candidate.guarded = candidate.is_early = candidate.is_cheap = candidate.is_sparse = False
    takes_ns = candidate.takes_ns + candidate.saves_ns
    if candidate.is_critical:
        candidate.value = candidate.gain / takes_ns
        waits = 1.0 - (1.0 - CRITICAL_WAIT) * min(1.0, rooms.over)
        candidate.trust = waits / candidate.stages
        return
    gain = candidate.gain
    late = 0.0 if rooms is NO_ROOMS else rooms.late_behind(candidate.careful_ns + gap_ns)
    if late:
        guard = GUARD_MAX + (GUARD_MIN - GUARD_MAX) * math.exp(-candidate.press)
        gain -= guard * late * gain / max(1, len(candidate.jobs))
        candidate.guarded = True
    value = gain / takes_ns
    candidate.value = max(value - price, SPARED * value) if value > 0.0 else value
    candidate.is_cheap = candidate.gain < CHEAP * price * takes_ns
    if candidate.saves_ns:
        candidate.is_early = candidate.gain < price * takes_ns
        candidate.is_sparse = candidate.full_ns < FULL * takes_ns


def _can_wait_for(others: Sequence[Candidate], item: Candidate, gap_ns: int) -> bool:
    """True if one of the others brings more per time, and the item is in time behind it."""
    wait_ns = item.source.wait_ns(item)
    return bool([other for other in others if other.value > item.value and other.takes_ns + gap_ns <= wait_ns])


class Scheduled(NamedTuple):
    """A batch in the schedule, or (``item`` is None) work behind one: by when it must start, how long it runs."""

    wait_ns: int
    takes_ns: int
    item: Candidate | None = None


def choose(
    candidates: Sequence[Candidate], gap_ns: int, behind: Callable[[Candidate], Sequence[Behind]] = lambda item: ()
) -> Candidate | None:
    """The candidate that starts; None where each of them had better wait. All are weighed. ``behind``: what waits
    behind one."""
    foreground = [item for item in candidates if item.priority_class not in YIELDING]
    able = [item for item in foreground if item.value > 0.0 or item.is_critical or not item.guarded]
    others = [item.value for item in able if not item.is_early]
    if others:  # what is early waits for others only
        best = max(others)
        able = [item for item in able if not item.is_early or item.value > best]
    able = [item for item in able if not item.is_cheap] or able
    if len(able) > 1:
        ready = [item for item in able if not item.is_sparse]
        if len(ready) < len(able):
            able = [item for item in able if not item.is_sparse or not _can_wait_for(ready, item, gap_ns)]
    if able:
        return able[0] if len(able) == 1 else _first(able, gap_ns, behind)
    if foreground:
        return None
    return max(candidates, key=_density) if candidates else None


def _first(candidates: Sequence[Candidate], gap_ns: int, behind: Callable[[Candidate], Sequence[Behind]]) -> Candidate:
    best: Dict[Tuple[str, str], Tuple[float, Candidate]] = {}  # of each model: with its index
    for item in candidates:
        key, index = (item.source.kind, item.model), _index(item)
        if key not in best or index > best[key][0]:
            best[key] = index, item
    rows: List[Tuple[bool, float, int, Scheduled]] = []
    for _, item in best.values():
        entries = [Scheduled(item.source.wait_ns(item), item.takes_ns, item)]
        entries += [Scheduled(wait_ns, takes_ns) for takes_ns, wait_ns in behind(item)]
        for entry in entries:
            rows.append((not item.is_critical, -item.value, len(rows), entry))
    schedule: List[Scheduled] = []  # in order of how long each may wait
    for _, _, _, entry in sorted(rows):
        place = len(schedule)
        while place and schedule[place - 1].wait_ns > entry.wait_ns:
            place -= 1
        schedule.insert(place, entry)
        if len(schedule) > 1 and not _in_time(schedule, None, gap_ns):
            del schedule[place]
    able = [(entry.wait_ns, entry.item) for entry in schedule if entry.item is not None]
    first_wait_ns, first = able[0]
    patient_ns = PATIENT * max(first_wait_ns, first.takes_ns)
    for _, _, wait_ns, item in sorted(
        [(-_index(item), place, wait_ns, item) for place, (wait_ns, item) in enumerate(able)]
    ):
        if item is first or (wait_ns <= patient_ns and _in_time(schedule, item, gap_ns)):
            return item
    return first


def _in_time(schedule: Sequence[Scheduled], first: Candidate | None, gap_ns: int) -> bool:
    """True if all start in time if they run in this order, but ``first`` before all others."""
    at_ns = 0 if first is None else first.takes_ns + gap_ns
    for wait_ns, takes_ns, item in schedule:
        if item is None or item is not first:
            if at_ns > wait_ns:
                return False
            at_ns += takes_ns + gap_ns
    return True


def _index(item: Candidate) -> float:
    return item.value * math.exp(-max(0.0, item.press))


def _density(item: Candidate) -> float:
    return item.gain / item.takes_ns
