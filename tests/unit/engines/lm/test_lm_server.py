"""A language model that a local server has: what it is asked for, what arrives, and what happens when it fails."""

from __future__ import annotations

import json
import pickle
import re
import threading

import numpy as np
import pytest
from lm_control import Recorder
from openai_server import local_server, words_of
from serving import wait_until

import edgeserve
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo, written_of
from edgeserve.errors import ConfigError, EngineError, WrongInput
from edgeserve.ipc import wire
from edgeserve.live.values import item_error

ITEM = {"prompt": "Tell a story", "max_tokens": 6}


@pytest.fixture
def server():
    with local_server() as local:
        yield local


def made(server, **options):
    model = ModelConfig(
        "chat", "lm", batch=(1, 2, 4), options={"backend": "openai", "url": server.url, **options}, slots=4
    )
    engine = make_engine(model, [LaneInfo()], ".")
    engine.load()
    return engine


def run(session, items, states=(), **settings):
    return session.launch(Batch(items, len(items), states, **settings)).result()


def test_pieces_come_as_they_are_written_and_the_end_has_the_servers_numbers(server):
    session, control = made(server).open(LaneInfo()), Recorder()
    run(session, [ITEM, {"messages": json.dumps([{"role": "user", "content": "Hello"}])}], control=control)
    first, second = sorted(server.asked, key=lambda body: "messages" in body)  # they came in any order
    words = words_of(first)
    assert [piece.outputs["text"] for piece in control.pieces[0]] == words
    outputs = control.ends[0].outputs
    assert outputs["text"] == "".join(words)
    assert (outputs["finish_reason"], outputs["prompt_tokens"], outputs["completion_tokens"]) == ("length", 7, 6)
    assert control.ends[1].outputs["text"] == "".join(words_of(second))


def test_a_request_carries_what_its_item_and_the_model_say(server, monkeypatch):
    monkeypatch.setenv("LOCAL_KEY", "secret")
    engine = made(server, temperature=0.5, stop=["\n\n"], key_env="LOCAL_KEY", chat=True, max_tokens=8)
    form = {"type": "json_object"}
    item = {"prompt": "Hi", "top_p": np.array(0.9), "seed": 3, "response_format": json.dumps(form), "max_tokens": 99}
    run(engine.open(LaneInfo()), [item])
    asked = server.asked[0]
    expected = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["\n\n"], "max_tokens": 8, "response_format": form}
    assert {name: asked[name] for name in expected} == expected
    assert asked["messages"] == [{"role": "user", "content": "Hi"}]
    assert (asked["authorization"], asked["model"]) == ("Bearer secret", "words")


def test_two_lanes_draw_two_answers(server):
    engine = made(server, temperature=1.0)
    answers = [run(engine.open(LaneInfo(name=lane)), [ITEM])[0].outputs["text"] for lane in ("cpu0", "cpu1")]
    assert answers[0] != answers[1]


def test_the_answers_of_a_batch_are_written_at_the_same_time_and_it_can_be_cut_while_the_server_is_silent(server):
    session = made(server).open(LaneInfo())
    server.go.clear()
    control = Recorder()
    results = []
    thread = threading.Thread(target=lambda: results.extend(run(session, [ITEM] * 3, control=control)))
    thread.start()
    wait_until(lambda: server.running == 3)
    control.stopping = True
    thread.join(10)
    assert [result.done for result in results] == [False] * 3
    server.go.set()
    ends = run(session, [ITEM] * 3, [result.state for result in results])
    assert {end.outputs["text"] for end in ends} == {"".join(words_of(server.asked[0]))}
    assert len(server.asked) == 3, "the streams go on: nothing is asked for again"


def test_a_state_says_what_it_has_written_and_goes_on_in_another_process(server):
    session = made(server, temperature=1.0).open(LaneInfo())
    (begun,) = run(session, [ITEM], steps_max=2)
    words = words_of(server.asked[0])
    assert written_of(begun.state).outputs["text"] == "".join(words[:2])
    control = Recorder()
    run(made(server).open(LaneInfo()), [ITEM], [pickle.loads(pickle.dumps(begun.state))], control=control)
    assert [piece.outputs["text"] for piece in control.pieces[0]] == words[2:], "what was sent is not sent again"
    assert control.ends[0].outputs["text"] == "".join(words)
    assert server.asked[0]["seed"] == server.asked[1]["seed"], "another seed would tell another story"


