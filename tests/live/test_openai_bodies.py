"""Fields of OpenAI's and Ollama's protocols besides the plain case: each field with any value is served or refused by
its name, never a fault of the front; and ``/v1/responses`` by OpenAI's own client."""

from __future__ import annotations

import http.client
import json

import lm_models
import pytest
from for_each import each_time
from http_front import FrontThread
from serving import function, served

from edgeserve.commands.lm_model.graph import random_tensors, write_model
from edgeserve.fronts.http.settings import HttpConfig

HELLO = [{"role": "user", "content": "hello"}]
TEXT = {"dtype": "text"}
HUGE = 10**400  # 401 digits
VALUES = [
    *[None, True, False, 0, -1, 1, 1.0, 1.5, -0.0, 2**31, 2**63, 2**64, HUGE, -HUGE, 1e308, "x", "", "\ud800", "2"],
    *[[], [None], [1], ["x"], [["x"]], [{}], {}, {"a": 1}, {"type": "x"}, {"type": None}, {"type": "function"}],
    *[{"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": 7}}, {"5": HUGE}, {"9" * 30: 1}],
]
REFUSED = {400, 404, 501, 503, 504}  # 503 and 504: a deadline_ms of a millisecond


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("lm"))
    shape = lm_models.SHAPE._replace(context=1024)  # a byte is a token
    write_model(f"{folder}/tiny.onnx", shape, random_tensors(shape, seed=1), lm_models.ABOUT)
    model = {"engine": "lm", "file": f"{folder}/tiny.onnx", "batch": [1, 2, 4], "slots": 4}
    embeds = {"inputs": {"text": TEXT}, "outputs": ["embedding", "prompt_tokens"]}
    calls = {"inputs": {"messages": TEXT, "tools": {**TEXT, "optional": True}}}
    tables = {
        "policy": {"fifo": {}},
        "model": {
            "tiny": {**model, "options": {"max_tokens": 3}},
            "writer": {**model, "options": {"max_tokens": 40}},
            "vectors": function("embed", "example_text", "http_functions"),
            "caller": function("call_lamp", "example_chat", "http_functions"),
            "recite": function("recite", "example_chat", "http_functions"),
        },
        "app": {
            "tiny": {"model": "tiny", "slo": "60s"},
            "writer": {"model": "writer", "slo": "60s"},
            "vectors": {"model": "vectors", "slo": "60s", **embeds},
            "caller": {"model": "caller", "slo": "60s", **calls},
            "recite": {"model": "recite", "slo": "60s", "inputs": {"messages": TEXT}},
            "free": {"model": "recite", "slo": "60s", "outputs": ["text"]},
        },
    }
    with served(tables) as (runtime, _), FrontThread(runtime.endpoints[0], HttpConfig(listen="127.0.0.1:0")) as thread:
        yield thread


CHAT = [
    *["model", "messages", "stream", "stream_options", "n", "logprobs", "top_logprobs", "max_tokens"],
    *["max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty"],
    *["presence_penalty", "repeat_penalty", "repeat_last_n", "stop", "logit_bias", "response_format"],
    *["tools", "tool_choice", "deadline_ms", "class", "value", "on_late", "user", "metadata", "store"],
    *["modalities", "audio", "reasoning_effort", "functions", "function_call", "best_of", "echo"],
    *["suffix", "prediction", "unknown"],
]
RESPONSES = [
    *["model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "tools"],
    *["tool_choice", "text", "stream", "reasoning", "include", "metadata", "store"],
    *["previous_response_id", "conversation", "truncation", "background", "top_logprobs"],
    *["parallel_tool_calls", "prompt", "user", "stream_options", "max_tool_calls", "seed", "stop"],
    *["unknown"],
]
OLLAMA = [
    *["model", "messages", "prompt", "system", "stream", "format", "options", "think", "tools"],
    *["keep_alive", "logprobs", "raw", "images", "suffix", "x"],
]
ITEMS = [
    {"role": "user", "content": "x"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "x"},
    {"type": "reasoning", "summary": []},
]
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES = [
    *[{"role": role, "content": "a"} for role in ("system", "user", "assistant", "tool", "developer")],
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]},
    {"role": "assistant", "tool_calls": [CALL]},
]


def changed(value, sent):
    """``sent`` with each key at any depth set to ``value``, one at a time."""
    for key, old in sent.items() if isinstance(sent, dict) else enumerate(sent):
        for new in [value, *(changed(value, old) if isinstance(old, (dict, list)) else ())]:
            yield {**sent, key: new} if isinstance(sent, dict) else [*sent[:key], new, *sent[key + 1 :]]


