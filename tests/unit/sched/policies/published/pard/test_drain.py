"""Draining with every queue full, in virtual time, under each of PARD's rules: it ends, and no alarm spins."""

from __future__ import annotations

import heapq

import pytest
from exact_device import model

from edgeserve.config.loading import parse_config
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.policies.published.pard.rules import COLLECTS, ORDERS, RULES
from edgeserve.sched.protocol.actions import FinishRequest, RunBatch
from edgeserve.sched.protocol.events import (
    DrainRequested,
    JobResult,
    Request,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
)

MS = 10**6
REQUESTS = 30
PARTS = 3
CHECKED_EVERY = 16  # steps: the invariants are slow


def reader(kind, on_late, lanes, **options):
    """The shape of ``examples/reader``: networks on one lane, host functions between them on another, or a lane for
    each model. (Every batch takes twice what a single lane can carry at this load.)"""
    where = {"detect": "net", "find": "host", "read": "net", "join": "host"}
    if lanes == "own":
        where = {name: f"{name}0" for name in where}
    times = {"detect": (6, 0, 1), "find": (1, 0, 1), "read": (2, 2, 4), "join": (1, 0, 1)}
    return {
        "lane": {name: {} for name in dict.fromkeys(where.values())},
        "model": {name: model(*times[name], lanes=[where[name]]) for name in where},
        "policy": {"p": {"kind": kind, **options}},
        "app": {
            "app": {
                "slo": "100ms",
                "on_late": on_late,
                "node": [
                    {"name": "detect"},
                    {"name": "find", "fan_out": True},
                    {"name": "read"},
                    {"name": "join", "gather": True},
                ],
            }
        },
    }


class Play:
    """Lanes that take twice as long as expected (a machine under load), and the scheduler's own alarm."""

    def __init__(self, table):
        self.scheduler = build_scheduler(parse_config(table))
        self.now_ns, self.works, self.ends = 0, [], {}
        self.idle = self.steps = 0

    def step(self, *events):
        actions = self.scheduler.step(self.now_ns, list(events))
        self.steps += 1
        self.idle += not events and not actions
        for action in actions:
            if isinstance(action, RunBatch):
                heapq.heappush(self.works, (self.now_ns + 2 * action.expected_ns, action.work_id, self.now_ns, action))
            elif isinstance(action, FinishRequest):
                assert action.request_id not in self.ends, f"{action} ends for the second time"
                self.ends[action.request_id] = action
        if self.steps % CHECKED_EVERY == 0:
            self.scheduler.check()

    def turn(self):
        """Whatever comes next: a lane's answer, or the alarm. False when nothing does."""
        wake_ns = self.scheduler.wake_at()
        if self.works and (wake_ns is None or self.works[0][0] <= wake_ns):
            self.now_ns, _, started_ns, work = heapq.heappop(self.works)
            results = tuple(JobResult(job, parts=PARTS if job.node == "find" else None) for job in work.jobs)
            self.step(WorkFinished(work.work_id, started_ns, self.now_ns, results))
            return True
        if wake_ns is not None and (self.works or self.scheduler.open_count):
            assert wake_ns > self.now_ns
            self.now_ns = wake_ns
            self.step()
            return True
        return False


def fill(table):
    """Requests within 45 ms, tight and loose, and a few steps for the pipeline to fill: then the drain."""
    play = Play(table)
    for number in range(1, REQUESTS + 1):
        at_ns = number * MS
        while play.works and play.works[0][0] <= at_ns:
            play.turn()
        play.now_ns = at_ns
        due_ns = at_ns + (15 + number * 37 % 120) * MS
        play.step(RequestArrived(Request(number, "app", at_ns, due_ns, on_late=table["app"]["app"]["on_late"])))
    play.step(DrainRequested())
    return play


def cases(kind):
    """Each rule with both ways to collect, both kinds of lanes, and every end of the queue in turn."""
    if kind == "pard_local":
        return [{"admit": admit} for admit in (True, False)]
    return [
        {
            "rule": rule,
            "collect": COLLECTS[index % 2],
            "order": ORDERS[index % len(ORDERS)],
            "samples": 20,
            "sync_ms": 20.0,
            "threshold_ms": 1.0,
            "recheck": index % 3 == 0,
        }
        for index, rule in enumerate(list(RULES) * 2)
    ]


@pytest.mark.worlds
@pytest.mark.parametrize("on_late", ["drop", "partial", "answer"])
@pytest.mark.parametrize("lanes", ["shared", "own"])
@pytest.mark.parametrize("kind", ["pard", "pard_local"])
def test_a_full_queue_drains(kind, lanes, on_late):
    for options in cases(kind):
        play = fill(reader(kind, on_late, lanes, **options))
        began_ns, open_count = play.now_ns, play.scheduler.open_count
        play.idle = play.steps = 0
        while play.turn():
            assert play.steps < 5000, f"{options}: {play.idle} of {play.steps} steps brought nothing"
        assert len(play.ends) == REQUESTS and play.scheduler.open_count == 0, options
        assert all(policy.queued() == [] for policy in play.scheduler.policies), options
        # An alarm may find that there is nothing to do, but not more often than batches end and requests expire.
        assert play.idle <= 4 * (play.steps - play.idle) + 10, f"{options}: {play.idle} of {play.steps}"
        assert open_count > 0 or on_late != "answer", options
        if on_late != "answer":  # everybody's deadline is over
            assert play.now_ns <= began_ns + 400 * MS, options


@pytest.mark.parametrize("kind", ["pard", "pard_local"])
def test_cancelling_what_is_left_of_a_drain_ends_it_at_once(kind):
    for index, options in enumerate(cases(kind)):
        play = fill(reader(kind, "answer", ("shared", "own")[index % 2], **options))
        left = [number for number in range(1, REQUESTS + 1) if number not in play.ends]
        assert left, options
        play.step(*[RequestCancelled(number) for number in left])
        assert len(play.ends) == REQUESTS and play.scheduler.open_count == 0, options
        while play.turn():  # orphans come back, and start nothing
            assert play.steps < 500, options
        assert not play.works and not play.scheduler.busy, options
