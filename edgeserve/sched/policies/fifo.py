"""First in, first out: the baseline that batches greedily and looks at no deadline.

The oldest ready job chooses the model; as many of its jobs as the largest batch holds go with it. Nothing is refused
and nothing dropped early: a request ends late, or when its deadline has passed while it waits.
"""

from __future__ import annotations

from typing import Dict, List, Sequence

from edgeserve.sched.apps import App
from edgeserve.sched.board import Board
from edgeserve.sched.jobqueue import JobQueue
from edgeserve.sched.lanes import Lane, Work
from edgeserve.sched.lifecycle import Job
from edgeserve.sched.parts import bid_for, take
from edgeserve.sched.policy import Bid, Policy


class Fifo(Policy):
    """Options: ``batch_max`` (0 = the model's largest profiled size)."""

    defaults = {"batch_max": 0}

    def __init__(self, name: str, apps: Sequence[App], options: Dict[str, object]) -> None:
        super().__init__(name, apps, options)
        self._batch_max = int(str(self.options["batch_max"]))
        self._queues: Dict[str, JobQueue] = {}

    def on_ready(self, job: Job, board: Board) -> None:
        queue = self._queues.get(job.node.model)
        if queue is None:
            queue = self._queues[job.node.model] = JobQueue()
        queue.add(job.ready_ns, job)

    def on_gone(self, job: Job, board: Board) -> None:
        self._queues[job.node.model].remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        queue = self._queues[work.model]
        for job in work.jobs:
            queue.remove(job)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        oldest: Job | None = None
        for model, queue in self._queues.items():
            if not queue.rows or model not in lane.models or not board.is_resident(model, lane):
                continue
            for head in take(queue, lane, 0, 1):
                if oldest is None or (head.ready_ns, head.seq) < (oldest.ready_ns, oldest.seq):
                    oldest = head
        if oldest is None:
            return None
        model = oldest.node.model
        latency = board.latency(model, lane.name)
        jobs = take(self._queues[model], lane, 0, min(latency.size_max, self._batch_max or latency.size_max))
        size = latency.size_for(len(jobs))
        return bid_for(jobs, size, latency.estimate_ns(size), board)

    def queued(self) -> List[Job]:
        return [job for queue in self._queues.values() for job in queue]
