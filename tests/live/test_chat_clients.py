"""The clients of OpenAI and of Ollama, as their makers publish them, before an untrained language model and an app that
embeds texts."""

from __future__ import annotations

import json
import math

import lm_models
import pytest
from http_front import FrontThread
from serving import function, served

from edgeserve.commands.lm_model.graph import random_tensors, write_model
from edgeserve.fronts.http.settings import HttpConfig

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "lamp",
        "parameters": {"type": "object", "properties": {"room": {"enum": ["hall"]}}, "required": ["room"]},
    },
}


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("lm"))
    shape = lm_models.SHAPE._replace(context=1024)  # a byte is a token
    write_model(f"{folder}/tiny.onnx", shape, random_tensors(shape, seed=1), lm_models.ABOUT)
    model = {"engine": "lm", "file": f"{folder}/tiny.onnx", "batch": [1, 2, 4], "slots": 4}
    tables = {
        "policy": {"fifo": {}},
        "model": {
            "tiny": {**model, "options": {"max_tokens": 200}},
            "vectors": function("embed", "example_text", "http_functions"),
            "caller": function("call_lamp", "example_chat", "http_functions"),
        },
        "app": {
            "tiny": {"model": "tiny", "slo": "60s"},
            "vectors": {
                "model": "vectors",
                "slo": "60s",
                "inputs": {"text": {"dtype": "text"}},
                "outputs": ["embedding", "prompt_tokens"],
            },
            "caller": {
                "model": "caller",
                "slo": "60s",
                "inputs": {"messages": {"dtype": "text"}, "tools": {"dtype": "text", "optional": True}},
            },
        },
    }
    with served(tables) as (runtime, _), FrontThread(runtime.endpoints[0], HttpConfig(listen="127.0.0.1:0")) as thread:
        yield thread


# --- OpenAI's ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(front):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    with openai.OpenAI(base_url=f"http://{front.http}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["tiny", "vectors", "caller"]
    assert client.models.retrieve("vectors").object == "model"


def test_prompts_go_on_as_the_model_would(client):
    asked = {"model": "tiny", "max_tokens": 6, "temperature": 0}
    one = client.completions.create(prompt="Once", logprobs=2, **asked)
    assert one.object == "text_completion" and one.choices[0].finish_reason == "length"
    assert one.usage.prompt_tokens == 4 and one.usage.completion_tokens == 6
    chances = one.choices[0].logprobs
    assert len(chances.tokens) == len(chances.token_logprobs) == 6 and all(
        len(each) <= 2 for each in chances.top_logprobs
    )
    assert all(chance <= 0 for chance in chances.token_logprobs)
    both = client.completions.create(prompt=["Once", "Twice"], **asked)
    assert [choice.index for choice in both.choices] == [0, 1] and both.choices[0].text == one.choices[0].text
    assert both.usage.prompt_tokens == 9 and both.usage.completion_tokens == 12
    pieces = list(client.completions.create(prompt="Once", stream=True, **asked))
    assert "".join(piece.choices[0].text for piece in pieces) == one.choices[0].text
    stop = both.choices[0].text[2:4]
    ended = client.completions.create(prompt="Once", stop=stop, **asked).choices[0]
    assert ended.finish_reason == "stop" and one.choices[0].text == ended.text + one.choices[0].text[len(ended.text) :]
    assert stop not in ended.text


def test_several_choices_differ_and_come_in_one_stream(client):
    asked = {"model": "tiny", "messages": HELLO, "n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 8}
    whole = client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2] and len(set(texts)) == 3
    streamed, usage = ["", "", ""], None
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
        usage = chunk.usage or usage
    assert streamed == texts and usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_probabilities_are_those_of_the_choice(client, stream):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 5, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    told = client.chat.completions.create(stream=stream, **asked)
    chunks = told if stream else [told]
    entries = [e for chunk in chunks for choice in chunk.choices if choice.logprobs for e in choice.logprobs.content]
    assert len(entries) == 5 and all(len(entry.top_logprobs) == 3 for entry in entries)
    for entry in entries:  # greedy: the best is the one that was taken
        assert entry.top_logprobs[0].bytes == entry.bytes and entry.logprob == entry.top_logprobs[0].logprob
        assert sum(math.exp(each.logprob) for each in entry.top_logprobs) < 1.001


def function_tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


ONLY_G = {
    "tools": [function_tool("f"), function_tool("g")],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function_tool("g")]}},
}


def test_a_function_that_is_not_allowed_is_not_called(client):
    pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")
    told = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=150, temperature=1, seed=1, extra_body=ONLY_G
    )
    assert [call.function.name for call in told.choices[0].message.tool_calls] == ["g"]


def test_prompts_may_be_numbers_of_tokens(client):
    asked = {"model": "tiny", "max_tokens": 4, "temperature": 0}
    text = client.completions.create(prompt="Once", **asked).choices[0].text
    for prompt in (list(b"Once"), [list(b"Once")], ["Once", list(b"Once")]):
        assert {choice.text for choice in client.completions.create(prompt=prompt, **asked).choices} == {text}


def test_a_bias_forbids_a_token(client):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 1, "temperature": 0, "logprobs": True}
    first = client.chat.completions.create(**asked).choices[0].logprobs.content[0].bytes
    other = (
        client.chat.completions.create(logit_bias={str(first[0]): -100}, **asked).choices[0].logprobs.content[0].bytes
    )
    assert first != other


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_texts_become_vectors(client, form):
    asked = {} if form is None else {"encoding_format": form}
    answer = client.embeddings.create(model="vectors", input=["abc", "d e"], **asked)
    vectors = [each.embedding for each in answer.data]
    if form == "base64":
        assert all(isinstance(vector, str) for vector in vectors)
    else:  # the client asks for base64 by itself where nothing is said, and reads it
        assert vectors == [[3.0, ord("a")], [3.0, ord("d")]]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 3


