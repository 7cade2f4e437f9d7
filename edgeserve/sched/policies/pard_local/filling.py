"""Who fills a cohort's batch that is not full: requests that wait and have jobs at the same node (``pard_local``).

That happens behind fan-outs, where requests have different numbers of parts: a cohort's last batch of parts is small
then, and the parts of the next requests are there when functions on other lanes made them. Pure, but for the budget.
"""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.plan.remaining_work import Member, Pipeline
from edgeserve.sched.policy_api.budget import Budget
from edgeserve.sched.protocol.events import CLASSES
from edgeserve.sched.requests.states import READY, Job

LOOKED_AT_MAX = 256
"""Waiting requests that are looked at for one batch, the tightest."""


class Filling(NamedTuple):
    """What may be added to a batch. ``slack_ns``: how much longer it may take without making anybody late.
    ``hopeful_ns``: requests due then or later can be in time with the next cohort. ``rank_max``: of no less urgent a
    class."""

    lane: str
    slack_ns: int
    hopeful_ns: int
    rank_max: int


def may_be_filled(pipeline: Pipeline, jobs: Sequence[Job]) -> bool:
    """Whether jobs of other requests may join these, in a pipeline with fan-outs: behind one, where all work is
    usual."""
    return jobs[0].node.index > pipeline.fan_outs[0] and pipeline.work_of(jobs) is None


def filled(
    jobs: List[Job],
    rows: Sequence[Tuple[int, int, Member]],
    skip: Sequence[Member],
    latency: BatchTime,
    filling: Filling,
    budget: Budget,
) -> List[Job]:
    """The jobs of a batch, and those of waiting requests that join it, the most urgent class and the tightest first.

    Requests with hope join as long as the time that they add is no more than they would take in full batches, and no
    more than the slack. Places that are left in a size that runs anyway cost nothing: any request may have them.
    """
    if len(jobs) >= latency.size_max or budget.left <= 0:
        return jobs
    node, places = jobs[0].node, latency.size_max - len(jobs)
    ours = {member.request.id for member in skip}
    ranked: List[Tuple[bool, int, int, int, Job]] = []
    for due_ns, _, member in rows[:LOOKED_AT_MAX]:
        rank = CLASSES.index(member.request.klass)
        budget.left -= 1
        if member.request.id in ours or rank > filling.rank_max or member.foretold:
            continue
        for job in member.jobs.values():
            if job.state == READY and job.node is node and (not job.lane or job.lane == filling.lane):
                ranked.append((due_ns < filling.hopeful_ns, rank, due_ns, job.seq, job))
    ranked.sort(key=lambda row: row[:4])
    hopeful = min(places, len([row for row in ranked if not row[0]]))
    size = filled_size(len(jobs), hopeful, latency, filling.slack_ns)
    return jobs + [row[4] for row in ranked[: size - len(jobs)]]


def filled_size(count: int, more: int, latency: BatchTime, slack_ns: int) -> int:
    """The size of a batch of ``count`` jobs that up to ``more`` others may join."""
    found = latency.size_for[count]
    have_ns, full_ns = latency.likely_ns[found], latency.likely_ns[latency.size_max]
    largest = latency.size_for[count + more]
    for size in latency.sizes:
        if found < size <= largest:
            extra_ns = latency.likely_ns[size] - have_ns
            added = min(size, count + more) - count
            if extra_ns <= slack_ns and extra_ns * latency.size_max <= added * full_ns:
                found = size
    return found
