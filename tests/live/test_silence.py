"""A stream whose first piece takes long: proxies and clients see that the request lives, and how it ends."""

from __future__ import annotations

import http.client
import json
import threading

import live_functions
import pytest
from http_front import FrontThread
from serving import function, served, wait_until

from edgeserve.fronts.http import asking
from edgeserve.fronts.http.settings import HttpConfig

WAIT = [{"role": "user", "content": "wait"}]
PATHS = {
    "/v1/chat/completions": {"model": "chat", "messages": WAIT, "stream": True},
    "/v1/responses": {"model": "chat", "input": "wait", "stream": True},
    "/api/chat": {"model": "chat", "messages": WAIT},
}


@pytest.fixture(scope="module")
def server():
    app = {"model": "chat", "slo": "20s", "inputs": {"messages": {"dtype": "text"}}}
    tables = {"model": {"chat": function("chat", "example_chat", "http_functions")}, "app": {"chat": app}}
    with served(tables) as (runtime, _):
        yield runtime
        live_functions.gate.set()


@pytest.fixture
def front(server, monkeypatch):
    monkeypatch.setattr(asking, "QUIET_S", 0.05)
    live_functions.close_gate()
    with FrontThread(server.endpoints[0], HttpConfig(listen="127.0.0.1:0")) as thread:
        yield thread
    live_functions.gate.set()


def begun(front, path, **more):
    """The answer to a stream, once its status has come."""
    connection = http.client.HTTPConnection(front.http, timeout=20)
    connection.request("POST", path, json.dumps({**PATHS[path], **more}).encode())
    return connection, connection.getresponse()


@pytest.mark.parametrize("path", PATHS)
def test_headers_and_comments_come_before_the_first_piece(front, path):
    connection, answer = begun(front, path)
    assert answer.status == 200 and not live_functions.gate.is_set()
    assert answer.headers["x-accel-buffering"] == "no"  # nginx sends what comes
    if path != "/api/chat":  # its lines are JSON, which has no comments
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert [answer.readline() for _ in range(4)] == [b": waiting\n", b"\n"] * 2
    live_functions.gate.set()
    rest = answer.read()
    assert b"wait" in rest.replace(b": waiting", b"")
    if path == "/api/chat":
        assert json.loads(rest.splitlines()[-1])["done"] is True
    connection.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_refusal_afterwards_is_an_event(front, path):
    blocked = begun(front, "/v1/chat/completions")
    connection, answer = begun(front, path, deadline_ms=400, on_late="drop")
    assert answer.status == 200
    rest = [line for line in answer.read().splitlines() if line and not line.startswith(b":")]
    told = json.loads(rest[-1][len(b"data: ") :] if rest[-1].startswith(b"data: ") else rest[-1])
    assert "deadline" in json.dumps(told) or "dropped" in json.dumps(told), told
    assert path != "/v1/responses" or (rest[-2], told["type"]) == (b"event: error", "error")
    for each in (connection, blocked[0]):
        each.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_goes_in_the_silence_cancels_its_request(front, server, path):
    before = server.stats()["apps"]["chat"]["outcomes"]["cancelled"]
    connection, answer = begun(front, path)
    answer.close()
    connection.close()
    wait_until(lambda: server.stats()["apps"]["chat"]["outcomes"]["cancelled"] == before + 1)


def test_openais_client_hears_nothing_of_the_silence(front):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    timer = threading.Timer(0.3, live_functions.gate.set)
    timer.start()
    with openai.OpenAI(base_url=f"http://{front.http}/v1", api_key="none", max_retries=0) as client:
        chunks = client.chat.completions.create(model="chat", messages=WAIT, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "wait"
    timer.join()
