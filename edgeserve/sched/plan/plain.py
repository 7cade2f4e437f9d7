"""Plain work: models of one app node each, or of paths whose models share no lane. The batch is that of
``policies/common/batches.py``."""

from __future__ import annotations

from typing import Dict, List, Sequence

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.plan.candidate import K_SHARE, Behind, Candidate, worth_of
from edgeserve.sched.plan.source import LOOK_BEHIND, Source, path_part, queue_behind
from edgeserve.sched.policies.common.batches import Batches, steps_more_ns
from edgeserve.sched.policies.common.bidding import outlook
from edgeserve.sched.policies.common.model_queues import ModelQueues
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Policy
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.requests.worth import alike_ns
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import FOREVER_NS

RISE, RISE_MAX = 4, 2.0
"""A batch counts twice as dense if four times as many jobs of its model were given up since it ran last as the batch
has; three times at most. So the smaller of two equal apps has its turn."""


class KeptBatch:
    """A batch that was made for a start at ``at_ns``, and what it was made of. Until ``until_ns`` nothing that waits is
    due so soon that another start makes another batch of it."""

    __slots__ = ("candidate", "at_ns", "until_ns", "_versions", "_worths")

    def __init__(self, candidate: Candidate, queues: ModelQueues, latency: BatchTime, lane: Lane, at_ns: int) -> None:
        takes_ns = [*latency.slowest_ns.values(), *latency.likely_ns.values()]
        self.candidate = candidate
        self.at_ns = at_ns
        self.until_ns = min([queue.rows[0][0] for queue in queues.queues if queue.rows])
        self.until_ns -= 2 * max(takes_ns) + lane.dispatch_gap.careful_ns  # two batches are looked ahead
        self._versions = (queues.version, latency.version, lane.dispatch_gap.version)
        apps = {job.request.app.name: job.request.app for job in candidate.jobs}
        self._worths = [(app, alike_ns(app)) for app in apps.values()]

    def stands(self, queues: ModelQueues, latency: BatchTime, lane: Lane, at_ns: int) -> bool:
        """True if the batch made anew would be the same."""
        if max(at_ns, self.at_ns) >= self.until_ns or (
            self._versions != (queues.version, latency.version, lane.dispatch_gap.version)
        ):
            return False
        for app, worth in self._worths:  # noqa: SIM110 a generator costs a call per app
            if alike_ns(app) != worth:
                return False
        return True


