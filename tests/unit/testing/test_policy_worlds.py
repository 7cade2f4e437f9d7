"""Policies with one planted bug each: the conformance suite must notice every one. And the worlds must contain the
trouble that they are drawn for."""

from __future__ import annotations

from collections import Counter

import pytest
from honest_policies import Plain

from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.common.bidding import bid_for
from edgeserve.sched.published.baselines.fifo import Fifo
from edgeserve.testing.policy_conformance import PolicyConformance
from edgeserve.testing.policy_worlds import MARKS, run_elsewhere, run_world
from edgeserve.testing.soak.language import LANGUAGE_MARKS


class Honest(Plain):
    """Runs the oldest jobs of one model in the smallest batch that holds them, and keeps a row per work."""

    def __init__(self, name, apps, options):
        super().__init__(name, apps, options)
        self.rows = {}

    def on_started(self, work, board):
        super().on_started(work, board)
        self.rows[work.id] = [job.node.name for job in work.jobs]

    def on_finished(self, work, started_ns, finished_ns, board):
        del self.rows[work.id]

    def on_refused(self, work, board):
        del self.rows[work.id]

    def on_lost(self, work, board):
        del self.rows[work.id]

    def bid(self, lane, board):
        jobs = self.runnable(lane, board)
        return self.offer([job for job in jobs if job.node.model == jobs[0].node.model], lane, board) if jobs else None

    def offer(self, jobs, lane, board):
        latency = board.latency(jobs[0].node.model, lane.name)
        jobs = jobs[: latency.size_max]
        size = latency.size_for[len(jobs)]
        return bid_for(jobs, size, latency.likely_ns[size], board)


class ForgetsLost(Honest):
    """A batch that is lost with its lane leaves its row behind."""

    def on_lost(self, work, board):
        pass


class ForgetsRefused(Honest):
    """A batch that was refused leaves its row behind."""

    def on_refused(self, work, board):
        pass


class AssumesSizeOne(Honest):
    """Runs one job at a time, in a batch of 1."""

    def bid(self, lane, board):
        jobs = self.runnable(lane, board)
        return bid_for(jobs[:1], 1, board.latency(jobs[0].node.model, lane.name).likely_ns[1], board) if jobs else None


class PadsToOne(Honest):
    """Bids a batch of 1 for any sizes of the model; takes the time from the smallest."""

    def bid(self, lane, board):
        jobs = self.runnable(lane, board)
        return (
            bid_for(jobs[:1], 1, board.latency(jobs[0].node.model, lane.name).alone_likely_ns, board) if jobs else None
        )


class LeaksSettled(Honest):
    """Counts what waits per request, and keeps the count when a sibling leaves with a settled join."""

    def __init__(self, name, apps, options):
        super().__init__(name, apps, options)
        self.waiting = Counter()

    def on_ready(self, job, board):
        super().on_ready(job, board)
        self.waiting[job.request.id] += 1

    def on_started(self, work, board):
        super().on_started(work, board)
        for job in work.jobs:
            self.waiting[job.request.id] -= 1
            if not self.waiting[job.request.id]:
                del self.waiting[job.request.id]


class KeepsGone(Honest):
    """Leaves a job that is gone in its queue."""

    def on_gone(self, job, board):
        pass


class IgnoresBinding(Honest):
    """Bids a job on any lane of its model, also one whose state another lane holds."""

    def runnable(self, lane, board):
        return [
            job
            for _, job in sorted(self.jobs.items())
            if job.node.model in lane.models and board.is_resident(job.node.model, lane)
        ]


class TakesInBid(Honest):
    """Takes the jobs out of its queue when it bids."""

    def bid(self, lane, board):
        bid = super().bid(lane, board)
        for job in bid.jobs if bid is not None else ():
            del self.jobs[job.seq]
        return bid

    def on_started(self, work, board):
        self.rows[work.id] = []


