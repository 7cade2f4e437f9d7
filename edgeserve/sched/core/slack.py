"""The time for which a lane may be kept, busy or idle, before a request is late: all code that keeps one asks here.

Three kinds of requests may be delayed: waiting ones (``requests/ready_jobs.py``), critical ones that are expected
(``Board.spares_critical``), and any that arrives while the lane is kept. Reads the tables and changes nothing.
"""

from __future__ import annotations

from typing import Iterator, Sequence

from edgeserve.priority_class import CLASSES, RESERVED
from edgeserve.sched.core.state import State
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane
from edgeserve.units import FOREVER_NS


class Slack:
    """Finds requests that would be late behind a batch on a lane, or behind a lane that idles."""

    def __init__(self, state: State) -> None:
        self._state = state

    def waiting(self, lane: Lane, classes: Sequence[str] = CLASSES, but: str = "") -> Iterator[Job]:
        """The jobs of these classes that wait and could run on the lane, those of model ``but`` left out."""
        for priority_class in classes:
            by_model = self._state.ready.of[priority_class]
            for model in lane.models:
                if model != but:
                    for _, _, job in by_model[model]:
                        if not job.lane or job.lane == lane.name:
                            yield job

    def spares_arrivals(self, lane: Lane, takes_ns: int, since_ns: int = -FOREVER_NS, but: App | None = None) -> bool:
        """True if a request that arrives just after the lane began to be kept for ``takes_ns`` could still be answered
        in time, for every app (except ``but``) that uses the lane and was asked since then."""
        state = self._state
        for app in state.board.apps_on[lane.name]:
            if (
                takes_ns + state.costs[app.name].alone_ns > app.slo_ns
                and app is not but
                and state.admission[app.name].last_ns >= since_ns
            ):
                return False
        return True

    def spares_open(self, lane: Lane, until_ns: int) -> bool:
        """True if no open request that may still need the lane could be late if it is kept until then: none waits for
        it, and the ones elsewhere now, or held by their streams, have time enough afterwards."""
        if next(self.waiting(lane), None) is not None:
            return False
        state = self._state
        for app in state.board.apps_on[lane.name]:
            admission = state.admission[app.name]
            if not admission.pending or (app.simple and app.stream == "none"):
                continue  # its requests have one job each, which runs
            due_ns = until_ns + state.costs[app.name].alone_ns
            for theirs in admission.clients.values():
                for request in theirs.values():
                    if request.deadline_ns < due_ns and not (app.simple and request.jobs):
                        return False
        return True

    def late_behind(
        self,
        lane: Lane,
        ends_ns: int,
        careful_ns: int,
        sooner_ns: int,
        apps: Sequence[str] = (),
    ) -> Iterator[Job]:
        """The waiting jobs of other apps than ``apps`` that would be late if the lane is kept
        until ``ends_ns`` (critical ones: until ``careful_ns``, and by the careful estimate of their own time), in time
        if it is free at ``sooner_ns``, and that no other lane could run now."""
        state, now = self._state, self._state.board.now_ns
        device = state.devices[lane.device]
        for priority_class in CLASSES if state.ready.count else ():
            for model in lane.models:
                latency = state.latency[model, lane.name]
                late_ns = ends_ns + latency.alone_likely_ns
                if priority_class in RESERVED:
                    late_ns = max(late_ns, careful_ns + latency.alone_ns)
                rows = state.ready.due_between(priority_class, model, sooner_ns + latency.alone_likely_ns, late_ns)
                if not rows or not device.is_resident(model):
                    continue
                if any(
                    other is not lane and other.accepts(now) and state.board.is_resident(model, other)
                    for other in state.lanes_of[model]
                ):
                    continue
                for _, _, job in rows:
                    if job.request.app.name not in apps and (not job.lane or job.lane == lane.name):
                        yield job
