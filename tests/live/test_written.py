"""The text that a language model has written reaches its client under any load: whole or in pieces, in this process,
over the bus and over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import lm_models
import numpy as np
import pytest
from http_front import FrontThread
from serving import LIB, served, wait_until

from edgeserve.answers import Answer
from edgeserve.async_runtime import AsyncRuntime
from edgeserve.client import AsyncClient
from edgeserve.commands.lm_model.graph import random_tensors, write_model
from edgeserve.config.loading import parse_config
from edgeserve.errors import Dropped, RequestError
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.runtime import Runtime
from edgeserve.sched.protocol.actions import FinishRequest
from edgeserve.sched.protocol.events import BatchProgress
from edgeserve.taps.trace import read_recording
from edgeserve.units import ms_to_ns

SLO_MS = 600.0
TOKENS = 60
ENDLESS = 20_000
"""Tokens of an answer that no machine writes in that time."""

SECONDS = 1.5
HELLO = [{"role": "user", "content": "once"}]
ASK = {"prompt": "once upon a time", "ignore_eos": True}
WAYS = ("embedded", "embedded stream", "bus", "bus stream", "http", "http stream", "ollama", "ollama stream")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose answers may have 20,000 tokens."""
    folder = tmp_path_factory.mktemp("lm")
    shape = lm_models.SHAPE._replace(context=ENDLESS + 100)
    write_model(str(folder / "tiny.onnx"), shape, random_tensors(shape, seed=1), {**lm_models.ABOUT, "stops": []})
    return str(folder / "tiny.onnx")


def tables(model, record=None, **app):
    return {
        "server": {"record": record} if record else {},
        "policy": {"plan": {}},
        "model": {
            "tiny": {
                "engine": "lm",
                "file": model,
                "batch": [1, 2, 4],
                "slots": 4,
                "options": {"max_tokens": ENDLESS, "chat": True},
            }
        },
        "app": {"chat": {"model": "tiny", "slo": f"{SLO_MS}ms", **app}},
    }


class Heard:
    """One request as its client sees it: the text of its pieces, that of the answer, and how it ended."""

    def __init__(self, way):
        self.way, self.pieces, self.text, self.finish, self.error, self.answer = way, "", None, None, None, None

    def ask(self, runtime, client, front, tokens):
        kind, _, stream = self.way.partition(" ")
        try:
            if kind in ("embedded", "bus"):
                self._ask(runtime if kind == "embedded" else client, tokens, bool(stream))
            else:
                getattr(self, f"_{kind}")(front, tokens, bool(stream))
        except RequestError as error:
            self.error = error.code

    def _ask(self, asker, tokens, stream):
        asked = {**ASK, "max_tokens": np.int32(tokens)}
        if not stream:
            self.answer = asker.infer("chat", asked)
        else:
            with asker.stream("chat", asked) as pieces:
                for piece in pieces:
                    self.pieces += piece["text"]
                self.answer = pieces.answer()
        self.text, self.finish = self.answer["text"], self.answer["finish_reason"]

    def _http(self, front, tokens, stream):
        said = {"messages": [{"role": "user", "content": "once"}], "presence_penalty": 0.5, "max_tokens": tokens}
        for part in self._sent(front, "/v1/chat/completions", {"model": "chat", "stream": stream, **said}):
            if part == b"data: [DONE]":
                continue
            body = json.loads(part[6:] if stream and part.startswith(b"data: ") else part)
            if "error" in body:
                self.error = body["error"]["code"]
                continue
            choice = body["choices"][0]
            text = choice["delta" if stream else "message"].get("content") or ""
            self.pieces += text if stream else ""
            self.finish = choice["finish_reason"] or self.finish
            self.text = self.pieces if stream else text

    def _ollama(self, front, tokens, stream):
        said = {"prompt": "once", "options": {"num_predict": tokens, "presence_penalty": 0.5}}
        for part in self._sent(front, "/api/generate", {"model": "chat", "stream": stream, **said}):
            body = json.loads(part)
            if "error" in body:
                self.error = "error"
                continue
            self.pieces += body["response"] if stream else ""
            self.finish = body.get("done_reason") or self.finish
            self.text = self.pieces if stream else body["response"]

    def _sent(self, front, path, body):
        connection = http.client.HTTPConnection(front.http, timeout=30)
        try:
            connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
            return [part for part in connection.getresponse().read().split(b"\n") if part]
        finally:
            connection.close()


