"""The reasons for a request's time: the last lines of its story, from its own log and those of the requests beside it.

Nothing is kept for this: the scheduler's records are searched on request.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from edgeserve.sched.core.scheduler import Scheduler
from edgeserve.sched.requests.states import COMPLETED, DROPPED, RequestRecord
from edgeserve.units import format_duration

APPS_TOLD_MAX = 4
MEANS = {
    "sending": "the client, the bus or a busy machine, before the scheduler knew of it",
    "queue": "waiting for a lane",
    "load": "waiting for its model to be loaded",
    "batch": "launched, behind the work before it on its lane",
    "execute": "its own batches",
    "other": "between its works: the loop, or a busy machine",
}


def story_of(scheduler: Scheduler, request_id: int) -> List[str]:
    """The events of a request and its breakdown of time, line by line; empty where the scheduler does not remember
    it."""
    request = scheduler.request(request_id)
    return request.story() + why(request, scheduler.remembered()) if request is not None else []


def why(request: RequestRecord, others: Sequence[RequestRecord]) -> List[str]:
    """Lines that say where the time of an ended request went, by how much it missed its deadline, and which batches
    were before it. No line for a request that has not ended, or never ran or waited."""
    if request.state not in (COMPLETED, DROPPED) or not request.log:
        return []
    ended_ns = request.log[-1][0]
    parts = _parts(request, ended_ns)
    told = [f"{format_duration(took_ns)} {name}" for name, took_ns in parts.items() if took_ns > 0]
    lines = [f"  time: {', '.join(told)}"] if told else []
    late_ns = ended_ns - request.deadline_ns - request.margin_ns
    if told and (late_ns > 0 or request.state == DROPPED):
        most = max(parts, key=lambda name: parts[name])
        missed = f"{format_duration(late_ns)} past this deadline" if late_ns > 0 else "given up before this deadline"
        lines.append(f"  {missed}; most of its time was {most}: {MEANS[most]}")
    before = _before(request, others)
    if before:
        lines.append(f"  before it: {before}")
    return lines


def _parts(request: RequestRecord, ended_ns: int) -> Dict[str, int]:
    """The breakdown of a request's time, in the order of its life; the sum is the time from its sending to its end."""
    arrived_ns = request.log[0][0]
    queue_ns, load_ns, batch_ns, execute_ns = request.spent
    parts = {
        "sending": arrived_ns - request.arrival_ns,
        "queue": queue_ns,
        "load": load_ns,
        "batch": batch_ns,
        "execute": execute_ns,
    }
    rest_ns = ended_ns - request.arrival_ns - sum(parts.values())
    if _launches(request):
        parts["other"] = max(0, rest_ns)
    else:
        parts["queue"] = queue_ns + max(0, rest_ns)
    return parts


def _launches(request: RequestRecord) -> List[Tuple[int, int, str]]:
    """(when, work, lane) of each batch that the request was in, as its log tells."""
    found: List[Tuple[int, int, str]] = []
    for now_ns, what in request.log:
        if what[:1] == ("launched",) and "in work" in what:  # a policy's note may begin with any word
            where = what.index("in work")
            found.append((now_ns, what[where + 1], what[where + 3]))
    return found


def _before(request: RequestRecord, others: Sequence[RequestRecord]) -> str:
    """Batches of other requests that a lane began, or still ran, while this request waited for its first one."""
    arrived_ns, own = request.log[0][0], _launches(request)
    until_ns = own[0][0] if own else request.log[-1][0]
    own_works = {work for _, work, _ in own}
    lanes = {own[0][2]} if own else None
    works: Dict[int, Tuple[str, str]] = {}
    for other in others:
        ended_ns = other.log[-1][0] if other.ended else until_ns
        for at_ns, work, lane in _launches(other):
            is_before = at_ns <= until_ns and ended_ns > arrived_ns and work not in own_works
            if is_before and (lanes is None or lane in lanes):
                works.setdefault(work, (other.app.name, lane))
    counts: Dict[Tuple[str, str], int] = {}
    for work in sorted(works):
        counts[works[work]] = counts.get(works[work], 0) + 1
    rows: List[Any] = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    told = [
        f"{count} {'batch' if count == 1 else 'batches'} of app {app} on {lane}"
        for (app, lane), count in rows[:APPS_TOLD_MAX]
    ]
    return ", ".join(told) + (f" and {len(rows) - APPS_TOLD_MAX} more" if len(rows) > APPS_TOLD_MAX else "")
