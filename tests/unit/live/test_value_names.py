"""Names that meet: which graphs are refused, what the sentence says, and what is refused only with the first answer."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.config.toml_files import parse_toml
from edgeserve.engines.base import Result
from edgeserve.errors import BadInput, ConfigError
from edgeserve.live.preflight import check_before_loading
from edgeserve.live.request import LiveRequest, RequestValidator, request_of_call
from edgeserve.live.responders import RequestFuture
from edgeserve.live.value_flow import AppPlan, name_clashes
from edgeserve.live.values import RequestValues
from edgeserve.sched.protocol.events import JobId, JobResult


def node(name: str, *after: str, **keys: Any) -> Dict[str, Any]:
    return {"name": name, "after": list(after), **keys}


def plan_of(nodes: List[Dict[str, Any]], **app: Any) -> AppPlan:
    models = {item["name"]: {"engine": "synthetic"} for item in nodes}
    return AppPlan(parse_config({"app": {"a": {"node": nodes, **app}}, "model": models}).apps["a"])


TWO = [node("one"), node("two"), node("join", "one", "two")]
ROUTE = [node("pick", route="one"), node("one", "pick"), node("two", "pick"), node("join", "one", "two")]
CUT = node("cut", fan_out=True)


@pytest.mark.parametrize(
    ("nodes", "app", "returned", "name"),
    [
        (TWO, {}, {"one": "p", "two": "p"}, "p"),
        (TWO, {}, {"one": "pq", "two": "rq"}, "q"),
        ([*TWO[:2], node("join", "one", "two", join=2)], {}, {"one": "p", "two": "p"}, "p"),
        ([*TWO[:2], node("join", "one", "two", join="policy")], {}, {"one": "p", "two": "p"}, "p"),
        ([*TWO[:2], node("join", "one", "two", join=1)], {}, {"one": "p", "two": "p"}, None),
        ([*TWO[:2], {**TWO[2], "inputs": {"a": "one.p", "b": "two.p"}}], {}, {"one": "p", "two": "p"}, None),
        (TWO, {}, {"one": "p", "two": "q", "join": "p"}, None),  # what a join returns meets nothing
        # a route takes one of them
        (ROUTE, {}, {"one": "p", "two": "p"}, None),
        (ROUTE, {}, {"pick": "p", "one": "p"}, None),  # the join is given neither of pick
        ([*ROUTE[:3], node("join", "pick", "one", "two")], {}, {"pick": "p", "one": "p"}, "p"),
        ([*ROUTE[:3], node("x", "pick"), node("join", "one", "two", "x")], {}, {"one": "p", "x": "p"}, None),
        # further down the branches of a route, and where they meet other nodes
        (
            [*ROUTE[:3], node("one2", "one"), node("two2", "two"), node("join", "one2", "two2")],
            {},
            {"one2": "p", "two2": "p"},
            None,
        ),
        ([*ROUTE[:3], node("side"), node("join", "one", "two", "side")], {}, {"one": "p", "side": "p"}, "p"),
        # a route inside a fan-out takes another branch for each part
        (
            [CUT, node("pick", "cut", route="one"), *ROUTE[1:3], node("all", "one", "two", gather=True)],
            {},
            {"one": "p", "two": "p"},
            "p",
        ),
        (
            [
                CUT,
                node("pick", "cut", route="one"),
                *ROUTE[1:3],
                node("each", "one", "two"),
                node("all", "each", gather=True),
            ],
            {},
            {"one": "p", "two": "p"},
            None,
        ),
        # a join of one that gathers has a list of each
        (
            [CUT, node("one", "cut"), node("two", "cut"), node("all", "one", "two", gather=True, join=1)],
            {},
            {"one": "p", "two": "p"},
            "p",
        ),
        # last nodes
        ([node("one"), node("two")], {}, {"one": "p", "two": "p"}, "p"),
        ([node("one"), node("two")], {"outputs": ["p"]}, {"one": "p", "two": "p"}, "p"),
        ([node("one"), node("two")], {"outputs": ["q"]}, {"one": "pq", "two": "p"}, None),
        ([node("one"), node("two")], {"outputs": ["one.p"]}, {"one": "p", "two": "p"}, None),
        ([node("one"), node("two")], {"outputs": {"a": "one.p", "b": "two.p"}}, {"one": "p", "two": "p"}, None),
        (ROUTE[:3], {}, {"one": "p", "two": "p"}, None),
        # the request's own values
        ([node("one"), node("two", "one")], {"inputs": {"p": {}}}, {"one": "p"}, None),  # one's replaces it
        (TWO, {"inputs": {"p": {}}}, {"one": "p", "two": "q"}, "p"),
        (TWO, {"inputs": {"p": {"optional": True}}}, {"one": "p", "two": "q"}, "p"),
        ([CUT, node("each", "cut"), node("all", "each", gather=True)], {"inputs": {"p": {}}}, {"each": "p"}, "p"),
        ([CUT, node("each", "cut"), node("all", "each", gather=True)], {"inputs": {"p": {}}}, {"cut": "p"}, None),
        # behind a node that replaced one, it would be the request's again
        ([node("one"), node("two", "one"), node("three", "two")], {"inputs": {"p": {}}}, {"one": "p", "two": "q"}, "p"),
        ([node("one"), node("two", "one"), node("x", "two")], {"inputs": {"p": {}}}, {"one": "p", "two": "p"}, None),
        ([CUT, node("each", "cut"), node("then", "each")], {"inputs": {"p": {}}}, {"cut": "p", "each": "q"}, "p"),
        (
            [node("one"), node("two", "one"), node("three", "two", inputs={"p": "request.p", "q": "two.q"})],
            {"inputs": {"p": {}}},
            {"one": "p", "two": "q"},
            None,
        ),
    ],
)  # fmt: skip
def test_two_sources_of_one_name_are_refused_where_both_may_come(
    nodes: List[Dict[str, Any]], app: Dict[str, Any], returned: Dict[str, str], name: str | None
) -> None:
    told = name_clashes(plan_of(nodes, **app), returned)
    assert bool(told) == (name is not None), told
    assert all(f"{name!r}" in text for text in told)


@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        (TWO, 'inputs = { one_p = "one.p", two_p = "two.p" }'),
        (TWO[:2], 'outputs = { one_p = "one.p", two_p = "two.p" }'),
        ([node("a b"), node('c"'), node("join", "a b", 'c"')], 'inputs = { a_b_p = "a b.p", c__p = "c\\".p" }'),
    ],
)
def test_the_line_of_a_refusal_can_be_taken_over(nodes: List[Dict[str, Any]], line: str) -> None:
    (text,) = name_clashes(plan_of(nodes), {item["name"]: "p" for item in nodes[:2]})
    assert line in text
    taken = parse_toml(line)
    mended = [*nodes[:2], {**nodes[2], **taken}] if len(nodes) > 2 else nodes
    assert not name_clashes(
        plan_of(mended, **(taken if len(nodes) == 2 else {})), {item["name"]: "p" for item in nodes[:2]}
    )


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (["one.p", "two.p"], "'p' of node 'one' and of node 'two' would have one name in the answer"),
        (["p", "two.p"], "'p' of a last node and of node 'two'"),
        ({"a": "request.p"}, "an answer holds what nodes return"),
        ({"a": "three.p"}, "no node 'three'"),
    ],
)
def test_outputs_that_share_a_name_are_refused_with_the_table_that_renames_them(outputs: Any, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(TWO[:2], outputs=outputs)
    assert says in str(refused.value)


def test_a_table_of_outputs_renames_the_values_of_several_nodes() -> None:
    values = RequestValues()
    request = accepted(plan_of(TWO[:2], outputs={"first": "one.p", "second": "two.p"}), values)
    run(values, "one", p=1)
    run(values, "two", p=2)
    assert values.outputs(request) == {"first": 1, "second": 2}


@pytest.mark.parametrize(
    ("reference", "means"),
    [
        ("llama-3.2.text", ("llama-3.2", "text")),
        ("llama-3.2.a.b", ("llama-3.2", "a.b")),
        ("request.x.y", (None, "x.y")),
    ],
)
def test_names_of_nodes_may_have_dots(reference: str, means: Any) -> None:
    plan = plan_of([node("llama-3.2"), node("end", "llama-3.2", inputs={"x": reference})])
    (source,) = plan.nodes["end"].sources or ()
    assert (source.node, source.name) == means


@pytest.mark.parametrize("names", [("a", "a.b"), ("request", "b")])
def test_a_reference_that_could_mean_two_values_is_refused(names: Any) -> None:
    nodes = [node(name) for name in names]
    with pytest.raises(ConfigError, match="could mean"):
        plan_of([*nodes, node("end", *names, inputs={"x": f"{names[0]}.b.c"})])


# --- what is not known before the first answer ------------------------------------------------------------------------


def accepted(plan: AppPlan, values: RequestValues, id: int = 1, **inputs: Any) -> LiveRequest:
    request = request_of_call("a", inputs)
    RequestValidator(plan).check(request, RequestFuture(lambda future: None), 0)
    request.id = id
    values.add(request)
    return request


def run(values: RequestValues, name: str, part: Any = (), id: int = 1, result: Any = None, **outputs: Any) -> JobResult:
    job = JobId(id, name, tuple(part))
    values.launch(job)
    return values.returned(job, Result(outputs) if result is None else result)


def test_a_clash_fails_the_request_that_shows_it_and_all_that_follow() -> None:
    values, plan = RequestValues(), plan_of([*TWO[:2], node("join", "one", "two", join="policy")])
    accepted(plan, values)
    assert run(values, "one", p=1).status == "done"
    assert run(values, "two", p=2).status == "failed"
    said = run(values, "join", y=3)  # the policy went on without: its answer lacks a vote, so it is none
    assert said.status == "failed" and 'inputs = { one_p = "one.p", two_p = "two.p" }' in said.reason
    accepted(plan, values, id=2)
    assert run(values, "one", id=2, p=1).status == "failed"  # also where only one of them runs


def test_a_result_without_a_name_that_replaced_an_input_fails() -> None:
    values, plan = RequestValues(), plan_of([node("one"), node("two", "one")])
    accepted(plan, values, p=1)
    assert run(values, "one", p=2).status == "done"
    accepted(plan, values, id=2, p=1)
    said = run(values, "one", id=2, q=2)
    assert said.status == "failed" and "the request's 'p' would be taken for it" in said.reason
    accepted(plan, values, id=3, x=1)
    assert run(values, "one", id=3, q=2).status == "done"  # nothing could be taken for it


def test_an_input_whose_name_a_node_returns_is_refused_when_that_is_known() -> None:
    values, plan = RequestValues(), plan_of(TWO)
    accepted(plan, values, p=1)
    assert run(values, "one", p=2).status == "failed"
    with pytest.raises(BadInput, match=r"inputs = { request_p = \"request.p\", one_p = \"one.p\" }"):
        accepted(plan, values, id=2, p=1)
    accepted(plan, values, id=3, x=1)


@pytest.mark.parametrize(
    ("shared", "parts", "says"),
    [
        ({"p": 1}, [{"p": 2}, {"p": 3}], "in each part and for all parts together"),
        ({}, [{"p": 2}, {"q": 3}], "not in part"),
        ({}, [{"p": 2}, {}], "returned 'p' in part 0 and not in part 1"),
        ({}, [{}, {"p": 2}], "returned 'p' in part 1 and not in part 0"),
    ],
)
def test_parts_whose_names_differ_fail_at_the_node_that_made_them(shared: Any, parts: Any, says: str) -> None:
    values = RequestValues()
    accepted(plan_of([CUT, node("each", "cut")]), values)
    said = run(values, "cut", result=Result(shared, parts=parts))
    assert said.status == "failed" and says in said.reason


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (Result({}, parts=[{"p": 1}]), "returned 1 part and node 'one' has no fan_out = true"),
        (Result({"p": 1}, parts=[]), "returned 0 parts and node 'one' has no fan_out = true"),
        (Result({"p": 1}, route="join"), "chose the route 'join' and node 'one' has no route = 'one'"),
    ],
)
def test_parts_and_routes_that_the_node_is_not_configured_for_are_refused(result: Result, says: str) -> None:
    values = RequestValues()
    accepted(plan_of(TWO), values)
    said = run(values, "one", result=result)
    assert said.status == "failed" and says in said.reason


def test_branches_names_those_whose_values_a_join_was_given() -> None:
    values, plan = RequestValues(), plan_of([*TWO[:2], node("join", "one", "two", join=1), node("end", "join")])
    request = accepted(plan, values)
    run(values, "two", p=2)
    job = JobId(1, "join", ())
    assert values.launch(job)[0] == {"p": 2}
    run(values, "one", p=1)  # comes too late
    values.returned(job, Result({"y": 1}))
    assert values.branches(request) == ("two",)


def test_a_join_of_one_is_given_what_was_done_first_also_where_others_were_done_before_it_began() -> None:
    values, plan = RequestValues(), plan_of([*TWO[:2], node("join", "one", "two", join=1)])
    request = accepted(plan, values)
    run(values, "two", p=2, q=2)
    run(values, "one", p=1)
    assert values.launch(JobId(1, "join", ()))[0] == {"p": 2, "q": 2}
    assert values.branches(request) == ("two",)


# --- before anything is loaded ----------------------------------------------------------------------------------------

FUNCTIONS = """
from typing import TypedDict
from edgeserve.engine import Parts, Result