def asked_together(runtime, client, front, asks, pause_s=0.0):
    """One request each, begun ``pause_s`` apart: (way, tokens)."""
    heard, threads = [], []
    for way, tokens in asks:
        heard.append(Heard(way))
        thread = threading.Thread(target=heard[-1].ask, args=(runtime, client, front, tokens), daemon=True)
        thread.start()
        threads.append(thread)
        time.sleep(pause_s)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a request has no end"
    return heard


def kept_all(record):
    """Every sequence that began to write ended with an answer, by the server's own record; how many there were."""
    recording = read_recording(record)
    begun = {
        job.request_id
        for step in recording.steps
        for event in step.events
        if isinstance(event, BatchProgress)
        for job in event.begun
    }
    ends = {
        action.request_id: action
        for step in recording.steps
        for action in step.actions
        if isinstance(action, FinishRequest)
    }
    lost = {number: ends[number] for number in begun if ends[number].outcome != "completed"}
    assert not lost, lost
    return len(begun), sum(bool(end.cut) for end in ends.values())


@pytest.mark.nightly
def test_no_request_that_wrote_ends_without_it_at_any_load(model, tmp_path):
    record = str(tmp_path / "run.jsonl")
    counts = Counter()
    with served(tables(model, record)) as (runtime, client), FrontThread(
        runtime.endpoints[0], HttpConfig(listen="127.0.0.1:0")
    ) as front:
        began = time.monotonic()
        asked_together(runtime, client, front, [("embedded", TOKENS)] * 8)
        answers_per_s = 8 / (time.monotonic() - began)
        for load in (0.3, 1.0, 2.0):
            count = max(len(WAYS), min(150, round(load * answers_per_s * SECONDS)))
            asks = [(WAYS[number % len(WAYS)], TOKENS) for number in range(count)]
            for heard in asked_together(runtime, client, front, asks, SECONDS / count):
                counts["whole" if heard.text is not None else "refused"] += 1
                assert heard.text is not None or not heard.pieces, f"{heard.way} broke after {heard.pieces!r}"
                assert not (heard.text is not None and heard.error), f"{heard.way}: {heard.error} after text"
                assert heard.text is None or heard.finish in ("stop", "length"), f"{heard.way}: {heard.finish}"
        runtime.check()
        assert runtime.stats()["apps"]["chat"]["outcomes"]["failed"] == 0
    assert counts["whole"]
    assert kept_all(record)[0] >= counts["whole"]


@pytest.mark.parametrize("ways", [WAYS[:4], WAYS[4:]], ids=["here", "http"])
def test_an_answer_that_cannot_be_whole_ends_at_its_deadline_with_its_text(model, tmp_path, ways):
    record = str(tmp_path / "run.jsonl")
    with served(tables(model, record, slo="2s")) as (runtime, client), FrontThread(
        runtime.endpoints[0], HttpConfig(listen="127.0.0.1:0")
    ) as front:
        for heard in asked_together(runtime, client, front, [(way, ENDLESS) for way in ways]):
            assert heard.error is None, f"{heard.way}: {heard.error}"
            assert heard.text and heard.finish == "length", heard.way
            assert "stream" not in heard.way or heard.pieces == heard.text, heard.way
            if heard.answer is not None:
                tokens = heard.answer["completion_tokens"]
                assert heard.answer.late and 0 < tokens == len(heard.answer["tokens"]) < ENDLESS
                assert heard.answer.reason == f"ended early, after {tokens} tokens: its deadline passed"
        stats = runtime.stats()["apps"]["chat"]
        assert stats["late"] == stats["outcomes"]["completed"] == len(ways)
        runtime.check()
    assert kept_all(record) == (len(ways), len(ways))


