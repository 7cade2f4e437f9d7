"""OpenAI's chat protocol: requests to inputs, answers and pieces to completions."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgeserve.errors import BadInput
from edgeserve.http import chat
from edgeserve.http.failures import NotServed

HELLO = [{"role": "user", "content": "hello"}]
TEXT = {"dtype": "text", "shape": []}


def body(**fields):
    return {"model": "m", "messages": HELLO, **fields}


@pytest.mark.parametrize(
    ("inputs", "outputs", "can"),
    [
        ({"messages": TEXT}, [], True),
        ({"prompt": TEXT, "n": TEXT}, [], True),
        ({}, ["text"], True),
        ({}, ["y"], False),
        ({"messages": {"dtype": "any", "shape": []}}, [], True),
        ({"prompt": {"dtype": "float32", "shape": [3]}}, ["text"], False),
    ],
)
def test_which_apps_can_chat(inputs, outputs, can):
    assert chat.can_chat({"inputs": inputs, "outputs": outputs}) is can


def test_a_conversation_becomes_messages_or_a_prompt():
    talk = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}], "name": "ann"},
    ]
    request = chat.read_request(body(messages=talk), {"messages": TEXT})
    assert json.loads(request.inputs["messages"]) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]
    assert chat.read_request(body(messages=talk), {"prompt": TEXT}).inputs == {"prompt": "be brief\nhello"}
    assert not request.stream and not request.usage and request.options == {}


def test_options_become_inputs_where_the_app_takes_them():
    fields = {
        "max_tokens": 5,
        "max_completion_tokens": 9,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 3,
        "stop": "x",
        "user": "ann",
    }
    every = chat.read_request(body(**fields), {}).inputs
    assert {
        name: (value.dtype.name, value.item()) for name, value in every.items() if isinstance(value, np.ndarray)
    } == {"max_tokens": ("int32", 9), "temperature": ("float32", 0.0), "top_p": ("float32", 0.5), "seed": ("int64", 3)}
    assert json.loads(every["stop"]) == ["x"]
    free = chat.read_request(body(max_tokens=4), {"prompt": TEXT, "max_tokens": {"dtype": "any", "shape": []}}).inputs
    assert free["max_tokens"].dtype == np.int32 and free["max_tokens"].shape == ()
    some = chat.read_request(
        body(temperature=1, seed=3), {"messages": TEXT, "seed": {"dtype": "int32", "shape": []}}
    ).inputs
    assert sorted(some) == ["messages", "seed"] and some["seed"].dtype == np.int32


def test_extensions_are_options_of_the_request():
    request = chat.read_request(
        body(deadline_ms=250, **{"class": "critical"}, value=2, stream=True, stream_options={"include_usage": True}),
        {"messages": TEXT},
    )
    assert request.options == {"slo_ms": 250, "klass": "critical", "value": 2}
    assert request.stream and request.usage


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({"messages": []}, BadInput, "at least one"),
        ({"messages": "hi"}, BadInput, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, BadInput, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, BadInput, "expected a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, NotServed, "type text"),
        ({"n": 2}, NotServed, "n = 2"),
        ({"tools": [{}]}, NotServed, "tools"),
        ({"logprobs": True}, NotServed, "logprobs"),
        ({"response_format": {"type": "json_object"}}, NotServed, "response_format"),
        ({"max_tokens": 0}, BadInput, "from 1"),
        ({"max_tokens": "5"}, BadInput, "number"),
        ({"stop": [1]}, BadInput, "stop"),
        ({"stream": "yes"}, BadInput, "stream"),
        ({"stop": "x"}, NotServed, "declares no input"),
        ({"deadline_ms": "soon"}, BadInput, "deadline_ms"),
        ({"deadline_ms": True}, BadInput, "deadline_ms"),
        ({"value": "much"}, BadInput, "value"),
        ({"class": 3}, BadInput, "class"),
        ({"temperature": float("nan")}, BadInput, "temperature"),
        ({"seed": 1.5}, BadInput, "seed"),
        ({"max_tokens": 2.5}, BadInput, "max_tokens"),
        ({"seed": 10**30}, BadInput, "seed"),
    ],
)
def test_what_cannot_be_served_is_named(fields, kind, says):
    with pytest.raises(kind) as caught:
        chat.read_request(body(**fields), {"messages": TEXT})
    assert says in str(caught.value)


def test_a_whole_answer():
    whole = chat.Completion("id", "m", 5).whole(
        {"text": "hi there", "tokens": np.int32([4, 5]), "prompt_tokens": 3, "finish_reason": "length"}, False
    )
    assert whole["choices"][0]["message"]["content"] == "hi there"
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert (whole["id"], whole["model"], whole["created"], whole["object"]) == ("id", "m", 5, "chat.completion")


def deltas(chunks):
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


def test_pieces_and_what_no_piece_had():
    completion = chat.Completion("id", "m", 5)
    chunks = [completion.piece({"text": "hi "}), completion.piece({"text": "there"})]
    assert completion.piece({"text": ""}) is None
    chunks += completion.last({"text": "hi there!", "tokens": np.int32(3), "prompt_tokens": np.int32(2)}, usage=True)
    assert deltas(chunks) == [{"role": "assistant", "content": "hi "}, {"content": "there"}, {"content": "!"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, None, "stop"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 5


def test_an_answer_without_pieces_is_one():
    assert deltas(chat.Completion("id", "m", 5).last({"text": "all"}, False)) == [
        {"role": "assistant", "content": "all"},
        {},
    ]
    assert deltas(chat.Completion("id", "m", 5).last({"text": ""}, False)) == [{"role": "assistant", "content": ""}, {}]


def test_a_count_is_believed_before_a_list():
    usage = chat.usage_of({"tokens": np.zeros(3, np.int32), "completion_tokens": np.int64(4), "prompt_tokens": 5})
    assert usage == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


@pytest.mark.parametrize(
    ("tokens", "count"),
    [
        (None, 0),
        (7, 7),
        (np.int64(3), 3),
        (np.zeros(4, np.int32), 4),
        (np.zeros(0, np.int32), 0),
        ("abc", 0),
        (np.int32([9]), 1),
    ],
)
def test_counts_of_tokens(tokens, count):
    assert chat.count_of(tokens) == count