@mypyc_attr(allow_interpreted_subclasses=True)
class PlainModels(Source):
    """Jobs of models whose batches take about the same time for any inputs."""

    kind = "plain"

    def __init__(self, owner: Policy) -> None:
        super().__init__(owner)
        self._batches = Batches(owner.apps)
        self._models = self._batches.models
        self._count = 0  # jobs that wait
        self._kept: Dict[str, Dict[str, KeptBatch]] = {}  # by model and lane

    def on_ready(self, job: Job, board: Board) -> None:
        self._models[job.node.model].add(job)
        self._count += 1
        self.is_idle = False

    def on_gone(self, job: Job, board: Board) -> None:
        self._models[job.node.model].remove(job)
        self._kept.pop(job.node.model, None)
        self._count -= 1

    def on_started(self, work: Work, board: Board) -> None:
        self._models[work.model].started(work.jobs)
        self._kept.pop(work.model, None)
        self._count -= len(work.jobs)
        self.is_idle = not self._count

    def forget(self) -> None:
        super().forget()
        self._kept.clear()

    def plan(self, board: Board) -> None:
        for queues in self._models.values():
            if queues.count:
                self._batches.drop_late(queues, board)
        self.is_idle = not self._count

    def queued(self) -> List[Job]:
        return self._batches.queued()

    def offers(self, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        found: List[Candidate] = []
        for queues in self._models.values():
            if queues.count and queues.model in lane.models and board.is_resident(queues.model, lane):
                item = self._offer(queues, lane, at_ns, board)
                if item is not None:
                    found.append(item)
        return found

    def may_grow(self, model: str) -> bool:
        return True

    def smaller(self, candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        found: List[Candidate] = []
        queues = self._models[candidate.model]
        latency = lane.models[candidate.model]
        filled = [queue for queue in queues.queues if queue.rows]
        for size in latency.sizes:
            if size < len(candidate.jobs):
                jobs = self._batches.jobs_of(filled, size, lane, latency, at_ns)
                if jobs:
                    item = self._candidate(jobs, queues, latency, at_ns, board)
                    item.press = min(item.press, candidate.press)  # a long batch is not more urgent for being long
                    found.append(item)
        return found

    def behind(self, candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Behind]:
        queues = self._models[candidate.model]
        if queues.count == len(candidate.jobs) or queues.takes_steps:
            return ()
        queue = [queue for queue in queues.queues if candidate.jobs[0] in queue][0]  # its jobs are worth the same
        chosen = {job.seq for job in candidate.jobs}
        first = queue.position(at_ns + 2 * candidate.takes_ns)
        rows = queue.rows[first : first + LOOK_BEHIND]
        return queue_behind([row[0] for row in rows if row[1] not in chosen], candidate, at_ns)

    def _offer(self, queues: ModelQueues, lane: Lane, at_ns: int, board: Board) -> Candidate | None:
        """The best batch of a model."""
        latency = lane.models[queues.model]
        at_ns = board.woken_ns(lane, latency, at_ns)
        known = self._kept.get(queues.model)
        kept = None if known is None else known.get(lane.name)
        if kept is not None and kept.stands(queues, latency, lane, at_ns):
            kept.candidate.wait(at_ns - kept.at_ns)
            kept.at_ns = at_ns
            return kept.candidate
        jobs = self._batches.best_jobs(queues, lane, latency, at_ns)
        if not jobs:
            return None
        found = self._candidate(jobs, queues, latency, at_ns, board)
        if (
            not queues.takes_steps
            and len([queue for queue in queues.queues if queue.rows]) == 1
            and not [job for job in jobs if job.node.succs or job.request.successor_ns is not None]
            and not [job for job in jobs if job.key != job.deadline_ns]  # what is late counts less all the time
        ):
            self._kept.setdefault(queues.model, {})[lane.name] = KeptBatch(found, queues, latency, lane, at_ns)
        return found

    def _candidate(
        self, jobs: Sequence[Job], queues: ModelQueues, latency: BatchTime, at_ns: int, board: Board
    ) -> Candidate:
        size = latency.size_for[len(jobs)]
        takes_ns = latency.likely_ns[size]
        after_ns, _, priority_class = outlook(jobs, takes_ns, board)
        share_ns = latency.share_ns
        gain = worth = 0.0
        slack_ns = FOREVER_NS
        counted = set()
        alike: RequestRecord | None = None  # the last request; what others like it count is not asked again
        for job in jobs:
            request = job.request
            if job.part:
                if request.id in counted:
                    continue
                counted.add(request.id)
            if (
                alike is None
                or alike.app is not request.app
                or alike.priority_class != request.priority_class
                or alike.value != request.value
                or alike.cost_share_ns != request.cost_share_ns
                or job.node.succs
            ):
                worth = worth_of(request)
                alike = request
                if job.node.succs:
                    worth *= path_part(job, share_ns, board)
                    alike = None
            due_ns = request.deadline_ns
            if request.successor_ns is not None:
                begin_by_ns = request.begin_by_ns(board.now_ns)
                if begin_by_ns is not None:
                    due_ns = min(due_ns, begin_by_ns + after_ns)
            ends_ns = at_ns + after_ns
            if queues.takes_steps:  # it leaves when its own steps are over
                ends_ns = at_ns + takes_ns + steps_more_ns(job, takes_ns, latency)
                due_ns = min(due_ns, job.deadline_ns)
            if ends_ns <= due_ns:
                gain += worth
                if due_ns - ends_ns < slack_ns:
                    slack_ns = due_ns - ends_ns
            elif request.on_late == "answer":
                soft_ns = max(1, request.deadline_ns - request.arrival_ns)
                gain += worth * soft_ns / (soft_ns + ends_ns - due_ns)
        first = jobs[0].request
        return Candidate(
            self,
            queues.model,
            jobs,
            size,
            takes_ns,
            latency.slowest_ns[size],
            gain * (1.0 + min(RISE_MAX, queues.lost / (RISE * len(jobs)))),
            slack_ns,
            round(K_SHARE * (first.deadline_ns - first.arrival_ns)),
            priority_class,
        )