class TurnsInBid(Honest):
    """Takes turns between models and counts the turns in ``bid``."""

    def __init__(self, name, apps, options):
        super().__init__(name, apps, options)
        self.turn = 0

    def bid(self, lane, board):
        jobs = self.runnable(lane, board)
        if not jobs:
            return None
        self.turn += 1
        models = sorted({job.node.model for job in jobs})
        model = models[self.turn // 2 % len(models)]
        return self.offer([job for job in jobs if job.node.model == model], lane, board)


class BySet(Honest):
    """Takes the first model of a set of names."""

    def bid(self, lane, board):
        jobs = self.runnable(lane, board)
        models = {job.node.model for job in jobs}
        for model in models:
            return self.offer([job for job in jobs if job.node.model == model], lane, board)
        return None


class OnlyShallow(Honest):
    """Keeps one batch per lane: a second one on a deep lane takes the first one's row."""

    def on_started(self, work, board):
        Plain.on_started(self, work, board)
        assert work.lane.name not in self.rows, f"{work.lane.name} has a batch already"
        self.rows[work.lane.name] = work.id

    def on_finished(self, work, started_ns, finished_ns, board):
        del self.rows[work.lane.name]

    def on_refused(self, work, board):
        del self.rows[work.lane.name]

    def on_lost(self, work, board):
        del self.rows[work.lane.name]


class SettlesEnded(Honest):
    """Settles the request of a job that leaves: not allowed."""

    def on_gone(self, job, board):
        super().on_gone(job, board)
        board.settle(job.request)


RULE = PolicyConformance.test_its_records_hold_through_lost_lanes_settled_joins_and_batches_without_1
TWICE = PolicyConformance.test_bids_that_are_asked_twice_decide_nothing_else
SETS = PolicyConformance.test_decisions_do_not_depend_on_the_order_of_sets

BUGS = [
    (ForgetsLost, RULE, "still holds"),
    (ForgetsRefused, RULE, "still holds"),
    (AssumesSizeOne, RULE, "^1$"),
    (PadsToOne, RULE, "in size 1: sizes are"),
    (LeaksSettled, RULE, "still holds"),
    (KeepsGone, RULE, "stands in a queue"),
    (IgnoresBinding, RULE, "is not ready for model"),
    (TakesInBid, TWICE, "stand in no queue"),
    (TurnsInBid, TWICE, "changed later decisions"),
    (OnlyShallow, RULE, "has a batch"),
    (SettlesEnded, RULE, "end and settle no request"),
    (BySet, SETS, "decides otherwise"),
]


def suite_of(policy):
    class Suite(PolicyConformance):
        kind = policy.__name__

    return Suite()


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for policy in (Honest, *(bug for bug, _, _ in BUGS)):
        monkeypatch.setitem(POLICIES, policy.__name__, policy)


@pytest.mark.parametrize(("policy", "test", "says"), BUGS, ids=[bug.__name__ for bug, _, _ in BUGS])
def test_conformance_notices(policy, test, says):
    with pytest.raises(Exception, match=says):
        test(suite_of(policy))


class TestHonest(PolicyConformance):
    """Without a bug the same policy passes everything."""

    kind = "Honest"
    soak_seeds = (1, 2)

    def test_requests_without_hope_are_not_left_waiting(self):
        pytest.skip("it drops nothing before the deadline")


def test_the_worlds_contain_what_they_are_drawn_for():
    seen = Counter()
    for seed in PolicyConformance.world_seeds:
        seen.update(run_world(seed, "Honest", {}).marks)
    assert [mark for mark in MARKS if not seen[mark]] == []


def test_worlds_with_a_language_model_contain_what_they_are_drawn_for():
    seen = Counter()
    for seed in (1, 2):
        seen.update(run_world(seed, "Honest", {}, language=True).marks)
    assert [mark for mark in LANGUAGE_MARKS if not seen[mark]] == []


def test_a_failure_in_the_other_process_is_told():
    with pytest.raises(AssertionError, match="failed in another process(.|\n)*still holds"):
        run_elsewhere(1, "ForgetsLost", {})


# --- joins that are left to the policy --------------------------------------------------------------------------------


def test_a_policy_is_named_by_its_module(monkeypatch):
    class Suite(PolicyConformance):
        kind = "edgeserve.sched.published.baselines.fifo:Fifo"
        world_seeds = (1,)

    monkeypatch.setitem(POLICIES, Suite.kind, Fifo)  # the table is the process's: it is forgotten afterwards
    RULE(Suite())
    SETS(Suite())