def bodies(value):
    """Requests with one field that is ``value``."""
    chat, prompt, asked = {"model": "free", "messages": HELLO}, {"model": "free", "prompt": "x"}, {"model": "free"}
    for field in CHAT:
        yield "/v1/chat/completions", {**chat, field: value}
        yield "/v1/completions", {**prompt, field: value}
    for field in ("input", "encoding_format", "dimensions", "user", "deadline_ms", "value", "model"):
        yield "/v1/embeddings", {"model": "vectors", "input": "x", field: value}
    for field in RESPONSES:
        yield "/v1/responses", {**asked, "input": "x", field: value}
    for message in MESSAGES:
        for each in changed(value, {**message, **{field: message.get(field) for field in ("refusal", "tool_calls")}}):
            yield "/v1/chat/completions", {**chat, "messages": [*HELLO, each]}
    for item in ITEMS:
        for each in changed(value, item):
            yield "/v1/responses", {**asked, "input": [ITEMS[0], each]}
    tool = {"name": "f", "parameters": {}, "description": "a", "strict": True}
    for each in changed(value, {"type": "function", "function": tool}):
        yield "/v1/chat/completions", {**chat, "tools": [each]}
    for each in changed(value, {"type": "function", **tool}):
        yield "/v1/responses", {**asked, "input": "x", "tools": [each]}
    for each in changed(value, {"type": "json_schema", "json_schema": {"name": "f", "schema": {}, "strict": True}}):
        yield "/v1/chat/completions", {**chat, "response_format": each}
    for field in OLLAMA:
        yield "/api/chat", {**chat, "stream": False, field: value}
        yield "/api/generate", {**prompt, "stream": False, field: value}
    for field in (
        "num_predict",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "repeat_last_n",
        "num_ctx",
        "mirostat",
    ):
        yield "/api/generate", {**prompt, "stream": False, "options": {field: value}}
    for field in ("model", "input", "options", "truncate", "dimensions"):
        yield "/api/embed", {"model": "vectors", "input": "x", field: value}
    yield "/api/show", {"model": value}


@pytest.mark.parametrize(
    "value",
    each_time(VALUES, None, True, -1, 1.5, HUGE, "\ud800", [{}], {"a": 1}),
    ids=lambda value: repr(value)[:20],
)
def test_any_value_of_any_field_is_served_or_refused(front, value):
    connection = http.client.HTTPConnection(front.http, timeout=60)
    for path, body in bodies(value):
        connection.request("POST", path, json.dumps(body).encode())
        answer = connection.getresponse()
        told = answer.read()
        assert answer.status == 200 or answer.status in REFUSED, (path, body, answer.status, told[:200])
    connection.close()


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "[" * 100_000, '{"a":', "\x00"])
def test_what_is_no_json_is_malformed(front, text):
    for field in ("temperature", "metadata", "max_tokens", "user"):
        sent = f'{{"model": "tiny", "messages": [{{"role": "user", "content": "x"}}], "{field}": {text}}}'
        for path in ("/v1/chat/completions", "/v1/responses", "/api/chat"):
            assert front.ask("POST", path, sent.encode())[0] == 400


EMPTY = [
    *[{"role": role, "content": None} for role in ("system", "user", "assistant", "tool", "developer")],
    *[{"role": role} for role in ("user", "assistant", "tool")],
    *[{"role": role, "content": []} for role in ("user", "assistant", "tool")],
    {"role": "user", "content": [{"type": "text", "text": None}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": None}]},
    {"role": "assistant", "content": None, "tool_calls": None, "refusal": None},
    {"role": "tool", "tool_call_id": "a", "content": None},
    {"role": "function", "name": "f", "content": None},
]


@pytest.mark.parametrize("message", EMPTY, ids=str)
def test_missing_content_is_empty_text(front, message):
    talk = [*HELLO, message, *HELLO]
    status, told = front.ask("POST", "/v1/chat/completions", {"model": "recite", "messages": talk})
    assert status == 200, told
    assert json.loads(told["choices"][0]["message"]["content"])[1]["content"] == ""


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"max_tokens": 3.0, "seed": 5.0, "top_k": 4.0, "n": 1.0}, {"max_tokens": 3, "seed": 5, "top_k": 4}),
        ({"max_tokens": -1, "stop": "", "top_k": -1}, {}),
        ({"max_completion_tokens": -1, "stop": [""]}, {}),
        ({"seed": 2**64 - 1, "temperature": 1}, {"seed": -1.0 + 0, "temperature": 0}),
        ({"seed": 9223372036854775808.0, "temperature": 1}, {"seed": -(2**63), "temperature": 1}),
    ],
)
def test_numbers_mean_what_clients_mean(front, fields, same):
    def told(more):
        body = {"model": "writer", "messages": HELLO, "temperature": 0, **more}
        status, answer = front.ask("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        return answer["choices"][0]["message"]["content"]

    first = told(fields)
    assert first == told(fields)
    if fields.get("seed") != 2**64 - 1:  # a seed of its own; -1 is none
        assert first == told(same)


# --- /v1/responses ----------------------------------------------------------------------------------------------------


@pytest.fixture
def client(front):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    with openai.OpenAI(base_url=f"http://{front.http}/v1", api_key="none", max_retries=0) as made:
        yield made


TOOL = {"type": "function", "name": "lamp", "parameters": {"type": "object", "properties": {"room": {}}}}


def test_a_response_is_the_answer_of_a_conversation(client):
    asked = {"model": "writer", "temperature": 0, "max_output_tokens": 8}
    told = client.responses.create(instructions="be brief", input="hello", **asked)
    talk = [{"role": "system", "content": "be brief"}, *HELLO]
    same = client.chat.completions.create(model="writer", messages=talk, temperature=0, max_tokens=8)
    assert told.output_text == same.choices[0].message.content
    assert (told.status, told.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert told.usage.output_tokens == 8 and told.usage.input_tokens == same.usage.prompt_tokens
    told = client.responses.create(
        model="recite",
        store=False,
        include=["reasoning.encrypted_content"],
        input=[
            {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "b"}], "type": "message"},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "done"},
            {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "c"}]},
        ],
    )
    assert told.status == "completed"
    said = json.loads(told.output_text)
    assert [(each["role"], each["content"]) for each in said] == [
        ("system", "a"),
        ("assistant", "b"),
        ("tool", "done"),
        ("tool", "c"),
    ]
    assert [call["function"]["name"] for call in said[1]["tool_calls"]] == ["f", "g"]


