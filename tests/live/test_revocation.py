"""A token that is taken out of the file admits no client any more and ends what it began."""

from __future__ import annotations

import http.client
import json
import os
import queue

import live_functions
import numpy as np
import pytest
from http_front import FrontThread
from serving import function, served

from edgeserve.fronts.http import asking
from edgeserve.fronts.http.settings import HttpConfig

KITCHEN, HALL = "kitchen-0123456789", "hall-0123456789abc"
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "wait"}], "stream": True}


def shown(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """A front, and what writes its file of tokens."""
    monkeypatch.setattr(asking, "QUIET_S", 0.05)
    path = tmp_path / "tokens"

    def write(**tokens):
        new = tmp_path / "new"
        new.write_text("".join(f"{name} {token}\n" for name, token in tokens.items()))
        os.replace(new, path)

    write(kitchen=KITCHEN, hall=HALL)
    app = {"model": "chat", "slo": "20s", "inputs": {"messages": {"dtype": "text"}}}
    shout = {"model": "shout", "slo": "20s", "inputs": {"text": {"dtype": "text"}}}
    models = {
        "chat": function("chat", "example_chat", "http_functions"),
        "shout": function("shout", "example_text", "http_functions"),
    }
    grpc = "127.0.0.1:0"
    try:
        import google.protobuf  # noqa: F401 only whether it is there
        import grpc as _
    except ImportError:
        grpc = ""
    live_functions.close_gate()
    with served({"model": models, "app": {"chat": app, "shout": shout}}) as (runtime, _):
        settings = HttpConfig(listen="127.0.0.1:0", grpc=grpc, token_file=str(path))
        with FrontThread(runtime.endpoints[0], settings) as front:
            front.write, front.path = write, path
            yield front
            live_functions.gate.set()


def test_the_next_request_is_refused(locked):
    assert locked.ask("GET", "/v1/models", headers=shown(KITCHEN))[0] == 200
    locked.write(hall=HALL)
    assert locked.ask("GET", "/v1/models", headers=shown(KITCHEN))[0] == 401
    assert locked.ask("GET", "/v1/models", headers=shown(HALL))[0] == 200
    locked.write(hall=HALL, robot=KITCHEN[::-1])
    assert locked.ask("GET", "/v1/models", headers=shown(KITCHEN[::-1]))[0] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/page/stream"])
def test_what_the_token_began_ends(locked, path):
    connection = http.client.HTTPConnection(locked.http, timeout=20)
    ask = ("POST", path, json.dumps(CHAT).encode()) if path != "/page/stream" else ("GET", path)
    connection.request(*ask, headers=shown(KITCHEN))
    answer = connection.getresponse()
    assert answer.status == 200 and answer.readline()
    locked.write(hall=HALL)
    assert b"unauthorized" in answer.read()
    connection.close()


MESSAGES = json.dumps(CHAT["messages"])
TENSOR = {"name": "messages", "datatype": "BYTES", "shape": [1], "data": [MESSAGES]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "stream": False}),
        ("/api/chat", {**CHAT, "stream": False}),
        ("/v2/models/chat/infer", {"inputs": [TENSOR]}),
    ],
)
def test_an_answer_that_comes_later_is_not_sent(locked, path, body):
    connection = http.client.HTTPConnection(locked.http, timeout=20)
    connection.request("POST", path, json.dumps(body).encode(), headers=shown(KITCHEN))
    assert live_functions.entered.wait(20)
    locked.write(hall=HALL)
    live_functions.gate.set()
    answer = connection.getresponse()
    assert answer.status == 401 and b"unauthorized" in answer.read()
    connection.close()


def test_an_answer_over_grpc_that_comes_later_is_not_sent(locked):
    library = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    came = queue.Queue()
    text = library.InferInput("messages", [1], "BYTES")
    text.set_data_from_numpy(np.array([MESSAGES], object))
    with library.InferenceServerClient(locked.grpc) as client:
        told = {"authorization": f"Bearer {KITCHEN}"}
        client.async_infer("chat", [text], lambda result, error: came.put(error), headers=told)
        assert live_functions.entered.wait(20)
        locked.write(hall=HALL)
        live_functions.gate.set()
        assert "token" in str(came.get(timeout=20))


def test_a_stream_of_grpc_ends(locked):
    library = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    came = queue.Queue()
    text = library.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array(["hey"], object))
    with library.InferenceServerClient(locked.grpc) as client:
        client.start_stream(lambda result, error: came.put(error), headers={"authorization": f"Bearer {KITCHEN}"})
        client.async_stream_infer("shout", [text])
        assert came.get(timeout=20) is None
        locked.write(hall=HALL)
        client.async_stream_infer("shout", [text])
        assert "token" in str(came.get(timeout=20))


@pytest.mark.parametrize("content", [None, "", "short", "a b c"])
def test_a_file_that_cannot_be_read_changes_nothing_and_is_said(locked, caplog, content):
    if content is None:
        locked.path.unlink()
    else:
        locked.path.write_text(content)
    for _ in range(2):
        assert locked.ask("GET", "/v1/models", headers=shown(KITCHEN))[0] == 200
    assert len([record for record in caplog.records if "held before" in record.message]) == 1


def test_a_second_token_hides_single_requests(locked):
    locked.write(kitchen=KITCHEN)
    assert locked.ask("GET", "/page/story/1", headers=shown(KITCHEN))[0] != 403
    locked.write(kitchen=KITCHEN, hall=HALL)
    assert locked.ask("GET", "/page/story/1", headers=shown(KITCHEN))[0] == 403
