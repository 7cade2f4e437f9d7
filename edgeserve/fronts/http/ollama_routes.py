"""Ollama's ``/api/...`` over HTTP, for its clients: Home Assistant's integration is one. Each request goes the way of
OpenAI's; only its form and that of the answer differ.
"""

from __future__ import annotations

import logging
from typing import Any, AsyncGenerator, Callable, Dict, List, Mapping, Set, Tuple

from starlette.routing import Route

from edgeserve import __version__
from edgeserve.answers import Answer
from edgeserve.errors import Malformed
from edgeserve.front import NotServed
from edgeserve.fronts.http.asgi import Call, Site, error_body, to_json
from edgeserve.fronts.http.asking import answers_to, pieces_of, send_stream, texts_to
from edgeserve.fronts.http.chat import ChatRequest, can_chat, can_embed, read_prompts, read_request, read_texts
from edgeserve.fronts.http.chat_routes import CHATS, EMBEDS, IN_PIECES, app_of, vector_of
from edgeserve.fronts.http.completion import count_of
from edgeserve.fronts.http.ollama import (
    DETAILS,
    VERSION,
    Lines,
    about_model,
    asks_nothing,
    capabilities_of,
    chat_body,
    embed_body,
    generate_body,
    models_of,
    name_of,
    own_fields,
    passed_over,
    time_of,
)
from edgeserve.units import NS_PER_MS

log = logging.getLogger("edgeserve")

NDJSON = [(b"content-type", b"application/x-ndjson"), *IN_PIECES]
FOR_EVER_S = 100 * 365 * 86400
"""Seconds that a model stays loaded, as reported to clients: Ollama unloads models after minutes."""