def test_many_texts_leave_room_for_others(client):
    answer = client.embeddings.create(model="vectors", input=["x" * length for length in range(1, 301)])
    assert [each.embedding[0] for each in answer.data] == list(range(1, 301))


# --- Ollama's ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def ollama(front):
    library = pytest.importorskip("ollama", reason="ollama is not installed")
    made = library.Client(host=f"http://{front.http}")
    made.library = library
    return made


def test_ollama_finds_its_models(ollama, front):
    models = {model.model: model for model in ollama.list().models}
    assert list(models) == ["tiny:latest", "vectors:latest", "caller:latest"] and models["tiny:latest"].digest
    assert ollama.show("tiny").capabilities == ["completion", "tools"]
    assert ollama.show("vectors:latest").capabilities == ["embedding"]
    assert [model.model for model in ollama.ps().models] == list(models)
    assert front.ask("GET", "/api/version")[1]["version"].startswith("0.12.")  # an Ollama's, which clients compare
    info = ollama.show("tiny").modelinfo
    assert info[f"{info['general.architecture']}.context_length"] == 1024
    with pytest.raises(ollama.library.ResponseError, match="nobody") as caught:
        ollama.chat("nobody", HELLO)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.library.ResponseError, match="configuration"):
        ollama.pull("tiny")


def test_ollama_chats_as_openais_protocol_does(ollama, front):
    options = {"num_ctx": 8192, "temperature": 0, "num_predict": 7, "num_thread": 2}
    whole = ollama.chat("tiny:latest", HELLO, options=options, think=False, keep_alive="10m")
    body = {"model": "tiny", "messages": HELLO, "temperature": 0, "max_tokens": 7}
    same = front.ask("POST", "/v1/chat/completions", body)[1]
    assert whole.message.content == same["choices"][0]["message"]["content"]
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 7) and whole.total_duration > 0
    assert whole.prompt_eval_count == same["usage"]["prompt_tokens"]
    pieces = list(ollama.chat("tiny", HELLO, options=options, stream=True))
    assert "".join(piece.message.content for piece in pieces) == whole.message.content and len(pieces) > 2
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True] and pieces[-1].eval_count == 7
    assert ollama.chat("tiny", []).done_reason == ollama.generate("tiny", "").done_reason == "load"
    for path, odd in (("chat", {"messages": {}}), ("generate", {"prompt": []}), ("generate", {"prompt": False})):
        assert front.ask("POST", f"/api/{path}", {"model": "tiny", **odd})[0] == 400, odd


def test_ollama_generates_and_goes_on_with_raw_prompts(ollama, front):
    options = {"temperature": 0, "num_predict": 6}
    system = ollama.generate("tiny", "hello", system="be brief", options=options)
    talk = [{"role": "system", "content": "be brief"}, *HELLO]
    assert system.response == ollama.chat("tiny", talk, options=options).message.content
    raw = "".join(piece.response for piece in ollama.generate("tiny", "Once", raw=True, stream=True, options=options))
    body = {"model": "tiny", "prompt": "Once", "temperature": 0, "max_tokens": 6}
    assert raw == front.ask("POST", "/v1/completions", body)[1]["choices"][0]["text"]


@pytest.mark.parametrize("raw", [False, True])
def test_ollamas_words_mean_the_same_for_raw_prompts(ollama, front, raw):
    asked = {"model": "tiny", "prompt": "Once", "raw": raw, "options": {"num_predict": 2}}
    told = ollama.generate(**asked, logprobs=True, top_logprobs=2).logprobs
    assert len(told) == 2 and all(len(each.top_logprobs) == 2 for each in told)
    assert ollama.generate(**asked, logprobs=False).logprobs is None
    asked["options"] = {"num_predict": -2.0}  # as clients write -2 that have no whole numbers
    assert ollama.generate(**asked).done
    assert front.ask("POST", "/api/generate", {**asked, "stream": False, "logprobs": 3})[0] == 400


def test_ollamas_formats_and_tools_hold(ollama):
    pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")
    options = {"temperature": 1, "seed": 3, "num_predict": 200}
    schema = TOOL["function"]["parameters"]
    held = ollama.chat("tiny", HELLO, format=schema, options=options)
    assert json.loads(held.message.content) == {"room": "hall"} and held.done_reason == "stop"
    for stream in (False, True):
        told = ollama.chat("caller", [{"role": "user", "content": "hall"}], tools=[TOOL], stream=stream)
        calls = [call for piece in (told if stream else [told]) for call in piece.message.tool_calls or ()]
        assert [(call.function.name, call.function.arguments) for call in calls] == [("lamp", {"room": "hall"})]
    call = {"function": {"name": "lamp", "arguments": {"room": "hall"}}}
    talk = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_name": "lamp"},
    ]
    assert ollama.chat("tiny", talk, tools=[TOOL], options={**options, "num_predict": 4}).done


def test_ollama_embeds(ollama):
    assert ollama.embed("vectors", ["abc", "d"]).embeddings == [[3.0, ord("a")], [1.0, ord("d")]]
    assert ollama.embeddings("vectors", "abc").embedding == [3.0, ord("a")]
    assert ollama.embed("vectors", []).embeddings == ollama.embed("vectors", "").embeddings == []  # it is loaded
    assert ollama.embeddings("vectors", "").embedding == []


def test_options_that_change_nothing_are_logged_once(ollama, caplog):
    caplog.set_level("INFO", "edgeserve")
    for _ in range(2):
        ollama.chat("tiny", HELLO, options={"logits_all": True, "num_predict": 1})
    told = [record.message.split()[1] for record in caplog.records if "told once" in record.message]
    assert told == ["options.logits_all"]
