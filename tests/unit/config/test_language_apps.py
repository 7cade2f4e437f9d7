"""Defaults of an app of a language model."""

from __future__ import annotations

import pytest

from edgeserve.config.language_apps import OPTIONS, QUESTIONS
from edgeserve.config.loading import parse_config
from edgeserve.fronts.http.chat import NUMBERS, STRUCTURED
from edgeserve.fronts.http.ollama import OPTIONS as OLLAMA_OPTIONS

MODELS = {
    "chat": {"engine": "lm", "file": "m.onnx"},
    "ear": {"engine": "whisper", "file": "model.bin"},
    "fn": {"engine": "python", "function": "a:b"},
    "seq": {"engine": "synthetic", "expected": {"1": "1ms"}, "options": {"sequence": {}}},
}


def app(**table):
    return parse_config({"model": MODELS, "app": {"a": table}}).apps["a"]


def test_an_app_of_a_language_model_has_every_input_of_the_apis():
    found = app(model="chat")
    assert list(found.inputs) == [*QUESTIONS, *OPTIONS]
    assert {*NUMBERS, *STRUCTURED, *OLLAMA_OPTIONS.values()} <= set(found.inputs)
    assert all(tensor.optional for tensor in found.inputs.values())
    assert [name for name, tensor in found.inputs.items() if tensor.dtype == "text"] == ["prompt"]


def test_what_is_declared_stays_as_it_is_and_comes_first():
    found = app(model="chat", inputs={"max_tokens": {"dtype": "int32"}, "prompt": {"dtype": "text"}})
    assert list(found.inputs)[:2] == ["max_tokens", "prompt"]
    assert not found.inputs["max_tokens"].optional and not found.inputs["prompt"].optional
    assert "presence_penalty" in found.inputs and not {"messages", "tokens"} & set(found.inputs)


@pytest.mark.parametrize(
    "nodes",
    [
        [{"name": "fn"}, {"name": "chat"}],
        [{"name": "chat", "inputs": {"prompt": "request.said"}}],
        [{"name": "chat"}, {"name": "fn"}],  # nothing is declared: it takes what its nodes need
    ],
)
def test_an_app_whose_request_is_not_the_models_own_has_no_more_inputs(nodes):
    assert app(node=nodes).inputs == {}


def test_in_front_of_others_the_options_join_what_is_declared():
    found = app(
        node=[{"name": "chat"}, {"name": "fn"}], inputs={"prompt": {"dtype": "text"}, "room": {"dtype": "text"}}
    )
    assert list(found.inputs) == ["prompt", "room", *OPTIONS]


@pytest.mark.parametrize(
    ("table", "on_late"),
    [
        ({"model": "chat"}, "partial"),
        ({"model": "ear"}, "partial"),
        ({"node": [{"name": "fn"}, {"name": "chat"}]}, "partial"),
        ({"model": "fn"}, "drop"),
        ({"model": "seq"}, "drop"),
        ({"model": "chat", "on_late": "drop"}, "drop"),
        ({"model": "chat", "on_late": "answer"}, "answer"),
    ],
)
def test_an_answer_that_has_begun_ends_at_its_deadline_unless_the_file_says_otherwise(table, on_late):
    assert app(**table).on_late == on_late
