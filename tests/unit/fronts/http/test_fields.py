"""Errors name the field that the client sent, in its own protocol."""

from __future__ import annotations

import pytest

from edgeserve.fronts.http.chat import BadField, read_prompts, read_request, read_texts
from edgeserve.fronts.http.ollama import chat_body, embed_body, generate_body, own_fields

CHAT = {"messages": {"dtype": "text"}, "max_tokens": {"dtype": "int32"}, "temperature": {"dtype": "float32"}}
TALK = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": {"num_predict": "many"}}, "options.num_predict"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"stop": 5}}, "options.stop"),
        ({"format": {"type": "object"}}, "format"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0]"),
        ({"tools": 5}, "tools"),
        ({"think": True}, "think"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"repeat_last_n": -2}}, "options.repeat_last_n"),
        ({"options": {"temprature": 1}}, "options.temprature"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"messages": [{**TALK[0], "images": ["aGk="]}]}, "messages[0]"),
        ({"streams": True}, "streams"),
        ({"messages": [{"role": "assistant", "tool_calls": {"function": {"name": "f"}}}]}, "messages[0].tool_calls"),
        ({"messages": "hi"}, "messages"),
        ({"options": {"num_predict": False}}, "options.num_predict"),
    ],
)
def test_a_chat_of_ollama(fields, param):
    with pytest.raises(BadField) as caught, own_fields():
        read_request(chat_body({"model": "m", "messages": TALK, **fields}), CHAT)
    assert caught.value.param.startswith(param)
    assert str(caught.value).startswith(param)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("prompt", [5, ["a"], {"text": "a"}])
def test_a_prompt_of_ollama(prompt, raw):
    with pytest.raises(BadField) as caught, own_fields(messages="prompt"):
        asked = generate_body({"model": "m", "prompt": prompt, "raw": raw})
        (read_prompts if "prompt" in asked else read_request)(asked, {"prompt": {"dtype": "text"}} if raw else CHAT)
    assert caught.value.param == "prompt" and str(caught.value).startswith("prompt")


@pytest.mark.parametrize("key", ["input", "prompt"])
def test_a_text_for_a_vector_of_ollama(key):
    with pytest.raises(BadField) as caught, own_fields(input=key):
        read_texts(embed_body({"model": "m", key: 5}, key), {"text": {"dtype": "text"}})
    assert caught.value.param == key and str(caught.value).startswith(key)


def test_the_older_route_of_ollama_has_one_text():
    with pytest.raises(BadField, match="prompt: expected a text"):
        embed_body({"model": "m", "prompt": ["a", "b"]}, "prompt")