@pytest.mark.parametrize("shorter", [False, True])
def test_an_answer_that_the_server_writes_anew_is_not_joined_to_the_first(server, shorter):
    """By another seed, or by a batch of other sizes. Joined, it would be a text that nothing ever wrote."""
    session = made(server, temperature=1.0).open(LaneInfo())
    (begun,) = run(session, [ITEM], steps_max=2)
    begun.state.release()
    begun.state.body["max_tokens" if shorter else "seed"] = 1
    (ended,) = run(session, [ITEM], [begun.state])
    assert ended.done and "wrote another one" in str(ended.error)


@pytest.mark.parametrize("closes", [False, True])
def test_who_leaves_frees_the_servers_slot(server, closes):
    server.closes = closes
    session, control = made(server).open(LaneInfo()), Recorder()
    server.go.clear()
    thread = threading.Thread(target=lambda: run(session, [ITEM], control=control))
    thread.start()
    wait_until(lambda: server.running == 1)
    control.gone.add(0)
    thread.join(10)
    wait_until(lambda: server.running == 0)
    assert server.left == 1 and control.ends[0].outputs == {}


def test_what_the_server_refuses_is_the_clients_error_and_the_others_run(server):
    engine = made(server)
    wrong, right = run(engine.open(LaneInfo()), [{"prompt": "refuse me"}, ITEM])
    assert isinstance(wrong.error, WrongInput)
    assert "model 'chat'" in str(wrong.error) and "exceeds the available context size" in str(wrong.error)
    assert right.error is None and engine.trouble("") == ""


def test_a_server_that_ends_fails_what_it_had_and_is_trouble_until_it_answers(server):
    engine = made(server)
    session = engine.open(LaneInfo())
    server.breaks_after = 2
    (result,) = run(session, [ITEM])
    assert "in the middle" in str(result.error) and "in the middle" in engine.trouble("")
    server.breaks_after = -1
    assert run(session, [ITEM])[0].error is None and engine.trouble("") == ""


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"error": {"message": "out of slots"}}, "out of slots"),
        (None, "no JSON object"),
        ({"choices": [7]}, "another form"),
        ({"choices": [{"text": ["x"]}]}, "another form"),
        ({"choices": [], "usage": {"prompt_tokens": "many"}}, "another form"),
        ([1], "no JSON object"),
    ],
)
def test_a_failure_within_an_answer_is_that_answers_alone(server, event, says):
    server.odd = event
    engine = made(server)
    wrong, right = run(engine.open(LaneInfo()), [{"prompt": "odd", "max_tokens": 6}, ITEM])
    assert wrong.error is not None and not isinstance(wrong.error, WrongInput)
    assert re.search(says, str(wrong.error))
    assert right.error is None and right.outputs["text"] == "".join(words_of({**ITEM}))


def test_half_of_a_character_travels_as_a_question_mark(server):
    server.odd = {"choices": [{"text": "half \ud83d"}]}
    (result,) = run(made(server).open(LaneInfo()), [{"prompt": "odd", "max_tokens": 3}])
    assert "half ?" in result.outputs["text"]
    wire.encode_answer(1, result.outputs, 10**6)


def test_an_end_that_comes_alone_is_an_end_and_so_is_a_call(server):
    session = made(server).open(LaneInfo())
    (begun,) = run(session, [ITEM], steps_max=6)
    assert not begun.done and begun.steps == 6
    (ended,) = run(session, [ITEM], [begun.state], steps_max=6)
    assert item_error("chat", ended) is None and ended.outputs["completion_tokens"] == 6
    server.odd = {
        "choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "light", "arguments": "{}"}}]}}]
    }
    (called,) = run(session, [{"prompt": "odd", "max_tokens": 2}], steps_max=8)
    assert called.steps == 2, "a piece of a call is a step"
    assert json.loads(called.outputs["tool_calls"]) == [{"name": "light", "arguments": "{}"}]
    assert called.outputs["finish_reason"] == "length", "the server says that it was cut: another call may be missing"


@pytest.mark.parametrize(
    "form",
    [
        {"content": [{"token": "b", "logprob": -0.5, "top_logprobs": [{"token": "c", "logprob": -1.0}]}]},
        {"tokens": ["b"], "token_logprobs": [-0.5], "top_logprobs": [{"c": -1.0}], "text_offset": [3]},
    ],
    ids=["llama-server", "vLLM"],
)
def test_probabilities_come_in_one_form(server, form):
    server.odd = {"choices": [{"text": "b", "logprobs": form}]}
    (result,) = run(made(server).open(LaneInfo()), [{"prompt": "odd", "max_tokens": 2, "logprobs": 1}])
    assert json.loads(result.outputs["logprobs"]) == [
        {"token": "b", "logprob": -0.5, "top_logprobs": [{"token": "c", "logprob": -1.0}]}
    ]


