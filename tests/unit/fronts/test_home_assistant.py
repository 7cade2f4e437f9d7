"""The figures of apps that Home Assistant shows."""

from __future__ import annotations

from edgeserve.fronts.home_assistant import app_of
from edgeserve.live.stats import AppCounts
from edgeserve.sched.protocol.actions import OUTCOMES, LatencyBreakdown, Outcome


def test_each_request_is_counted_once():
    counts = AppCounts()
    counts.received = 10
    counts.completed(1_000_000, False, LatencyBreakdown(0, 0, 0, 0))
    for outcome in set(OUTCOMES) - {Outcome.COMPLETED, Outcome.CANCELLED}:
        counts.ended(outcome, "why")
    told = app_of(counts.table())
    assert told["completed"] + told["refused"] + told["failed"] + told["open"] == 10
    assert (told["refused"], told["open"]) == (2, 6)
