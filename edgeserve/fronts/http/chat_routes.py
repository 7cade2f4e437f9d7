"""OpenAI's ``/v1/chat/completions``, ``/v1/completions``, ``/v1/embeddings`` and ``/v1/models`` over HTTP; texts whole
or as a stream of server-sent events.
"""

from __future__ import annotations

import base64
import uuid
from typing import Any, AsyncGenerator, Callable, Dict, List, Mapping, Tuple

import numpy as np
from starlette.routing import Route

from edgeserve.answers import Answer
from edgeserve.errors import BadInput, Failed, Malformed, UnknownApp, nearest
from edgeserve.front import NotServed
from edgeserve.fronts.http.asgi import Call, Site, to_json
from edgeserve.fronts.http.asking import answers_to, pieces_of, send_stream, texts_to
from edgeserve.fronts.http.chat import ChatRequest, can_chat, can_embed, read_prompts, read_request, read_texts
from edgeserve.fronts.http.completion import Completion, count_of, error_body
from edgeserve.fronts.http.names import name_behind
from edgeserve.fronts.http.responses import WHOLE_CONVERSATION, Response, read_response

MODELS = "/v1/models/"
IN_PIECES = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]  # else nginx keeps pieces together
EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), *IN_PIECES]


class ChatRoutes:
    """The routes. ``clock_s`` gives the time of day in seconds, which answers carry."""

    def __init__(self, site: Site, clock_s: Callable[[], float]) -> None:
        self._site = site._replace(body=error_body)
        self._backend = site.backend
        self._clock_s = clock_s
        self._created_s = int(clock_s())  # of models, which clients show: when this front began

    def routes(self) -> List[Route]:
        """All of them."""
        table: List[Any] = [
            ("/v1/chat/completions", self.chat, "POST"),
            ("/v1/completions", self.complete, "POST"),
            ("/v1/responses", self.respond, "POST"),
            ("/v1/embeddings", self.embed, "POST"),
            ("/v1/models", self.models, "GET"),
            (MODELS + "{name:path}", self.model, "GET"),
            ("/v1/{rest:path}", self.unserved, "GET", "POST", "DELETE"),
        ]
        return [self._site.route(*row) for row in table]

    async def models(self, call: Call) -> None:
        """The apps that can chat or embed."""
        found = [name for name, app in (await self._backend.apps()).items() if can_chat(app) or can_embed(app)]
        await call.answer({"object": "list", "data": [self._model(name) for name in found]})

    async def model(self, call: Call) -> None:
        """One of them."""
        apps = await self._backend.apps()
        name = name_behind(call.scope, MODELS, apps)
        app_of(apps, name, lambda app: can_chat(app) or can_embed(app), "texts")
        await call.answer(self._model(name))

    def _model(self, name: str) -> Dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created_s, "owned_by": "edgeserve"}

    async def chat(self, call: Call) -> None:
        """A message that goes on with a conversation."""
        body = await _body(call)
        app = app_of(await self._backend.apps(), body.get("model"), can_chat)
        request = read_request(body, app["inputs"])
        await self._answer(call, app, request, Completion(*self._head("chatcmpl", request), request.n))

    async def complete(self, call: Call) -> None:
        """Texts that go on with prompts."""
        body = await _body(call)
        app = app_of(await self._backend.apps(), body.get("model"), can_chat)
        request = read_prompts(body, app["inputs"])
        await self._answer(call, app, request, Completion(*self._head("cmpl", request), request.n, chat=False))

    async def respond(self, call: Call) -> None:
        """The same in the newer form."""
        body = await _body(call)
        app = app_of(await self._backend.apps(), body.get("model"), can_chat)
        request = read_response(body, app["inputs"])
        response = Response(uuid.uuid4().hex, int(self._clock_s()), body)
        if request.stream:
            events = self._response_events(request, response, call.origin)
            await send_stream(
                call, EVENT_STREAM, events, lambda error: _named_event(response.failed(error_body(error)["error"]))
            )
            return
        (answer,) = await texts_to(self._backend, call, app, request)
        await call.answer(response.whole(answer))

    async def _response_events(
        self, request: ChatRequest, response: Response, origin: str
    ) -> AsyncGenerator[bytes, None]:
        pieces = pieces_of(self._backend, request, origin)
        try:
            async for _, piece in pieces:
                for event in response.last(piece) if isinstance(piece, Answer) else response.piece(piece):
                    yield _named_event(event)
        finally:
            await pieces.aclose()

    async def unserved(self, call: Call) -> None:
        """Refuse a route that OpenAI has and this server does not serve."""
        path = call.path("rest")[:80]
        if path.startswith("responses/resp_"):
            raise NotServed(f"/v1/{path}: {WHOLE_CONVERSATION} of POST /v1/responses, or of /v1/chat/completions")
        raise NotServed(
            f"{call.scope['method']} /v1/{path} is not served; POST /v1/chat/completions, /v1/responses, "
            "/v1/completions, /v1/embeddings and /v1/audio/transcriptions are, and GET /v1/models"
        )

    def _head(self, kind: str, request: ChatRequest) -> Tuple[str, str, int]:
        return f"{kind}-{uuid.uuid4().hex}", request.model, int(self._clock_s())

    async def _answer(self, call: Call, app: Mapping[str, Any], request: ChatRequest, completion: Completion) -> None:
        if request.stream:
            events = self._events(request, completion, call.origin)
            await send_stream(call, EVENT_STREAM, events, lambda error: _event(error_body(error)))
            return
        await call.answer(completion.whole(await texts_to(self._backend, call, app, request)))

    async def _events(self, request: ChatRequest, completion: Completion, origin: str) -> AsyncGenerator[bytes, None]:
        pieces = pieces_of(self._backend, request, origin)
        try:
            async for index, piece in pieces:
                if isinstance(piece, Answer):
                    for chunk in completion.ended(index, piece):
                        yield _event(chunk)
                    continue
                part = completion.piece(index, piece)
                if part is not None:
                    yield _event(part)
            if request.usage:
                yield _event(completion.counts())
            yield b"data: [DONE]\n\n"
        finally:
            await pieces.aclose()

    async def embed(self, call: Call) -> None:
        """A vector per text."""
        body = await _body(call)
        app = app_of(await self._backend.apps(), body.get("model"), can_embed, EMBEDS)
        request, as_base64 = read_texts(body, app["inputs"])
        answers = await answers_to(self._backend, call, request)
        tokens = sum([count_of(answer.outputs.get("prompt_tokens")) for answer in answers])
        data = [
            {"object": "embedding", "index": place, "embedding": _base64(vector) if as_base64 else vector.tolist()}
            for place, vector in enumerate(map(vector_of, answers))
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        await call.answer({"object": "list", "model": request.model, "data": data, "usage": usage})


CHATS = "messages or a prompt"
EMBEDS = "one text and answers an embedding"


def app_of(
    apps: Mapping[str, Any], name: Any, can: Callable[[Mapping[str, Any]], bool], takes: str = CHATS
) -> Dict[str, Any]:
    """The app of that name, if it ``can``. Raises :class:`UnknownApp`."""
    if not isinstance(name, str) or not name:
        raise BadInput("model: expected the name of an app")
    known = {key: app for key, app in apps.items() if can(app)}
    if name not in known:
        raise UnknownApp(f"no app {name[:128]!r} that takes {takes} is served here{nearest(name[:128], known)}")
    app: Dict[str, Any] = known[name]
    return app


def vector_of(answer: Answer) -> Any:
    """The embedding as float32, one axis. Raises :class:`Failed` where the app answers none, or several."""
    vector = np.asarray(answer["embedding"])
    if vector.dtype.kind not in "fiu" or not vector.size or vector.size != max(vector.shape, default=1):
        raise Failed(f"the app's output 'embedding' is {vector.dtype} of {vector.shape}; expected one axis of numbers")
    with np.errstate(over="ignore"):
        found = vector.astype(np.float32).reshape(-1)
    if not np.isfinite(found).all():  # of which base64 would say nothing
        raise Failed("the app's output 'embedding' holds an infinity or NaN")
    return found


def _base64(vector: Any) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


async def _body(call: Call) -> Dict[str, Any]:
    body = await call.json()
    if not isinstance(body, dict):
        raise Malformed("the body is no JSON object with 'model' and what is asked")
    return body


def _named_event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event with its type."""
    return f"event: {value['type']}\n".encode() + _event(value)


def _event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(value) + b"\n\n"