WAITS_MS = 700.0
"""The wait of a client that leaves: some tokens are written by then, on a busy machine too."""


async def awaited(asker):
    try:
        return await asker.infer("chat", ASK, timeout_ms=WAITS_MS)
    finally:
        if isinstance(asker, AsyncClient):
            await asker.close()


def of_bus(runtime, client, front):
    return client.infer("chat", ASK, timeout_ms=WAITS_MS)


def of_async_bus(runtime, client, front):
    return asyncio.run(awaited(AsyncClient(runtime.endpoints[0])))


def of_openai(runtime, client, front):
    status, told = front.ask("POST", "/v1/chat/completions", {"model": "chat", "messages": HELLO})
    assert status == 200, told
    choice = told["choices"][0]
    outputs = {"text": choice["message"]["content"], "finish_reason": choice["finish_reason"]}
    return Answer(outputs, late=told["edgeserve"]["late"], reason=told["edgeserve"]["reason"])


def of_ollama(runtime, client, front):
    status, told = front.ask("POST", "/api/generate", {"model": "chat", "prompt": "once", "stream": False})
    assert status == 200, told
    return Answer({"text": told["response"], "finish_reason": told["done_reason"]}, late=True)


def of_kserve(runtime, client, front):
    asked = {"name": "prompt", "shape": [1], "datatype": "BYTES", "data": ["once"]}
    status, told = front.ask("POST", "/v2/models/chat/infer", {"inputs": [asked]})
    assert status == 200, told
    return Answer({output["name"]: output["data"][0] for output in told["outputs"]}, late=True)


@pytest.mark.parametrize("ask", [of_bus, of_async_bus, of_openai, of_ollama, of_kserve], ids=lambda ask: ask.__name__)
def test_a_client_that_waits_no_longer_gets_what_is_written(model, ask):
    table = tables(model, on_late="answer")
    table["app"]["chat"]["slo"] = "60s"
    config = HttpConfig(listen="127.0.0.1:0", timeout_ns=ms_to_ns(WAITS_MS))
    with served(table) as (runtime, client), FrontThread(runtime.endpoints[0], config) as front:
        answer = ask(runtime, client, front)
        assert answer["text"] and answer["finish_reason"] == "length" and answer.late
        assert not answer.reason or answer.reason.endswith("tokens: its client waited no longer")
        wait_until(lambda: not any(lane["in_flight"] for lane in runtime.stats()["lanes"].values()))
        assert runtime.stats()["apps"]["chat"]["outcomes"]["completed"] == 1
        runtime.check()


@pytest.mark.parametrize("way", ["http", "http stream", "ollama", "ollama stream"])
def test_a_front_that_stops_sends_what_is_written(model, way):
    table = tables(model, on_late="answer")
    table["app"]["chat"]["slo"] = "60s"
    heard = Heard(way)
    with served(table) as (runtime, client):
        with FrontThread(runtime.endpoints[0], HttpConfig(listen="127.0.0.1:0", drain_ns=ms_to_ns(WAITS_MS))) as front:
            asking = threading.Thread(target=heard.ask, args=(runtime, client, front, ENDLESS), daemon=True)
            asking.start()
            wait_until(lambda: any(lane["in_flight"] for lane in runtime.stats()["lanes"].values()))
        asking.join(30)
        assert heard.text and heard.finish == "length" and heard.error is None
        assert runtime.stats()["apps"]["chat"]["outcomes"]["completed"] == 1


