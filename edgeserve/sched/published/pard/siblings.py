"""The lateness of a request's other branches: one branch need not run for a request that another one makes late.

PARD's test of a branch looks along that branch alone; a sibling that waits before a busier module is judged when its
own batch forms, and until then the quick branch has run for nothing (section 3.5 of the specification). An estimate
that is stored when the sibling is judged would not help: a request judged late is dropped, so a stored one is in time.
What tells is where the sibling stands *now*, so it is worked out when asked, from its lane; nothing is kept.
Knows no rule and no board.
"""

from __future__ import annotations

from typing import Mapping, Sequence, Set, Tuple

from edgeserve.sched.published.pard.state_planner import Planner
from edgeserve.sched.published.pard.worker import Worker
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.states import RUNNING, Job

JOBS_MAX = 16
"""A request with more jobs than that (a fan-out into many parts) is judged job by job: to look at all of them for each
of them would take time quadratic in their number."""


class Siblings:
    """Which nodes every request of some apps must pass in time, and when the jobs there will end the request."""

    __slots__ = ("_planner", "_homes", "_needed")

    def __init__(self, apps: Sequence[App], planner: Planner, homes: Mapping[int, Worker]) -> None:
        self._planner = planner
        self._homes = homes  # job.seq -> the worker that holds it
        self._needed: Set[Node] = set()  # no join behind them goes on without them
        for app in apps:
            for node in reversed(app.nodes):  # successors first
                if all(succ.join == "all" and succ in self._needed for succ in node.succs):
                    self._needed.add(node)

    def latest(self, job: Job, now_ns: int) -> Tuple[int, Job]:
        """When the slowest of a request's other jobs would end it at the soonest, and that job; (0, the job itself)
        where none has a say. O(jobs of the request)."""
        jobs = job.request.jobs
        latest_ns, slowest = 0, job
        if 1 < len(jobs) <= JOBS_MAX and job.request.on_late != "partial":
            for other in jobs.values():
                if other is not job and other.node in self._needed:
                    ends_ns = self._soonest_ns(other, now_ns) + self._planner.rest_of(other)
                    if ends_ns > latest_ns:
                        latest_ns, slowest = ends_ns, other
        return latest_ns, slowest

    def _soonest_ns(self, job: Job, now_ns: int) -> int:
        """When a job's batch ends at the soonest: one that waits cannot start before its lane is free, nor with a
        forming batch that is full."""
        module = self._planner.modules[job.node.model]
        if job.state == RUNNING:
            return max(now_ns, job.launched_ns + min(module.time_ns, *module.times_ns.values()))
        worker = self._homes.get(job.seq)
        if worker is None:
            return now_ns
        time_ns = min(module.time_ns, module.times_ns[worker.lane.name])
        starts_ns = worker.lane.available_ns(now_ns)
        if job.seq not in worker.forming and len(worker.forming) >= module.sizes[worker.lane.name]:
            starts_ns += time_ns
        return starts_ns + time_ns
