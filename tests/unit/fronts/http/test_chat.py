"""OpenAI's chat protocol: requests to inputs, answers and pieces to completions."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgeserve.answers import Answer
from edgeserve.errors import BadInput, Failed
from edgeserve.fronts.http import chat, completion
from edgeserve.fronts.http.chat_routes import vector_of

HELLO = [{"role": "user", "content": "hello"}]
TEXT = {"dtype": "text", "shape": []}
ANY = {"dtype": "any", "shape": []}
TOOL = {"type": "function", "function": {"name": "f"}}


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
    assert json.loads(request.asks[0]["messages"]) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]
    assert chat.read_request(body(messages=talk), {"prompt": TEXT}).asks[0] == {"prompt": "be brief\nhello"}
    assert not request.stream and not request.usage and request.options == {}


def test_options_become_inputs_where_the_app_takes_them():
    fields = {
        "max_tokens": 5,
        "max_completion_tokens": 9,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.25,
        "seed": 3,
        "frequency_penalty": 0.5,
        "presence_penalty": -1,
        "repeat_penalty": 1.5,
        "stop": "x",
        "logit_bias": {"5": -100},
        "user": "ann",
        "logprobs": None,
    }
    every = chat.read_request(body(**fields), {}).asks[0]
    assert {
        name: (value.dtype.name, value.item()) for name, value in every.items() if isinstance(value, np.ndarray)
    } == {
        "max_tokens": ("int32", 9),
        "temperature": ("float32", 0.0),
        "top_p": ("float32", 0.5),
        "top_k": ("int32", 40),
        "min_p": ("float32", 0.25),
        "seed": ("int64", 3),
        "frequency_penalty": ("float32", 0.5),
        "presence_penalty": ("float32", -1.0),
        "repeat_penalty": ("float32", 1.5),
    }
    assert json.loads(every["stop"]) == ["x"] and json.loads(every["logit_bias"]) == {"5": -100}
    free = chat.read_request(body(max_tokens=4), {"prompt": TEXT, "max_tokens": {"dtype": "any", "shape": []}}).asks[0]
    assert free["max_tokens"].dtype == np.int32 and free["max_tokens"].shape == ()
    some = chat.read_request(body(seed=3), {"messages": TEXT, "seed": {"dtype": "int32", "shape": []}}).asks[0]
    assert sorted(some) == ["messages", "seed"] and some["seed"].dtype == np.int32


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 0, "presence_penalty": 0.0, "repeat_penalty": 1, "logit_bias": {}, "stop": []},
        {"n": 1, "logprobs": False, "top_logprobs": 0, "mirostat": 0, "response_format": {"type": "text"}},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "modalities": ["text"]},
        {"temperature": None, "seed": None, "reasoning_effort": None, "anything": None},
        {"metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "x"},
    ],
)
def test_what_asks_for_nothing_is_no_reason_to_refuse(fields):
    assert sorted(chat.read_request(body(**fields), {"messages": TEXT}).asks[0]) == ["messages"]


@pytest.mark.parametrize("deadline", ["slo_ms", "deadline_ms"])
def test_extensions_are_options_of_the_request(deadline):
    request = chat.read_request(
        body(**{deadline: 250, "class": "critical"}, value=2, stream=True, stream_options={"include_usage": True}),
        {"messages": TEXT},
    )
    assert request.options == {"slo_ms": 250, "priority_class": "critical", "value": 2}
    assert request.stream and request.usage


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"messages": []}, "messages", "at least one"),
        ({"messages": "hi"}, "messages", "expected a list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]", "whose role is one of"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "expected a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "type text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls", "expected objects"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "messages[0].tool_calls", "assistant"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images", "not served"),
        ({"n": 17}, "n", "at most 16"),
        ({"n": True}, "n", "= true"),
        ({"echo": True}, "echo", "= true is not served here; leave it out, or send false"),
        ({"prompt": "x"}, "prompt", "no such field"),
        ({"tools": [TOOL]}, "tools", "declares no input"),
        ({"tools": [TOOL, 5]}, "tools[1]", "function with a name"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "function with a name"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0]", "function with a name"),
        ({"tools": [{**TOOL, "type": "custom"}]}, "tools[0]", "function with a name"),
        ({"tools": {}}, "tools", "a list of functions"),
        ({"tool_choice": "required"}, "tool_choice", "declares no input"),
        ({"tool_choice": 3}, "tool_choice", "an object with a type"),
        ({"logprobs": True}, "logprobs", "not served"),
        ({"logprobs": 3}, "logprobs", "true or false"),
        ({"top_logprobs": 5}, "top_logprobs", "= 5"),
        ({"mirostat": 2}, "mirostat", "not served"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "not served here; leave it out"),
        ({"response_format": {"type": "json_object"}}, "response_format", "declares no input"),
        ({"response_format": "json"}, "response_format", "an object with a type"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"max_tokens": 0}, "max_tokens", "from 1"),
        ({"max_tokens": "5"}, "max_tokens", "number"),
        ({"stop": [1]}, "stop", "list of texts"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": 3}, "stream_options", "an object"),
        ({"stream_options": {"include_usage": "false"}}, "stream_options.include_usage", "true or false"),
        ({"stop": "x"}, "stop", "declares no input"),
        ({"seed": 1}, "seed", "declare seed = { dtype"),
        ({"temperature": 0}, "temperature", "declares no input"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "declares no input"),
        ({"logit_bias": {"3": 5}}, "logit_bias", "declares no input"),
        ({"logit_bias": {"x": 5}}, "logit_bias", "tokens' numbers"),
        ({"logit_bias": {"3": 500}}, "logit_bias", "-100 to 100"),
        ({"deadline_ms": "soon"}, "deadline_ms", "expected a number"),
        ({"slo_ms": "soon"}, "slo_ms", "expected a number"),
        ({"deadline_ms": True}, "deadline_ms", "expected a number"),
        ({"slo_ms": 500, "deadline_ms": 5}, "deadline_ms", "slo_ms"),
        ({"value": "much"}, "value", "expected a number"),
        ({"class": 3}, "class", "expected a text"),
        ({"top_p": float("nan")}, "top_p", "expected a number"),
        ({"seed": 1.5}, "seed", "whole number"),
        ({"max_tokens": 2.5}, "max_tokens", "whole number"),
        ({"seed": 10**30}, "seed", "whole number"),
        ({"seed": 2**64}, "seed", "whole number"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_name(fields, param, says):
    inputs = {"messages": TEXT, "max_tokens": ANY, "top_p": ANY}
    if says == "whole number":
        inputs["seed"] = ANY
    with pytest.raises(BadInput) as caught:
        chat.read_request(body(**fields), inputs)
    assert str(caught.value).startswith(param) and says in str(caught.value)
    assert completion.error_body(caught.value)["error"]["param"] == param


def test_a_number_that_the_apps_type_cannot_hold_is_refused():
    with pytest.raises(BadInput, match="takes it as int32"):
        chat.read_request(body(seed=2**31), {"messages": TEXT, "seed": {"dtype": "int32", "shape": []}})


@pytest.mark.parametrize("choice", [{}, {"tool_choice": ANY}])
def test_a_function_that_may_not_be_called_is_never_offered_without_saying_so(choice):
    asked = body(tools=[TOOL], tool_choice="none")
    (ask,) = chat.read_request(asked, {"messages": TEXT, "tools": ANY, **choice}).asks
    assert ("tools" in ask) is ("tool_choice" in ask) is bool(choice)


def test_calls_without_an_id_have_none():
    calls = [{"id": None, "function": {"name": "f", "arguments": "{}"}}]
    told = chat.read_request(body(messages=[{"role": "assistant", "tool_calls": calls}]), {}).asks[0]["messages"]
    assert json.loads(told)[0]["tool_calls"][0]["id"] == ""


def deltas(chunks):
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


def test_pieces_and_what_no_piece_had():
    made = completion.Completion("id", "m", 5)
    chunks = [made.piece(0, {"text": "hi "}), made.piece(0, {"text": "there"})]
    assert made.piece(0, {"text": ""}) is None
    chunks += made.last(0, {"text": "hi there!", "tokens": np.int32(3), "prompt_tokens": np.int32(2)})
    chunks.append(made.counts())
    assert deltas(chunks) == [{"role": "assistant", "content": "hi "}, {"content": "there"}, {"content": "!"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, None, "stop"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 5


def test_an_answer_without_pieces_is_one():
    assert deltas(completion.Completion("id", "m", 5).last(0, {"text": "all"})) == [
        {"role": "assistant", "content": "all"},
        {},
    ]
    assert deltas(completion.Completion("id", "m", 5).last(0, {"text": ""})) == [
        {"role": "assistant", "content": ""},
        {},
    ]


def test_a_count_is_believed_before_a_list():
    usage = completion.usage_of({"tokens": np.zeros(3, np.int32), "completion_tokens": np.int64(4), "prompt_tokens": 5})
    assert usage == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    usage = completion.usage_of({"prompt_tokens": np.int64(5), "cached_tokens": np.int64(3)})
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}


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
    assert completion.count_of(tokens) == count


TOOLS = [{"type": "function", "function": {"name": "lamp", "parameters": {"type": "object"}}}]
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


def test_tools_and_forms_become_inputs_as_they_were_sent():
    call = {"id": "1", "type": "function", "function": {"name": "lamp", "arguments": "{}"}}
    talk = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "done"}]
    inputs = chat.read_request(body(messages=talk, tools=TOOLS, tool_choice="required", response_format=FORM), {}).asks[
        0
    ]
    assert json.loads(inputs["tools"]) == TOOLS and json.loads(inputs["response_format"]) == FORM
    assert json.loads(inputs["tool_choice"]) == "required"
    assert json.loads(inputs["messages"])[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    with pytest.raises(BadInput, match="this one takes a prompt"):
        chat.read_request(body(messages=talk), {"prompt": TEXT})


def test_calls_of_an_answer_are_told_in_openais_words():
    outputs = {"text": "", "finish_reason": "tool_calls", "tool_calls": '[{"name": "lamp", "arguments": "{}"}]'}
    choice = completion.Completion("id", "m", 1).whole([Answer(outputs)])["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert call["function"] == {"name": "lamp", "arguments": "{}"} and call["id"] and call["type"] == "function"
    deltas = [chunk["choices"][0] for chunk in completion.Completion("id", "m", 1).last(0, outputs)]
    told = [delta["delta"]["tool_calls"] for delta in deltas if "tool_calls" in delta["delta"]]
    assert told == [[{"index": 0, **call}]] and deltas[-1]["finish_reason"] == "tool_calls"


def test_choices_draw_for_themselves_and_prompts_are_counted_once():
    request = chat.read_prompts({"model": "m", "prompt": ["a", "b"], "n": 2, "seed": 7, "logprobs": 0}, {})
    assert [ask["prompt"] for ask in request.asks] == ["a", "a", "b", "b"]
    assert [(ask["seed"].item(), ask["seed"].dtype.name) for ask in request.asks] == [(7, "int64"), (8, "int64")] * 2
    assert {ask["logprobs"].item() for ask in request.asks} == {0}
    answers = [Answer({"text": text, "prompt_tokens": 3, "completion_tokens": 2}) for text in "abcd"]
    whole = completion.Completion("id", "m", 1, request.n, chat=False).whole(answers)
    assert whole["object"] == "text_completion" and [each["text"] for each in whole["choices"]] == list("abcd")
    assert whole["usage"] == {"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14}


@pytest.mark.parametrize(
    ("read", "fields", "param"),
    [
        (chat.read_prompts, {"prompt": [1, 2]}, "prompt"),
        (chat.read_prompts, {"prompt": []}, "prompt"),
        (chat.read_prompts, {"prompt": "x", "echo": True}, "echo"),
        (chat.read_prompts, {"prompt": "x", "suffix": "y"}, "suffix"),
        (chat.read_prompts, {"prompt": "x", "messages": []}, "messages"),
        (chat.read_prompts, {"prompt": ["x"] * 9, "n": 2}, "n"),
        (chat.read_texts, {"input": [[1, 2]]}, "input"),
        (chat.read_texts, {"input": []}, "input"),
        (chat.read_texts, {"input": "x", "encoding_format": "int8"}, "encoding_format"),
        (chat.read_texts, {"input": "x", "dimensions": 5}, "dimensions"),
    ],
)
def test_what_prompts_and_texts_cannot_ask_is_refused_by_its_name(read, fields, param):
    with pytest.raises(BadInput) as caught:
        read({"model": "m", **fields}, {"prompt": TEXT})
    assert caught.value.param == param


def test_probabilities_come_once_whether_in_pieces_or_at_the_end():
    def told(*tokens):
        return json.dumps([{"token": t, "logprob": -1.0, "bytes": [], "top_logprobs": []} for t in tokens])

    for is_chat in (True, False):
        made = completion.Completion("id", "m", 1, chat=is_chat)
        chunks = [
            made.piece(0, {"text": "a", "logprobs": told("a")}),
            made.piece(0, {"text": "", "logprobs": told("b")}),
        ]
        chunks += made.last(0, {"text": "abc", "logprobs": told("a", "b", "c")})
        found = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        content = [each["content"][0]["token"] if is_chat else each["tokens"][0] for each in found if each]
        assert content == ["a", "b", "c"] and found[-1] is None
        assert is_chat or [each["text_offset"] for each in found if each] == [[0], [1], [2]]


@pytest.mark.parametrize("tokens", [[1, 2], [[1, 2], [3]]])
def test_tokens_to_embed_are_refused_with_what_sends_texts(tokens):
    with pytest.raises(BadInput, match="input: .*tokens are not served .*check_embedding_ctx_length=False"):
        chat.read_texts({"model": "m", "input": tokens}, {"text": TEXT})


def test_which_apps_embed_and_what_their_vectors_are_asked_with():
    optional = {"dtype": "int32", "shape": [], "optional": True}
    app = {"inputs": {"text": TEXT, "n": optional}, "outputs": ["embedding"]}
    assert chat.can_embed(app) and not chat.can_embed({**app, "outputs": ["text"]})
    assert not chat.can_embed({**app, "inputs": {"text": TEXT, "x": ANY}})
    request, as_base64 = chat.read_texts(
        {"model": "m", "input": ["a", "b"], "encoding_format": "base64"}, app["inputs"]
    )
    assert request.asks == [{"text": "a"}, {"text": "b"}] and as_base64


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 1), (2, 2), (0,), (3, 1, 2)])
def test_a_vector_has_one_axis(shape):
    answer = Answer({"embedding": np.ones(shape)})
    if np.prod(shape) == 2:
        assert vector_of(answer).shape == (2,)
        return
    with pytest.raises(Failed, match="one axis of numbers"):
        vector_of(answer)


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e300])
def test_a_vector_that_is_no_numbers_is_the_apps_failure(odd):
    with pytest.raises(Failed, match="infinity or NaN"):
        vector_of(Answer({"embedding": np.array([1.0, odd])}))


@pytest.mark.parametrize("odd", [{"token": 5}, {"top_logprobs": None}, {"top_logprobs": [{}]}])
def test_probabilities_that_are_none_are_the_apps_failure(odd):
    entry = {"token": "a", "logprob": -1.0, "top_logprobs": [], **odd}
    with pytest.raises(Failed, match="logprobs"):
        completion.Completion("id", "m", 5, chat=False).last(0, {"text": "a", "logprobs": json.dumps([entry])})
