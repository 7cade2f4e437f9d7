"""Cuts: which batches of sequence models end after their present step, since others cannot wait for their end.

Such a batch can be interrupted between its steps (and the turns in which it reads prompts, where its model bounds
them). It is cut for a job of another app that would be late behind it and in time after one step, and when its own
policy asks for that.
"""

from __future__ import annotations

from edgeserve.sched.core.slack import Slack
from edgeserve.sched.core.state import State
from edgeserve.sched.protocol.actions import CutBatch
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Work

CUTS_MAX = 64
"""One job has at most so many batches cut. Each is one more in which others were started all the same."""


class Cuts:
    """Looks at every batch of a sequence model that runs. Changes only ``work.cut_ns``."""

    def __init__(self, state: State, slack: Slack) -> None:
        self._state = state
        self._slack = slack

    def run(self) -> None:
        """Cut what must be cut now, where anything waits for its lane. O(batches of sequence models * models of their
        lanes)."""
        for work, _ in list(self._state.sequences.working.values()):
            if (
                not (self._state.ready.count or len(work.lane.works) > 1)
                or work.cut_ns is not None
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
        """A job of another app that would be late behind the batch, and in time after its present step: one that stands
        behind it on the lane, or one that waits."""
        lane, now = work.lane, self._state.board.now_ns
        latency = self._state.latency[work.model, lane.name]
        slower_ns = work.expected_ns * latency.slowest_ns[work.size] // max(1, latency.likely_ns[work.size])
        ends_ns = max(now, work.starts_ns + work.expected_ns)
        careful_ns = max(ends_ns, work.starts_ns + slower_ns)
        sooner_ns = now + work.step_ns
        apps = [job.request.app.name for job in work.jobs]
        for behind in list(lane.works)[1:]:
            alone_ns = self._state.latency[behind.model, lane.name].alone_likely_ns
            for job in behind.jobs:
                if (
                    sooner_ns + alone_ns <= job.deadline_ns < ends_ns + alone_ns
                    and job.request.app.name not in apps
                    and job.cuts < CUTS_MAX
                ):
                    return job
        for job in self._slack.late_behind(lane, ends_ns, careful_ns, sooner_ns, apps):
            if job.cuts < CUTS_MAX:
                return job
        return None