class OllamaRoutes:
    """The routes. ``clock_s`` gives the time of day in seconds."""

    def __init__(self, site: Site, clock_s: Callable[[], float]) -> None:
        self._site = site
        self._backend = site.backend
        self._clock_s = clock_s
        self._since_s = clock_s()
        self._noted: Set[str] = set()

    def routes(self) -> List[Route]:
        """All of them."""
        table: List[Any] = [
            ("/api/version", self.version, "GET"),
            ("/api/tags", self.tags, "GET"),
            ("/api/ps", self.loaded, "GET"),
            ("/api/show", self.show, "POST"),
            ("/api/chat", self.chat, "POST"),
            ("/api/generate", self.generate, "POST"),
            ("/api/embed", self.embed, "POST"),
            ("/api/embeddings", self.embed_one, "POST"),
            ("/api/{rest:path}", self.unserved, "GET", "POST", "DELETE"),
        ]
        return [self._site.route(*row) for row in table]

    async def version(self, call: Call) -> None:
        """The version of Ollama that clients may expect, and of this program."""
        await call.answer({"version": VERSION, "edgeserve": __version__})

    async def tags(self, call: Call) -> None:
        """The apps that can chat or embed."""
        await call.answer({"models": models_of(await self._backend.apps(), self._since_s)})

    async def loaded(self, call: Call) -> None:
        """The same: they are all loaded."""
        until = time_of(self._since_s + FOR_EVER_S)
        models = models_of(await self._backend.apps(), self._since_s)
        await call.answer({"models": [{**model, "expires_at": until, "size_vram": 0} for model in models]})

    async def show(self, call: Call) -> None:
        """Answer with the details of an app."""
        body = await _body(call)
        _, app = await self._named(body.get("model") or body.get("name"), lambda app: can_chat(app) or can_embed(app))
        await call.answer(
            {
                "modelfile": "",
                "parameters": "",
                "template": "",
                "modified_at": time_of(self._since_s),
                "details": DETAILS,
                "model_info": about_model(app),
                "capabilities": capabilities_of(app),
            }
        )

    async def chat(self, call: Call) -> None:
        """A message that goes on with a conversation."""
        body = await _body(call)
        name, app = await self._named(body.get("model"), can_chat)
        self._note(body)
        lines = Lines(body["model"], chat=True)
        if body.get("messages", []) == []:
            await call.answer(lines.loaded(self._clock_s()))
            return
        with own_fields():
            request = read_request(chat_body({**body, "model": name}), app["inputs"])
        await self._answer(call, app, request, lines)

    async def generate(self, call: Call) -> None:
        """An answer to a prompt."""
        body = await _body(call)
        name, app = await self._named(body.get("model"), can_chat)
        self._note(body)
        lines = Lines(body["model"], chat=False)
        if body.get("prompt", "") == "":
            await call.answer(lines.loaded(self._clock_s()))
            return
        with own_fields(messages="prompt"):
            asked = generate_body({**body, "model": name})
            read = read_prompts if "prompt" in asked else read_request
            request = read(asked, app["inputs"])
        await self._answer(call, app, request, lines)

    async def _answer(self, call: Call, app: Mapping[str, Any], request: ChatRequest, lines: Lines) -> None:
        if request.stream:
            parts = self._parts(request, lines, call.origin)
            await send_stream(call, NDJSON, parts, lambda error: _line(error_body(error)), quiet=b"")
            return
        (answer,) = await texts_to(self._backend, call, app, request)
        await call.answer(lines.last(answer, self._clock_s()))

    async def _parts(self, request: ChatRequest, lines: Lines, origin: str) -> AsyncGenerator[bytes, None]:
        pieces = pieces_of(self._backend, request, origin)
        try:
            async for _, piece in pieces:
                now_s = self._clock_s()
                yield _line(lines.last(piece, now_s) if isinstance(piece, Answer) else lines.piece(piece, now_s))
        finally:
            await pieces.aclose()

    async def embed(self, call: Call) -> None:
        """A vector per text."""
        model, answers = await self._embedded(call, "input")
        tokens = sum([count_of(answer.outputs.get("prompt_tokens")) for answer in answers])
        longest_ms = max([answer.total_ms for answer in answers], default=0.0)
        await call.answer(
            {
                "model": model,
                "embeddings": [vector_of(answer).tolist() for answer in answers],
                "total_duration": int(longest_ms * NS_PER_MS),
                "load_duration": 0,
                "prompt_eval_count": tokens,
            }
        )

    async def embed_one(self, call: Call) -> None:
        """The older form, of one text."""
        _, answers = await self._embedded(call, "prompt")
        await call.answer({"embedding": vector_of(answers[0]).tolist() if answers else []})

    async def _embedded(self, call: Call, key: str) -> Tuple[str, List[Answer]]:
        body = await _body(call)
        name, app = await self._named(body.get("model"), can_embed, EMBEDS)
        if asks_nothing(body, key):
            return body["model"], []
        with own_fields(input=key):
            request, _ = read_texts(embed_body({**body, "model": name}, key), app["inputs"])
        return body["model"], await answers_to(self._backend, call, request)

    async def _named(
        self, model: Any, can: Callable[[Mapping[str, Any]], bool], takes: str = CHATS
    ) -> Tuple[str, Dict[str, Any]]:
        """The app that a model's name means, if it ``can``."""
        apps = await self._backend.apps()
        name = name_of(model, apps) if isinstance(model, str) else model
        return name, app_of(apps, name, can, takes)

    def _note(self, body: Mapping[str, Any]) -> None:
        """Log once what requests say in vain."""
        for name in passed_over(body):
            if name not in self._noted:
                self._noted.add(name)
                log.info(
                    "Ollama's %s changes nothing here: the configuration says how a model is loaded (told once)", name
                )

    async def unserved(self, call: Call) -> None:
        """Refuse the routes that manage Ollama's models: the configuration does so here."""
        raise NotServed(
            f"/api/{call.path('rest')[:40]} is not served: the server's configuration says which models are"
        )


async def _body(call: Call) -> Dict[str, Any]:
    body = await call.json()
    if not isinstance(body, dict):
        raise Malformed("the body is no JSON object with 'model'")
    return {key: value for key, value in body.items() if value is not None}


def _line(value: Any) -> bytes:
    return to_json(value) + b"\n"