def test_a_response_streams_its_events_in_order(client):
    asked = {"model": "writer", "input": "hello", "temperature": 0}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(stream=True, **asked))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"} and len(kinds) > 10
    assert kinds[-4:-1] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens
    with client.responses.stream(**asked) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == whole.output_text == stream.get_final_response().output_text


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_calls_functions(client, stream):
    asked = {"model": "caller", "input": "hall", "tools": [TOOL]}
    if stream:
        with client.responses.stream(**asked) as events:
            kinds = [event.type for event in events]
            told = events.get_final_response()
        assert "response.function_call_arguments.done" in kinds
    else:
        told = client.responses.create(**asked)
    (call,) = told.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "lamp", {"room": "hall"})
    assert call.call_id and told.output_text == ""


def test_a_response_fits_a_class(client):
    pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")
    pydantic = pytest.importorskip("pydantic")
    lamp = pydantic.create_model("Lamp", on=(bool, ...))
    told = client.responses.parse(model="writer", input="hello", text_format=lamp, temperature=1)
    assert isinstance(told.output_parsed, lamp)


ASKED = {
    "text": {"model": "writer", "input": "hello", "temperature": 0, "instructions": "be brief", "metadata": {"a": "b"}},
    "cut": {"model": "writer", "input": "hello", "max_output_tokens": 4},
    "calls": {"model": "caller", "input": "hall", "tools": [{**TOOL, "strict": True}]},
}


@pytest.mark.parametrize("case", ASKED)
def test_responses_and_events_have_what_the_client_declares(front, case):
    responses = pytest.importorskip("openai.types.responses", reason="openai is not installed")
    declared = pytest.importorskip("pydantic").TypeAdapter
    status, told = front.ask("POST", "/v1/responses", ASKED[case])
    assert status == 200 and declared(responses.Response).validate_python(told)
    _, sent, _ = front.ask_raw("POST", "/v1/responses", {**ASKED[case], "stream": True})
    events = [json.loads(line[len("data: ") :]) for line in sent.decode().splitlines() if line.startswith("data: ")]
    event = declared(responses.ResponseStreamEvent)
    assert len([event.validate_python(each) for each in events]) > 5


def test_fields_for_the_record_change_nothing(front):
    about = {"prompt_cache_options": {"mode": "explicit"}, "service_tier": "fast", "user": "a", "metadata": {"b": "c"}}
    talk = {"model": "recite", "messages": HELLO}
    assert front.ask("POST", "/v1/chat/completions", {**talk, **about})[0] == 200
    assert front.ask("POST", "/v1/responses", {"model": "recite", "input": "x", **about})[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("GET", "/v1/responses/resp_1", "whole conversation"),
        ("DELETE", "/v1/responses/resp_1", "whole conversation"),
        ("POST", "/v1/responses/input_tokens", "POST /v1/responses/input_tokens is not served"),
        ("POST", "/v1/images/generations", "/v1/chat/completions"),
        ("GET", "/v1/files", "GET /v1/models"),
    ],
)
def test_what_openai_has_besides_is_a_typed_refusal(front, method, path, says):
    status, told = front.ask(method, path, {} if method == "POST" else None)
    assert (status, told["error"]["code"]) == (501, "not_served") and says in told["error"]["message"]
