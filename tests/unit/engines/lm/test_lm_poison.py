"""An error raised for one answer ends that answer alone: at every stage, by every kind of error."""

from __future__ import annotations

import json

import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.errors import EngineError, WrongInput
from edgeserve.testing.engine_conformance import ALL_POISONS

pytest.importorskip("onnx", reason="the onnx package makes the test model; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import lm_models
from lm_control import Recorder

from edgeserve.engines.lm import chat, constraint, generation, sequence, step_loop, tools

GOOD = [{"prompt": "Hello there", "max_tokens": 9}, {"prompt": "abc", "max_tokens": 14}]
MARK = "poison"
FORM = {"type": "regex", "regex": "[a-z]{50}"}
STAGES = {
    "the tokenizer": ("encode", {"prompt": MARK}),
    "the template": (chat, "conversation_tokens", {"messages": json.dumps([{"role": "user", "content": MARK}])}),
    "the form": (generation, "grammar_of", {"response_format": {"type": "json_object"}}),
    "the tools": (generation, "tools_of", {"tools": "[]"}),
    "the sampling": (step_loop, "weighed", {"temperature": 7.0}),
    "the draw": (step_loop, "choose", {"temperature": 7.0}),
    "the chances": (step_loop, "log_chances", {"logprobs": 2}),
    "the calls": (sequence, "calls_of", {"tools": json.dumps([{"type": "function", "function": {"name": MARK}}])}),
    "the stop strings": (sequence, "_finished", {"stop": MARK}),
}


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("lm"))
    lm_models.tiny(directory)
    model = ModelConfig(name="chat", engine="lm", file="tiny.onnx", batch=(1, 2, 4))
    engine = make_engine(model, [LaneInfo()], directory)
    engine.load()
    yield engine.open(LaneInfo(name="cpu0"))
    engine.unload()


def run(session, items, **keys):
    return session.launch(Batch(items, len(items), **keys)).result()


def is_poisoned(name, arguments):
    """True if a call is for the one answer."""
    if name in ("weighed", "choose"):
        return any(getattr(each, "temperature", 0.0) == 7.0 for each in arguments)
    if name in ("calls_of", "_finished"):
        return getattr(arguments[0], "_stops", ()) == (MARK,) or MARK in str(arguments)
    return True


def poison(monkeypatch, session, stage, kind):
    """Have a stage raise for items that ask for it; the item."""
    where, *rest = STAGES[stage]
    if where == "encode":
        tokenizer = session._loop._language.tokenizer
        encode = tokenizer.encode

        def encoded(text, *more, **keys):
            if MARK in text:
                raise kind(MARK)
            return encode(text, *more, **keys)

        monkeypatch.setattr(tokenizer, "encode", encoded, raising=False)
        return rest[0]
    name, fields = rest
    if where is chat:
        where = generation
    original = getattr(where, name)

    def raises(*arguments, **keys):
        if is_poisoned(name, arguments):
            raise kind(MARK)
        return original(*arguments, **keys)

    monkeypatch.setattr(where, name, raises)
    return {**({} if "messages" in fields else {"prompt": "p"}), "max_tokens": 5, **fields}


@pytest.mark.parametrize("kind", ALL_POISONS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("stage", sorted(STAGES))
def test_an_error_at_a_stage_of_one_answer_is_its_own(monkeypatch, session, stage, kind):
    if stage in ("the form", "the calls"):
        pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")
    expected = [result.outputs for result in run(session, GOOD)]
    item = poison(monkeypatch, session, stage, kind)
    for place in range(3):
        control = Recorder()
        run(session, [*GOOD[:place], item, *GOOD[place:]], control=control)
        ends = [control.ends[index] for index in range(3)]
        failed = ends.pop(place)
        if stage in ("the calls", "the stop strings") and failed.error is None:
            pytest.fail(f"{stage} was not reached")
        assert isinstance(failed.error, EngineError) and "'chat'" in str(failed.error) and MARK in str(failed.error)
        assert [end.outputs["text"] for end in ends] == [outputs["text"] for outputs in expected]


def test_a_constraint_that_fails_in_the_middle_ends_its_answer_and_keeps_what_was_written(monkeypatch, session):
    pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")
    expected = [result.outputs["text"] for result in run(session, GOOD)]
    allowed, calls = constraint.Constraint.allowed, []

    def raises(self, scores):
        calls.append(1)
        if len(calls) > 3:
            raise ValueError(MARK)
        return allowed(self, scores)

    monkeypatch.setattr(constraint.Constraint, "allowed", raises)
    control = Recorder()
    run(session, [{"prompt": "p", "response_format": FORM, "max_tokens": 9}, *GOOD], control=control)
    assert MARK in str(control.ends[0].error)
    written = control.pieces[0][-1].state.written()
    assert written.amount == "3 tokens" and written.outputs["finish_reason"] == "length"
    assert [control.ends[index].outputs["text"] for index in (1, 2)] == expected


@pytest.mark.parametrize("depth", [200, 400, 2000])
def test_a_schema_of_many_nested_arrays_is_the_mistake_of_its_own_request(session, depth):
    pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")
    schema = '{"type":"array","items":' * depth + '{"type":"integer"}' + "}" * depth
    form = '{"type":"json_schema","json_schema":{"name":"x","schema":' + schema + "}}"
    results = run(session, [{"prompt": "p", "max_tokens": 4, "response_format": form}, *GOOD])
    assert isinstance(results[0].error, WrongInput) and "'chat'" in str(results[0].error)
    assert [result.error for result in results[1:]] == [None, None]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "\ud800"},
        {"messages": [{"role": "user", "content": "\udfff"}]},
        {"prompt": "p", "stop": "\ud800"},
        {"prompt": "p", "temperature": 10**400},
        {"prompt": "p", "max_tokens": 10**30},
        {"prompt": "p", "seed": 10**30},
        {"prompt": "p", "seed": -(10**30)},
        {"prompt": "p", "stop": [["x"]]},
        {"prompt": "p", "stop": {"a": 1}},
        {"prompt": "p", "logit_bias": {"1": 10**400}},
        {"prompt": "p", "logit_bias": [[1, 2]]},
        {"prompt": "p", "tools": [{"function": {"name": "a", "parameters": {"x": {1, 2}}}}]},
        {"prompt": "p", "tools": [None]},
        {"prompt": "p", "response_format": {"type": "regex", "regex": "(" * 5000}},
        {"prompt": "p", "response_format": {"type": "grammar", "grammar": "start: start"}},
        {"prompt": "p", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": {1: 2}}}}},
        {"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]},
        {"messages": [{"role": "u" * 10000, "content": "x"}]},
        {"tokens": [2**70]},
        {"tokens": [[]]},
        {"prompt": object()},
    ],
)
def test_what_clients_may_send_harms_no_other(session, fields):
    expected = [result.outputs["text"] for result in run(session, GOOD)]
    results = run(session, [GOOD[0], fields, GOOD[1]])
    assert [results[place].outputs["text"] for place in (0, 2)] == expected
    assert results[1].error is None or isinstance(results[1].error, EngineError)


def test_the_tool_parser_is_part_of_it():
    assert tools.calls_of('{"name": {"a": 1}, "arguments": {}}', ("a",)) == []