def test_the_probability_of_a_token_without_text_comes_with_the_rest_of_its_character(server):
    chance = {"token": "b", "logprob": -0.5, "top_logprobs": []}
    server.odd = {"choices": [{"text": "", "logprobs": {"content": [chance]}}]}
    control = Recorder()
    run(made(server).open(LaneInfo()), [{"prompt": "odd", "max_tokens": 3, "logprobs": 0}], control=control)
    told = [json.loads(piece.outputs["logprobs"]) for piece in control.pieces[0]]
    assert told == [[], [chance]] and json.loads(control.ends[0].outputs["logprobs"]) == [chance]


@pytest.mark.parametrize(
    "item",
    [
        {"prompt": "Hi", "tools": np.zeros(2)},
        {"prompt": "Hi", "logit_bias": float("nan")},
        {"prompt": "half of a character: \ud800"},
        {"messages": json.dumps([{"role": "user", "content": "\ud800"}])},
        {"messages": [{"role": "user", "content": "Hi", "name": object()}]},
    ],
)
def test_an_input_that_is_no_json_is_the_clients_error(server, item):
    """A server that fails at it would be in trouble, for all."""
    engine = made(server)
    (wrong,) = run(engine.open(LaneInfo()), [item])
    assert isinstance(wrong.error, WrongInput) and "must be JSON" in str(wrong.error)
    assert engine.trouble("") == "" and not server.asked


def test_at_load_the_server_says_its_model_and_context(server):
    engine = made(server)
    assert (engine.sequence().context_tokens, engine.sequence().slots) == (256, 4)
    server.models.append({"id": "other", "meta": {"n_ctx_train": 64}})
    assert made(server, served="other").sequence().context_tokens == 64
    with pytest.raises(EngineError, match="serves 'words', 'other'; expected .*options.served"):
        made(server)
    server.models[:] = [{"id": "words"}]
    with pytest.raises(EngineError, match="does not say how many tokens .*options.context"):
        made(server)
    assert made(server, context=32).sequence().context_tokens == 32
    server.models[:] = [{"id": "one", "n_ctx": 32}]
    engine = made(server)
    server.models[:] = [{"id": "its successor", "n_ctx": 48}]
    engine.unload()
    engine.load()
    assert engine.sequence().context_tokens == 48
    server.models = None
    with pytest.raises(EngineError, match="serves no model"):
        made(server)


def test_without_a_server_the_error_says_what_to_do(server):
    model = ModelConfig("chat", "lm", options={"backend": "openai", "url": "http://127.0.0.1:9/v1"})
    with pytest.raises(EngineError, match=r"model 'chat': http://127.0.0.1:9/v1/models failed.*Start the server first"):
        make_engine(model, [LaneInfo()], ".").load()
    for options, says in (
        ({"url": "localhost"}, "options.url"),
        ({"url": "http:///v1"}, "options.url"),
        ({"url": "http://box:port/v1"}, "options.url"),
        ({"url": server.url, "gpu_layers": 3}, "gpu_layers"),
        ({"url": server.url, "key_env": "EDGESERVE_NO_SUCH_KEY"}, "key_env.*is not set"),
    ):
        with pytest.raises(ConfigError, match=says):
            make_engine(ModelConfig("chat", "lm", options={"backend": "openai", **options}), [LaneInfo()], ".")


def test_served_under_the_scheduler(server, tmp_path):
    path = tmp_path / "edge.toml"
    path.write_text(f"""
[model.chat]
engine = "lm"
batch = [1, 2, 4]
options = {{ backend = "openai", url = "{server.url}" }}

[app.chat]
model = "chat"
slo = "20s"
""")
    with edgeserve.Runtime(str(path)) as runtime:
        futures = [runtime.submit("chat", {"prompt": f"Story {number}", "max_tokens": 12}) for number in range(8)]
        texts = [future.result(30).outputs["text"] for future in futures]
    asked = {body["prompt"]: "".join(words_of(body)) for body in server.asked}
    assert texts == [asked[f"Story {number}"] for number in range(8)]


@pytest.mark.parametrize("odd", [None, {"choices": [{"delta": {"reasoning_content": "hm"}}]}])
def test_a_server_that_writes_more_than_was_asked_is_cut_and_left(server, odd):
    server.writes, server.odd = 100_000, odd
    session, control = made(server).open(LaneInfo()), Recorder()
    run(session, [ITEM], control=control)
    outputs = control.ends[0].outputs
    assert outputs["text"] == "".join([piece.outputs["text"] for piece in control.pieces[0]])
    assert len(outputs["text"].split()) <= 6 and outputs["finish_reason"] == "length"
    wait_until(lambda: server.left == 1)
