"""Answers that are held to a form, of a small model that was never trained: without that it writes anything."""

from __future__ import annotations

import json
import pickle
import re
import sys

import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.errors import EngineError, WrongInput

pytest.importorskip("onnx", reason="the onnx package makes the test model; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import lm_models
from lm_control import Recorder

ROOM = {"enum": ["kitchen", "hall"]}
SCHEMA = {
    "type": "object",
    "properties": {"room": ROOM, "level": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["room", "level"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "lamp", "schema": SCHEMA}}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}{% if tools %}<tool_call>?{% endif %}"
TOOLS = [
    {"type": "function", "function": {"name": "lamp", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop"}},
]


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("lm"))
    lm_models.tiny(directory, chat_template=TEMPLATE)
    engine = make_engine(
        ModelConfig(name="chat", engine="lm", file="tiny.onnx", batch=(1, 2, 4)), [LaneInfo()], directory
    )
    engine.load()
    return engine.open(LaneInfo(name="cpu0"))


def item(seed=1, **fields):
    return {"prompt": "lamp", "max_tokens": 200, "temperature": 1.0, "seed": seed, **fields}


def run(session, items, states=(), **settings):
    return session.launch(Batch(items, len(items), states, **settings)).result()


def fits(text):
    found = json.loads(text)
    return sorted(found) == ["level", "room"] and found["room"] in ROOM["enum"] and 0 <= found["level"] <= 99


@pytest.mark.parametrize(
    ("response_format", "fits"),
    [
        (JSON_SCHEMA, fits),
        (json.dumps(JSON_SCHEMA), fits),
        ({"type": "regex", "regex": "[a-c]{3}-[0-9]+x"}, lambda text: re.fullmatch("[a-c]{3}-[0-9]+x", text)),
        ({"type": "grammar", "grammar": 'start: "<" /[a-z]/ ">"'}, lambda text: re.fullmatch("<[a-z]>", text)),
    ],
)
def test_answers_fit_what_was_asked_for(library, session, response_format, fits):
    results = run(session, [item(seed, response_format=response_format) for seed in range(4)])
    assert [result.outputs["finish_reason"] for result in results] == ["stop"] * 4
    assert all(fits(result.outputs["text"]) for result in results)


def test_any_json_object_begins_as_one(library, session):
    text = run(session, [item(response_format={"type": "json_object"})])[0].outputs["text"]
    assert text.startswith("{")


def test_the_others_of_a_batch_say_what_they_say_alone(library, session):
    alone = run(session, [item(seed=5, max_tokens=20)])[0].outputs["text"]
    both = run(session, [item(response_format=JSON_SCHEMA), item(seed=5, max_tokens=20)])
    assert both[1].outputs["text"] == alone and fits(both[0].outputs["text"])


@pytest.mark.parametrize("pickled", [False, True])
def test_an_answer_that_is_cut_goes_on_in_its_form(library, session, pickled):
    asked = item(response_format=JSON_SCHEMA)
    whole = run(session, [asked])[0].outputs["text"]
    states = [None]
    for _ in range(200):
        result = run(session, [asked], states, steps_max=3)[0]
        if result.done:
            break
        states = [pickle.loads(pickle.dumps(result.state)) if pickled else result.state]
    assert result.outputs["text"] == whole


def test_an_answer_without_room_ends_by_its_length(library, session):
    outputs = run(session, [item(response_format=JSON_SCHEMA, max_tokens=5)])[0].outputs
    assert (outputs["finish_reason"], outputs["completion_tokens"]) == ("length", 5)


def test_a_form_that_needs_more_and_more_for_each_token_ends_its_own_answer(library, session):
    response_format = {"type": "grammar", "grammar": "start: e\ne: e e | e e e | /./"}
    alone = run(session, [item(seed=5, max_tokens=20)])[0].outputs["text"]
    control = Recorder()
    run(session, [item(response_format=response_format, max_tokens=500), item(seed=5, max_tokens=20)], control=control)
    assert isinstance(control.ends[0].error, EngineError) and "items" in str(control.ends[0].error)
    assert control.pieces[0][-1].state.written().outputs["text"]
    assert control.ends[1].outputs["text"] == alone


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"response_format": {"type": "xml"}}, "'xml'; expected one of text, json_object"),
        ({"response_format": "{"}, "'response_format' is no JSON"),
        ({"response_format": [1]}, "expected an object with a type"),
        ({"response_format": {"type": "json_schema"}}, "expected a JSON schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}}}, "Invalid type: foo"),
        ({"response_format": {"type": "regex", "regex": "("}}, "regex"),
        ({"response_format": {"type": "regex", "regex": "a" * 70_000}}, "1 to 65536 characters"),
        ({"response_format": {"type": "grammar", "grammar": "start: nothing"}}, "nothing"),
        ({"response_format": JSON_SCHEMA, "tools": TOOLS}, "exclude each other"),
        ({"tool_choice": "required"}, "there is no input 'tools'"),
        ({"tool_choice": "often", "tools": TOOLS}, "'often'; expected one of none, auto, required"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": TOOLS}, "of one of the tools"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\]: expected"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "parameters: expected"),
        ({"tools": {}}, "expected a list"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_the_others_run(library, session, fields, says):
    wrong, right = run(session, [item(**fields), item(max_tokens=3)])
    assert isinstance(wrong.error, WrongInput) and re.search(says, str(wrong.error))
    assert right.error is None and right.outputs["completion_tokens"] == 3


def test_without_the_library_a_form_is_refused_and_says_how_to_get_it(session, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    wrong, right = run(session, [item(response_format={"type": "regex", "regex": "b+"}), item(max_tokens=3)])
    assert isinstance(wrong.error, WrongInput) and "pip install llguidance" in str(wrong.error)
    assert right.error is None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "lamp"}}])
def test_a_required_call_is_one_of_a_function_with_arguments_that_fit(library, session, choice):
    for seed in range(4):
        control = Recorder()
        asked = {"messages": [{"role": "user", "content": "lamp"}], "max_tokens": 250, "temperature": 1.0, "seed": seed}
        run(session, [{**asked, "tools": TOOLS, "tool_choice": choice}], control=control)
        outputs = control.ends[0].outputs
        if outputs["finish_reason"] == "length":
            continue  # {"type": "object"} of stop has no end that an untrained model would find
        (call,) = json.loads(outputs["tool_calls"])
        assert outputs["finish_reason"] == "tool_calls" and outputs["text"] == control.text(0) == ""
        assert call["name"] == "stop" or fits(call["arguments"])
        assert call["name"] == "lamp" or choice == "required"


def test_text_that_is_no_call_is_said(session):
    asked = {"messages": [{"role": "user", "content": "lamp"}], "max_tokens": 9, "temperature": 1.0, "seed": 2}
    plain = run(session, [asked])[0].outputs["text"]
    assert run(session, [{**asked, "tools": TOOLS, "tool_choice": "none"}])[0].outputs["text"] == plain
