"""The queues of the policies that serve in order of arrival: ``fifo``, ``clipper`` and ``nexus``."""

from __future__ import annotations

from typing import Dict, Iterator, List

from edgeserve.priority_class import YIELDING
from edgeserve.sched.policies.common.bidding import take
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.published.common.background import must_yield
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane, Work


class InOrder:
    """One queue per model, the job that has been ready longest first. Knows no deadline and no batch size."""

    def __init__(self) -> None:
        self.queues: Dict[str, JobQueue] = {}

    def __iter__(self) -> Iterator[Job]:
        return (job for queue in self.queues.values() for job in queue)

    def add(self, job: Job) -> None:
        """The job waits behind the jobs that were ready before it."""
        queue = self.queues.get(job.node.model)
        if queue is None:
            queue = self.queues[job.node.model] = JobQueue()
        queue.add(job.ready_ns, job)

    def remove(self, job: Job) -> None:
        """The job no longer waits."""
        self.queues[job.node.model].remove(job)

    def started(self, work: Work) -> None:
        """The jobs of a work no longer wait."""
        queue = self.queues[work.model]
        for job in work.jobs:
            queue.remove(job)

    def oldest(self, lane: Lane, board: Board) -> str | None:
        """The model whose first runnable job has been ready longest on this lane, or None. O(models)."""
        oldest: Job | None = None
        for model, queue in self.queues.items():
            if not queue.rows or model not in lane.models or not board.is_resident(model, lane):
                continue
            for head in self.first(model, lane, 1, board):
                if oldest is None or (head.ready_ns, head.seq) < (oldest.ready_ns, oldest.seq):
                    oldest = head
        return None if oldest is None else oldest.node.model

    def first(self, model: str, lane: Lane, count: int, board: Board) -> List[Job]:
        """The first ``count`` jobs of a model that may run on this lane. Background jobs alone, where they would have
        to yield to a critical request, let others go first."""
        jobs = take(self.queues[model], lane, 0, count)
        if must_yield(jobs, lane, board):
            others = [
                job
                for job in self.queues[model]
                if job.request.priority_class not in YIELDING and job.lane in ("", lane.name)
            ]
            return others[:count]
        return jobs