class Said(TypedDict):
    p: float

def one(item):
    if item:
        return {"p": 1.0}
    return {"q": 2.0}

def two(item) -> Said:
    return make()

def three(item):
    def inner():
        return {"p": 0}
    return Result({"r": inner()}, hints={"p": 1})

def cut(item):
    return Parts([{"p": 1} for _ in item], {"s": 1})

def counts(item, state):
    return {"n": 1}, {"p": 2}

def make():
    return {"p": 1.0}

def vote(item):
    return {"y": sum(item.values())}
"""


@pytest.mark.parametrize(
    ("models", "clash"),
    [
        (("one", "two"), True),
        (("one", "three"), False),
        (("one", "make"), True),
        (("one", "counts"), False),
        (("three", "counts"), False),
    ],
)
def test_what_functions_say_of_their_outputs_is_looked_at_before_loading(
    tmp_path: Any, models: Any, clash: bool
) -> None:
    tag = f"names_{'_'.join(models)}"
    (tmp_path / f"{tag}.py").write_text(FUNCTIONS)
    options = {"counts": {"options": {"stateful": True}}}
    table = {
        "model": {
            name: {"engine": "python", "function": f"{tag}:{name}", **options.get(name, {})}
            for name in (*models, "vote")
        },
        "app": {"a": {"node": [*(node(name) for name in models), node("vote", *models)]}},
    }
    problems = check_before_loading(parse_config(table, str(tmp_path)))
    assert [problem.stops for problem in problems if problem.subject == "names"] == [True] * clash


@pytest.mark.parametrize(
    ("app", "wrong"),
    [
        ({"outputs": ["y"]}, False),
        ({"outputs": ["linear.z"]}, True),
        ({"outputs": {"answer": "z"}}, True),
        ({"node": [{"name": "linear"}, {"name": "next", "inputs": {"x": "linear.y"}}]}, False),
        ({"node": [{"name": "linear"}, {"name": "next", "inputs": {"x": "linear.z"}}]}, True),
    ],
)
def test_an_output_that_a_model_file_has_not_is_told_before_loading(tmp_path: Any, app: Any, wrong: bool) -> None:
    """Else every request would fail."""
    import onnx_models

    linear = {"engine": "onnx", "file": onnx_models.linear(str(tmp_path))}
    table = {
        "model": {"linear": linear, "next": {"engine": "synthetic"}},
        "app": {"a": {"node": [node("linear")], **app}},
    }
    texts = [item.text for item in check_before_loading(parse_config(table, str(tmp_path))) if item.subject == "names"]
    assert [("output 'z' of node 'linear'" in text, "known: y" in text) for text in texts] == [(True, True)] * wrong
