"""Inputs that are kept for probes: how many bytes they may hold, and what of them could change underneath."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeserve.config.loading import parse_config
from edgeserve.engines.base import Result
from edgeserve.live.request import LiveRequest, RequestValidator, request_of_call
from edgeserve.live.responders import RequestFuture
from edgeserve.live.retained_inputs import RetainedInputs, bytes_of
from edgeserve.live.value_flow import AppPlan
from edgeserve.live.values import RequestValues
from edgeserve.sched.protocol.actions import ReleaseInputs, RetainInputs, RunBatch
from edgeserve.sched.protocol.events import JobId, JobResult

JOB = JobId(1, "m", ())


def accepted(plan: AppPlan, values: RequestValues, inputs: Any) -> LiveRequest:
    """A checked request in the table."""
    request = request_of_call(plan.config.name, inputs)
    RequestValidator(plan).check(request, RequestFuture(lambda future: None), 0)
    request.id = 1
    values.add(request)
    return request


def kept_of(bytes_max: int = 1000, **inputs: Any) -> RetainedInputs:
    """A table that was asked to keep the one job of request 1."""
    plan = AppPlan(parse_config({"app": {"a": {"model": "m"}}, "model": {"m": {"engine": "synthetic"}}}).apps["a"])
    values = RequestValues()
    request = accepted(plan, values, inputs)
    kept = RetainedInputs(values, bytes_max)
    kept.retain(RetainInputs(JOB))
    values.end(request)
    return kept


def probe(probe: bool = True) -> RunBatch:
    return RunBatch(7, "cpu0", "m", (JOB,), 1, 0, 10, 5, None, probe)


def test_inputs_outlive_their_request_until_the_probe_takes_them() -> None:
    kept = kept_of(x=np.arange(10, dtype=np.float32), name="who")
    assert len(kept) == 1 and 40 < kept.bytes < 200
    assert kept.refusal(probe()) is None
    inputs, state = kept.launch(JOB)
    assert (inputs["x"].tolist(), inputs["name"], state) == (list(range(10)), "who", None)
    assert (len(kept), kept.bytes) == (0, 0)


def test_what_is_let_go_frees_its_bytes_and_its_probe_would_be_refused() -> None:
    kept = kept_of(x=np.zeros(10))
    kept.release(ReleaseInputs(JOB))
    kept.release(ReleaseInputs(JOB))
    assert (len(kept), kept.bytes) == (0, 0)
    refusal = kept.refusal(probe())
    assert refusal is not None and refusal.work.tag == probe() and refusal.work.work_id == 7
    assert kept.refusal(probe(False)) is None


def test_an_input_that_finds_no_room_is_not_kept() -> None:
    kept = kept_of(bytes_max=79, x=np.zeros(10))
    assert (len(kept), kept.bytes) == (0, 0)
    refusal = kept.refusal(probe())
    assert refusal is not None and "more than 79 bytes" in refusal.reason


def test_what_a_caller_could_write_into_is_copied_and_the_rest_is_not() -> None:
    mine, frame = np.arange(4.0), np.arange(4.0)
    frame.flags.writeable = False
    kept = kept_of(mine=mine, frame=frame)
    inputs, _ = kept.launch(JOB)
    mine[0] = 99
    assert inputs["mine"].tolist() == [0, 1, 2, 3]
    assert inputs["frame"] is frame


def test_a_part_that_looks_into_the_callers_array_is_copied_too() -> None:
    page = np.zeros((4, 4))
    plan = AppPlan(
        parse_config(
            {
                "app": {"a": {"node": [{"name": "cut", "fan_out": True}, {"name": "read"}]}},
                "model": {name: {"engine": "synthetic"} for name in ("cut", "read")},
            }
        ).apps["a"]
    )
    values = RequestValues()
    accepted(plan, values, {"page": page})
    values.launch(JobId(1, "cut", ()))
    own = np.ones(2)
    values.returned(JobId(1, "cut", ()), Result({}, parts=[{"line": page[1], "own": own}]))
    kept = RetainedInputs(values)
    kept.retain(RetainInputs(JobId(1, "read", (0,))))
    inputs, _ = kept.launch(JobId(1, "read", (0,)))
    page[:] = 7
    assert inputs["line"].tolist() == [0, 0, 0, 0] and inputs["own"] is own


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.zeros((3, 4), np.float32), 48),
        (np.zeros(100)[:2], 800),
        ([np.zeros(2), [np.zeros(1)]], 24),
        ({"a": np.zeros(2), "b": (np.zeros(2),)}, 32),
        (memoryview(b"12345"), 5),
    ],
)
def test_bytes_of_values_are_those_that_are_held(value: Any, expected: int) -> None:
    assert bytes_of(value) == expected


def test_bytes_of_what_is_no_array_are_about_its_size() -> None:
    assert 1000 <= bytes_of("x" * 1000) < 1200 and bytes_of(3) > 0


def test_nobody_learns_more_of_a_probe_than_whether_it_was_done() -> None:
    kept = kept_of()
    assert kept.returned(JOB, None, "boom") == JobResult(JOB, "failed", reason="boom")
    assert kept.returned(JOB, Result({"y": 1}, hints={"n": 3})) == JobResult(JOB)
    assert kept.returned(JOB, Result({}, state=object(), state_bytes=5, done=False)) == JobResult(JOB, "unfinished")
