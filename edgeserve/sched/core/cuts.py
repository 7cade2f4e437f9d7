"""Cuts: which batches of sequence models end after their present step, since others cannot wait for their end.

A batch of many steps is one work, but its steps are where it can be interrupted, and the turns in which it reads
prompts, where its model bounds them. It is cut for a job of another app that would be late behind it and in time after
one step, and when its own policy asks for that. Knows no policy by name.
"""

from __future__ import annotations

from typing import Iterator

from edgeserve.sched.core.state import State
from edgeserve.sched.protocol.actions import CutBatch
from edgeserve.sched.requests.states import READY, Job
from edgeserve.sched.resources.lanes import Work

CUTS_MAX = 64
"""One job has at most so many batches cut. Each is one more in which others were started all the same."""


class Cuts:
    """Looks at every batch of a sequence model that runs. Changes only ``work.cut_ns``."""

    def __init__(self, state: State) -> None:
        self._state = state

    def run(self) -> None:
        """Cut what must be cut now. O(batches of sequence models * open requests of other apps)."""
        for work, _ in list(self._state.sequences.working.values()):
            if (
                work.cut_ns is not None
                or work.lost
                or work.lane.works[0] is not work
                or (work.steps_max == 1 and not self._state.sequences.models[work.model].prefill_tokens)
            ):
                continue
            job = self._kept_waiting(work)
            if job is not None:
                job.cuts += 1
                job.request.note(self._state.board.now_ns, "work", work.id, "is cut for", job.node.name)
            if job is not None or work.policy.cut(work, self._state.board):
                work.cut_ns = self._state.board.now_ns
                self._state.actions.append(CutBatch(work.id, work.lane.name))

    def _kept_waiting(self, work: Work) -> Job | None:
        """A job of another app that would be late behind the batch, and in time after its present step."""
        state, lane = self._state, work.lane
        now = state.board.now_ns
        ends_ns = max(now, work.starts_ns + work.expected_ns)
        for job in self._others(work):
            latency = state.latency.get((job.node.model, lane.name))
            if latency is None or job.cuts >= CUTS_MAX or (job.lane and job.lane != lane.name):
                continue
            alone_ns = latency.alone_likely_ns
            if ends_ns + alone_ns <= job.deadline_ns or now + work.step_ns + alone_ns > job.deadline_ns:
                continue
            if job.state == READY:
                if not state.devices[lane.device].is_resident(job.node.model):
                    continue
                if any(
                    other is not lane and other.accepts(now) and state.board.is_resident(job.node.model, other)
                    for other in state.lanes_of[job.node.model]
                ):
                    continue
            return job
        return None

    def _others(self, work: Work) -> Iterator[Job]:
        """Jobs of other apps that could run on the lane next: those behind the batch there, and those that are
        ready."""
        state, apps = self._state, {job.request.app.name for job in work.jobs}
        for behind in list(work.lane.works)[1:]:
            for job in behind.jobs:
                if job.request.app.name not in apps:
                    yield job
        for app in state.board.apps_on[work.lane.name]:
            admission = state.admission[app.name]
            if app.name in apps or not admission.pending:
                continue
            for requests in admission.clients.values():
                for request in requests.values():
                    for job in request.jobs.values():
                        if job.state == READY and job.node.model in work.lane.models:
                            yield job
