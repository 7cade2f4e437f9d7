"""Events as people see them."""

from __future__ import annotations

from edgeserve.sched.protocol.events import JobId, JobResult


def test_a_result_is_shown_as_it_is_written():
    result = JobResult(JobId(7, "look", (1,)), parts=3, hints={"part.work": 2.0})
    assert eval(repr(result)) == result
