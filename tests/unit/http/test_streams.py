"""A client that does not read its stream: its connection blocks, and the request does not go on for nobody."""

from __future__ import annotations

import asyncio

import pytest

from edgeserve.errors import Dropped
from edgeserve.http.backend import Places
from edgeserve.http.origins import Tokens


def test_a_stream_that_nobody_reads_ends():
    pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")
    from edgeserve.http.asgi import Bounds, Endpoint
    from edgeserve.http.chat import ChatRequest
    from edgeserve.http.chat_routes import ChatRoutes
    from edgeserve.http.completion import Completion

    closed = []

    class Backend:
        async def stream(self, app, inputs, options, origin):
            try:
                while True:
                    yield {"text": "word "}
            finally:
                closed.append(app)

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()  # the connection's buffer is full

    async def receive():
        await asyncio.Event().wait()

    bounds = Bounds(1000, 0.01, 1000, Places(10**6), None)
    routes = ChatRoutes(Backend(), bounds, Tokens(), lambda: 0.0)

    async def handler(call):
        await routes._answer(call, ChatRequest("m", [{}], {}, True), Completion("id", "m", 0))

    scope = {"method": "POST", "path": "/v1/chat/completions", "headers": []}
    asyncio.run(asyncio.wait_for(Endpoint(handler, bounds)(scope, receive, send), 30))
    assert closed == ["m"]


def test_an_error_in_the_middle_is_told_in_the_stream():
    pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")
    from edgeserve.http.asgi import Bounds, Call
    from edgeserve.http.chat import ChatRequest
    from edgeserve.http.chat_routes import ChatRoutes
    from edgeserve.http.completion import Completion

    sent = []

    class Backend:
        async def stream(self, app, inputs, options, origin):
            yield {"text": "word "}
            raise Dropped("no more", "expired")

    async def send(message):
        sent.append(message)

    async def receive():
        await asyncio.Event().wait()

    bounds = Bounds(1000, 10.0, 1000, Places(10**6), None)
    call = Call({"method": "POST", "path": "/", "headers": []}, receive, send, bounds)
    routes = ChatRoutes(Backend(), bounds, Tokens(), lambda: 0.0)
    asyncio.run(routes._answer(call, ChatRequest("m", [{}], {}, True), Completion("id", "m", 0)))
    assert sent[0]["status"] == 200 and b"word" in sent[1]["body"]
    assert b'"reason":"expired"' in sent[2]["body"] and not sent[3].get("more_body", False)