def test_so_does_a_task_of_this_process(model):
    async def ask():
        table = tables(model, on_late="answer")
        table["app"]["chat"]["slo"] = "60s"
        async with AsyncRuntime(parse_config(table, directory=LIB)) as runtime:
            return await awaited(runtime)

    answer = asyncio.run(ask())
    assert answer["text"] and answer["finish_reason"] == "length"
    assert answer.late and answer.reason.endswith("tokens: its client waited no longer")


# --- what else ends an answer -----------------------------------------------------------------------------------------


def begun_answer(runtime, way="stream", **options):
    """An answer that has begun to come, and the stream that it comes by."""
    stream = runtime.stream("chat", {**ASK, "max_tokens": np.int32(ENDLESS)}, **options)
    return stream, next(stream)["text"]


def rest(stream, first):
    text = first + "".join(piece["text"] for piece in stream)
    answer = stream.answer()
    assert answer["text"] == text and answer["finish_reason"] == "length"
    return answer


def in_process(model, **changes):
    table = tables(model, **changes.pop("app", {}))
    table["app"]["chat"]["slo"] = "60s"
    for key, value in changes.items():
        table[key] = {**table.get(key, {}), **value}
    return Runtime(parse_config(table, directory=LIB))


def test_a_client_that_wants_all_or_nothing_gets_nothing_unless_something_was_sent(model):
    with in_process(model) as runtime:
        # Its time is over, or a step is seen to end too late: the clock decides.
        with pytest.raises(Dropped, match="expired|cannot_make_deadline"):
            runtime.infer("chat", {**ASK, "max_tokens": np.int32(ENDLESS)}, slo_ms=300, on_late="drop")
        stream, first = begun_answer(runtime, slo_ms=300, on_late="drop")
        assert rest(stream, first).late
        assert runtime.infer("chat", {**ASK, "max_tokens": np.int32(3)}, slo_ms=0.001, on_late="answer").late


@pytest.mark.parametrize("drain", [True, False])
def test_a_stop_ends_an_answer_with_its_text(model, drain):
    runtime = in_process(model, server={"drain": "200ms"})
    runtime.start()
    stream, first = begun_answer(runtime)
    stopping = threading.Thread(target=runtime.stop, args=(drain,), daemon=True)
    stopping.start()
    answer = rest(stream, first)
    assert answer.late and "the server is shutting down" in answer.reason
    stopping.join(30)
    assert not stopping.is_alive()


def test_a_step_that_fails_leaves_what_was_written_to_all_of_its_batch(model, monkeypatch):
    from edgeserve.engines.lm.onnx_backend import OnnxSession

    with in_process(model) as runtime, ThreadPoolExecutor(3) as readers:  # 1,024 unread pieces end a stream
        reading = [readers.submit(rest, *begun_answer(runtime)) for _ in range(3)]

        def broken(self, rows):
            raise RuntimeError("the step broke")

        monkeypatch.setattr(OnnxSession, "decode", broken)
        for answer in [reader.result(60) for reader in reading]:
            assert answer.late and "the step broke" in answer.reason and answer["completion_tokens"] > 0
        monkeypatch.undo()
        assert runtime.infer("chat", {**ASK, "max_tokens": np.int32(3)})["completion_tokens"] == 3
        assert runtime.stats()["apps"]["chat"]["outcomes"]["failed"] == 0
        runtime.check()


def test_what_follows_a_language_model_gets_what_it_has_written(model):
    table = tables(model)
    table["model"]["count"] = {"engine": "python", "function": "live_functions:length_of_text"}
    table["app"]["chat"] = {
        "slo": "500ms",
        "node": [{"name": "tiny"}, {"name": "count", "inputs": {"text": "tiny.text"}}],
        "outputs": ["tiny.text", "length"],
    }
    with Runtime(parse_config(table, directory=LIB)) as runtime:
        answer = runtime.infer("chat", {**ASK, "max_tokens": np.int32(ENDLESS)})
        assert answer["length"] == len(answer["text"]) > 0
        assert answer.late and "ended early, after" in answer.reason
        runtime.check()
