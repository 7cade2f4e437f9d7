"""The flow of values: names, defaults, fan-outs and gathers, states, and when they are freed."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest

from edgeserve.config.loading import parse_config
from edgeserve.engines.base import Result
from edgeserve.errors import ConfigError, EngineError
from edgeserve.live.request import LiveRequest, RequestValidator, request_of_call
from edgeserve.live.responders import RequestFuture
from edgeserve.live.value_flow import AppPlan
from edgeserve.live.values import RequestValues, item_error, wrong_form
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import JobId, JobResult


def plan_of(app: Dict[str, Any]) -> AppPlan:
    nodes = app.get("node", [])
    models = {node["name"]: {"engine": "synthetic"} for node in nodes} or {app["model"]: {"engine": "synthetic"}}
    return AppPlan(parse_config({"app": {"a": app}, "model": models}).apps["a"])


def accepted(
    plan: AppPlan, values: RequestValues, id: int = 1, stream: str | None = None, **inputs: Any
) -> LiveRequest:
    """A checked request in the table."""
    request = request_of_call(plan.config.name, inputs, stream=stream)
    RequestValidator(plan).check(request, RequestFuture(lambda future: None), 0)
    request.id = id
    values.add(request)
    return request


def run(values: RequestValues, node: str, part: Any = (), id: int = 1, **result: Any) -> JobResult:
    job = JobId(id, node, tuple(part))
    values.launch(job)
    return values.returned(job, Result(result.pop("outputs", {}), **result))


def item(values: RequestValues, node: str, part: Any = (), id: int = 1) -> Dict[str, Any]:
    """The inputs a job would get; it is given back as not started."""
    job = JobId(id, node, tuple(part))
    inputs, _ = values.launch(job)
    values.not_started(job)
    return inputs


READER = {
    "outputs": ["text"],
    "node": [
        {"name": "detect"},
        {"name": "cut", "fan_out": True, "inputs": {"map": "detect.map", "image": "request.image"}},
        {"name": "turn", "inputs": {"crop": "cut.crop", "page": "cut.page", "map": "detect.map"}},
        {"name": "read"},
        {"name": "join", "gather": True, "inputs": {"words": "read.word", "boxes": "cut.box", "map": "detect.map"}},
        {"name": "spell"},
    ],
}


def test_values_go_through_a_fan_out_and_come_back_as_lists() -> None:
    values = RequestValues()
    request = accepted(plan_of(READER), values, image="img")
    assert item(values, "detect") == {"image": "img"}
    run(values, "detect", outputs={"map": "m"})
    assert item(values, "cut") == {"map": "m", "image": "img"}
    result = run(values, "cut", outputs={"page": 7}, parts=[{"crop": f"c{i}", "box": i} for i in range(3)])
    assert (result.status, result.parts) == ("done", 3)
    assert item(values, "turn", (1,)) == {"crop": "c1", "page": 7, "map": "m"}
    for index in (2, 0, 1):  # any order
        run(values, "turn", (index,), outputs={"straight": f"s{index}"})
        assert item(values, "read", (index,)) == {"image": "img", "straight": f"s{index}"}
        run(values, "read", (index,), outputs={"word": f"w{index}"})
    assert item(values, "join") == {"words": ["w0", "w1", "w2"], "boxes": [0, 1, 2], "map": "m"}
    run(values, "join", outputs={"text": "w0 w1 w2"})
    assert item(values, "spell") == {"image": "img", "text": "w0 w1 w2"}
    run(values, "spell", outputs={"text": "fine", "more": 1})
    assert values.outputs(request) == {"text": "fine"}
    values.end(request)
    assert len(values.requests) == 0 and values.open_count == 0


def test_without_names_outputs_of_the_one_predecessor_replace_the_requests_inputs() -> None:
    values = RequestValues()
    request = accepted(plan_of({"node": [{"name": "first"}, {"name": "then"}]}), values, x=1, y=2)
    run(values, "first", outputs={"x": 10, "a": 1})
    assert item(values, "then") == {"x": 10, "y": 2, "a": 1}
    assert request.inputs == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("node", "result", "says"),
    [
        ("detect", {"outputs": {"mop": 1}}, "returned no 'map'"),
        ("cut", {"outputs": {"page": 1}}, "returned no parts"),
        ("cut", {"outputs": {"page": 1}, "parts": [{"crop": 1, "box": 2}, {"crop": 1}]}, "returned no 'box'"),
    ],
)
def test_a_result_that_lacks_what_others_need_fails_at_the_node_that_made_it(node: str, result: Any, says: str) -> None:
    values = RequestValues()
    accepted(plan_of(READER), values, image="img")
    if node == "cut":
        run(values, "detect", outputs={"map": "m"})
    said = run(values, node, **result)
    assert said.status == "failed" and says in said.reason


def test_a_streams_state_goes_to_its_next_job_and_to_no_other_stream() -> None:
    values = RequestValues()
    plan = plan_of({"model": "vad", "stream": "in_order"})
    job = JobId(1, "vad", ())
    first = accepted(plan, values, 1, "left", x=0)
    assert values.launch(job) == ({"x": 0}, None)
    said = values.returned(job, Result({"p": 1}, state="after 1", state_bytes=64))
    assert (said.status, said.state_bytes) == ("done", 64)
    values.end(first)
    accepted(plan, values, 2, "right", x=0)
    accepted(plan, values, 3, "left", x=0)
    assert values.launch(JobId(2, "vad", ()))[1] is None
    assert values.launch(JobId(3, "vad", ()))[1] == "after 1"
    values.drop_stream_state("a", "left")
    assert values.state_count() == 0


def test_an_unfinished_job_gets_its_state_back_until_it_is_dropped() -> None:
    values = RequestValues()
    request = accepted(plan_of({"model": "lm"}), values, x=0)
    job = JobId(1, "lm", ())
    values.launch(job)
    assert values.returned(job, Result({}, state="half", done=False)).status == "unfinished"
    assert values.launch(job)[1] == "half"
    values.not_started(job)
    values.drop_job_state(job)
    assert values.launch(job)[1] is None
    assert values.returned(job, Result({"y": 1})).status == "done"
    assert values.outputs(request) == {"y": 1}


def test_hints_of_results_reach_the_scheduler_as_plain_numbers_in_a_table_of_their_own() -> None:
    values = RequestValues()
    request = accepted(plan_of(READER), values, image="img")
    mine = {"read.work": np.float32(0.5), "length": np.int64(7)}
    first = run(values, "detect", outputs={"map": "m"}, hints=mine)
    mine["length"] = np.int64(8)
    assert first.hints == {"read.work": 0.5, "length": 7}
    assert [type(value) for value in first.hints.values()] == [float, int]
    assert run(values, "cut", outputs={"page": 7}, parts=[{"crop": 1, "box": 2}], hints={"x": 1}).hints == {"x": 1}
    assert run(values, "turn", (0,), hints={}).hints == {}
    failed = run(values, "read", (0,), hints={"x": 1})  # it lacks an output
    assert (failed.status, failed.hints) == ("failed", {})
    values.launch(JobId(1, "spell", ()))
    values.end(request)
    late = values.returned(JobId(1, "spell", ()), Result({"text": ""}, hints={"y": np.float64(1.5)}))
    assert type(late.hints["y"]) is float  # an orphan's: ignored and recorded


def test_a_hint_that_cannot_be_used_costs_no_result() -> None:
    values = RequestValues()
    accepted(plan_of(READER), values, image="img")
    said = run(values, "detect", outputs={"map": "m"}, hints={"length": "long", "work": 2})
    assert (said.status, said.hints) == ("done", {"work": 2})
    assert item(values, "cut") == {"map": "m", "image": "img"}
    ignored = values.result_hints.ignored_hints
    assert ignored("detect") == {"length": 1} and ignored("cut") == {}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"outputs": None}, "outputs = None, expected a dict"),
        ({"outputs": {1: 2}}, "outputs = {1: 2}"),
        ({"parts": 7}, "parts = 7, expected a list of dicts"),
        ({"parts": [3]}, "parts = [3]"),
        ({"parts": [{1: 2}]}, "parts = [{1: 2}]"),
        ({"route": 1}, "route = 1, expected the name of a node"),
        ({"state_bytes": "many"}, "state_bytes = 'many', expected a whole number"),
        ({"state_bytes": -1}, "state_bytes = -1"),
        ({"state_bytes": 1.5}, "state_bytes = 1.5"),
        ({"steps": 0}, "steps = 0, expected a whole number from 1"),
        ({"steps": 1.5}, "steps = 1.5"),
        ({"steps": None}, "steps = None"),
        ({"done": np.zeros(2)}, "done = array([0., 0.]), expected True or"),
        ({"done": None}, "done = None"),
        ({"error": "text"}, "error = 'text', expected an exception"),
    ],
)
def test_a_result_with_a_field_of_the_wrong_kind_fails_its_item_and_not_the_loop(fields: Any, says: str) -> None:
    assert says in str(item_error("m", Result(**{"outputs": {}, **fields})))
    fine = Result({"y": 1}, [{"z": 2}], "next", "no hints", 1, np.int64(5), np.bool_(False), None, np.int64(4))
    assert item_error("m", fine) is None


def test_an_item_fails_by_what_its_engine_says_and_a_batch_that_is_no_list_of_results_fails_whole() -> None:
    error = EngineError("input 'x' is missing")
    assert item_error("m", Result(None, error=error)) is error  # type: ignore[arg-type]  # nothing else is looked at
    assert "model 'm' returned a dict where a Result was expected" in str(item_error("m", {}))
    batch = RunBatch(7, "cpu0", "m", (JobId(1, "m", ()),), 1, 0, 10, 5)
    assert wrong_form(batch, [{}]) == ""
    assert wrong_form(batch, []) == "model 'm' returned 0 results for a batch of 1; expected one each"
    assert "returned NoneType results" in wrong_form(batch, None)


def test_the_bytes_of_a_state_and_steps_become_pythons_own() -> None:
    values = RequestValues()
    accepted(plan_of({"model": "m"}), values, x=0)
    said = run(values, "m", state="s", state_bytes=np.int64(5), steps=np.int64(4))
    assert (said.state_bytes, said.steps) == (5, 4)
    assert {type(said.state_bytes), type(said.steps)} == {int}  # numpy's could not be recorded


def test_values_stay_while_a_job_of_an_ended_request_still_runs() -> None:
    values = RequestValues()
    request = accepted(plan_of({"model": "m"}), values, x=0)
    job = JobId(1, "m", ())
    values.launch(job)
    values.end(request)
    assert (len(values.requests), values.open_count) == (1, 0)
    values.returned(job, Result({"y": 1}))
    assert len(values.requests) == 0


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"x": "detect"}, "expected 'request.NAME' or 'NODE.NAME'"),
        ({"x": "detct.map"}, "did you mean 'detect'"),
        ({"x": "spell.text"}, "does not run before"),
        ({"x": "request.imge"}, "did you mean 'image'"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused_at_start(inputs: Dict[str, str], says: str) -> None:
    nodes = [dict(node) for node in READER["node"]]
    nodes[3]["inputs"] = inputs
    with pytest.raises(ConfigError, match="inputs.x") as caught:
        plan_of({"node": nodes, "inputs": {"image": {}}})
    assert says in str(caught.value)
