"""What a decision of ``pard_local`` costs behind many requests that wait, in lines of Python that run."""

from __future__ import annotations

import sys

import pytest
from exact_device import MS, chain

from edgeserve.config.loading import parse_config
from edgeserve.sched.core import scheduler as scheduler_module
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import JobResult, Request, RequestArrived, WorkFinished

SLO_NS = 10**6 * MS


def lines_of(call):
    """How many lines run."""
    count = 0

    def see(frame, event, argument):
        nonlocal count
        count += event == "line"
        return see

    sys.settrace(see)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def costs(pending):
    """Of an arrival, and of the end of a batch, with so many requests waiting."""
    table = chain()
    table["server"] = {"pending_max": 2 * pending}
    table["app"]["app"].update(slo="1000s", pending_max=2 * pending)
    scheduler = build_scheduler(parse_config(table))
    arrivals = [RequestArrived(Request(index, "app", 0, SLO_NS + index)) for index in range(pending + 1)]
    batch = next(action for action in scheduler.step(0, arrivals[:pending]) if isinstance(action, RunBatch))
    arrival = lines_of(lambda: scheduler.step(MS, arrivals[pending:]))
    results = tuple([JobResult(job) for job in batch.jobs])
    ends_ns = MS + batch.expected_ns
    end = lines_of(lambda: scheduler.step(ends_ns, [WorkFinished(batch.work_id, MS, ends_ns, results)]))
    assert scheduler.open_count == pending + 1, "nobody has ended"
    return arrival, end


@pytest.mark.skipif(not scheduler_module.__file__.endswith(".py"), reason="a compiled scheduler runs no lines")
def test_a_decision_looks_at_no_more_behind_three_times_as_many():
    few, many = costs(500), costs(1500)
    assert many[0] < 1.1 * few[0]
    assert many[1] < 1.1 * few[1]
