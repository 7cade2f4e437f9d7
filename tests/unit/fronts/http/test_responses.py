"""``/v1/responses`` and Ollama's bodies in the words of a conversation's: what has no meaning there is refused by its
name."""

from __future__ import annotations

import json

import pytest

from edgeserve.answers import Answer
from edgeserve.fronts.http.chat import BadField, read_request
from edgeserve.fronts.http.ollama import chat_body, generate_body
from edgeserve.fronts.http.responses import Response, read_response

INPUTS = {"messages": {"dtype": "text", "shape": []}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"messages": [{"role": "user", "content": "lost"}]}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"tool_choice": {"type": "allowed_tools", "tools": 5}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "web"}]}}, "tool_choice"),
        ({"instructions": "be brief", "input": [{"role": "x", "content": "a"}]}, "input[0]"),
        ({"instructions": ["a"]}, "instructions"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"text": {"form": {"type": "json_object"}}}, "text"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temprature": 1}, "temprature"),
        ({"input": [{"type": "reasoning"}, {"role": "user", "content": 5}]}, "input[1]"),
    ],
)
def test_what_a_response_has_not_is_refused_by_its_name(fields, param):
    with pytest.raises(BadField) as caught:
        read_response({"model": "m", "input": "x", **fields}, INPUTS)
    assert caught.value.param.partition(".")[0] == param and str(caught.value).startswith(param)


def test_calls_that_follow_each_other_are_of_one_message():
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "a"}
    told = read_response({"model": "m", "input": [call, {**call, "call_id": "b"}]}, INPUTS)
    (message,) = json.loads(told.asks[0]["messages"])
    assert [each["id"] for each in message["tool_calls"]] == ["a", "b"]
    told = read_response({"model": "m", "input": [{**call, "call_id": None}]}, INPUTS)
    assert json.loads(told.asks[0]["messages"])[0]["tool_calls"][0]["id"] == ""


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("calls", [[], [{"name": "f", "arguments": "{}"}]])
@pytest.mark.parametrize("pieces", [[], ["so ", "far"]])
def test_what_a_cut_response_was_writing_is_incomplete(finish, calls, pieces):
    outputs = {"text": "".join(pieces), "tool_calls": json.dumps(calls), "finish_reason": finish}
    response = Response("1", 0, {"model": "m"})
    events = [event for piece in pieces for event in response.piece({"text": piece})] + response.last(Answer(outputs))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    status = "incomplete" if finish == "length" else "completed"
    assert [each["status"] for each in done] == ["completed"] * (len(done) - 1) + [status]
    assert events[-1]["type"] == f"response.{status}" and events[-1]["response"]["output"] == done
    assert len(done) == max(1, bool(pieces) + len(calls))


def test_a_raw_prompt_of_ollama_may_have_an_empty_system():
    assert generate_body({"model": "m", "raw": True, "prompt": "a", "system": ""})["prompt"] == "a"
    with pytest.raises(BadField, match="system"):
        generate_body({"model": "m", "raw": True, "prompt": "a", "system": "be brief"})


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}', None, ""])
def test_arguments_of_a_call_are_an_object_or_its_text(arguments):
    calls = [{"function": {"name": "f", "arguments": arguments}}]
    asked = chat_body({"model": "m", "messages": [{"role": "assistant", "content": "", "tool_calls": calls}]})
    (message,) = json.loads(read_request(asked, INPUTS).asks[0]["messages"])
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == ({"a": 1} if arguments else {})


@pytest.mark.parametrize("prompt", [["a", "b"], [1, 2], 5])
def test_a_raw_prompt_of_ollama_is_one_text(prompt):
    with pytest.raises(BadField, match="prompt: expected a text"):
        generate_body({"model": "m", "raw": True, "prompt": prompt})
