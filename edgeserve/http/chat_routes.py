"""OpenAI's ``/v1/chat/completions`` and ``/v1/models`` over HTTP, whole or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, AsyncGenerator, Callable, Dict, List

from starlette.routing import Route

from edgeserve.answers import Answer
from edgeserve.errors import BadInput, EdgeServeError, Malformed, UnknownApp, nearest
from edgeserve.http.asgi import Bounds, Call, Endpoint, to_json
from edgeserve.http.backend import Backend
from edgeserve.http.chat import ChatRequest, Completion, can_chat, error_body, read_request
from edgeserve.http.failures import ClientGone
from edgeserve.http.origins import Tokens

EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class ChatRoutes:
    """The routes. ``clock_s`` gives the time of day in seconds, which answers carry."""

    def __init__(self, backend: Backend, bounds: Bounds, tokens: Tokens, clock_s: Callable[[], float]) -> None:
        self._backend = backend
        self._clock_s = clock_s
        self._created_s = int(clock_s())  # of models, which clients show: when this front began
        self._bounds = bounds
        self._tokens = tokens

    def routes(self) -> List[Route]:
        """All of them."""
        table = [
            ("/v1/chat/completions", "POST", self.complete),
            ("/v1/models", "GET", self.models),
            ("/v1/models/{name}", "GET", self.model),
        ]
        return [
            Route(path, Endpoint(handler, self._bounds, self._tokens, error_body), methods=[method])
            for path, method, handler in table
        ]

    async def models(self, call: Call) -> None:
        """The apps that can chat."""
        apps = await self._backend.apps()
        await call.answer(
            {"object": "list", "data": [self._model(name) for name, app in apps.items() if can_chat(app)]}
        )

    async def model(self, call: Call) -> None:
        """One of them."""
        await self._chat_app(call.path("name"))
        await call.answer(self._model(call.path("name")))

    def _model(self, name: str) -> Dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created_s, "owned_by": "edgeserve"}

    async def _chat_app(self, name: Any) -> Dict[str, Any]:
        if not isinstance(name, str) or not name:
            raise BadInput("model: expected the name of an app")
        apps = {key: app for key, app in (await self._backend.apps()).items() if can_chat(app)}
        if name not in apps:
            raise UnknownApp(
                f"no app {name[:128]!r} that takes messages or a prompt is served here{nearest(name[:128], apps)}"
            )
        app: Dict[str, Any] = apps[name]
        return app

    async def complete(self, call: Call) -> None:
        """One completion."""
        body = await call.json()
        if not isinstance(body, dict):
            raise Malformed("the body is no JSON object with 'model' and 'messages'")
        app = await self._chat_app(body.get("model"))
        request = read_request(body, app["inputs"])
        completion = Completion(f"chatcmpl-{uuid.uuid4().hex}", request.model, int(self._clock_s()))
        if request.stream:
            await self._stream(call, request, completion)
            return
        answer = await self._backend.infer(request.model, request.inputs, request.options, call.gone, call.origin)
        await call.answer(completion.whole(answer.outputs, answer.late))

    async def _stream(self, call: Call, request: ChatRequest, completion: Completion) -> None:
        """Chunks as they come. The status is sent with the first, so that a refusal has its own; a client that goes
        cancels the request."""
        chunks = self._chunks(request, completion, call.origin)
        try:
            async with call.until_gone():
                try:
                    async for chunk in chunks:
                        await _event(call, to_json(chunk))
                    last = b"[DONE]"
                except EdgeServeError as error:
                    if not call.begun or isinstance(error, ClientGone):
                        raise
                    last = to_json(error_body(error))
                await _event(call, last)
                await call.send({"type": "http.response.body", "body": b""})
        finally:
            await chunks.aclose()

    async def _chunks(
        self, request: ChatRequest, completion: Completion, origin: str
    ) -> AsyncGenerator[Dict[str, Any], None]:
        pieces = self._backend.stream(request.model, request.inputs, request.options, origin)
        try:
            async for piece in pieces:
                if isinstance(piece, Answer):
                    for chunk in completion.last(piece.outputs, request.usage):
                        yield chunk
                    continue
                part = completion.piece(piece)
                if part is not None:
                    yield part
        finally:
            await pieces.aclose()  # not whenever the collector finds it: the request would run until then


async def _event(call: Call, data: bytes) -> None:
    """One server-sent event, after the headers if they are still to be sent."""
    if not call.begun:
        await call.start(200, list(EVENT_STREAM))
    event = {"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True}
    try:
        await asyncio.wait_for(call.send(event), call.bounds.body_s_max)
    except asyncio.TimeoutError:
        raise ClientGone("the client does not read its stream") from None
