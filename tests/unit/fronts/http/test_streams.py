"""Texts over HTTP: an error takes nothing of what was written, and a client that does not read its stream ends it."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from edgeserve.answers import Answer
from edgeserve.errors import BadInput, Dropped, Failed, Rejected, RequestError, ServerGone, TimedOut
from edgeserve.front import Places
from edgeserve.front.origins import Tokens, read_tokens
from edgeserve.fronts.http.settings import HttpConfig


def test_a_stream_that_nobody_reads_ends():
    pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")
    from edgeserve.fronts.http.asgi import Bounds, Endpoint, Site
    from edgeserve.fronts.http.chat import ChatRequest
    from edgeserve.fronts.http.chat_routes import ChatRoutes
    from edgeserve.fronts.http.completion import Completion

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

    bounds = Bounds(HttpConfig(body_timeout_ns=10**7), Places(10**6), None)
    routes = ChatRoutes(Site(Backend(), bounds, Tokens()), lambda: 0.0)

    async def handler(call):
        await routes._answer(call, {}, ChatRequest("m", [{}], {}, True), Completion("id", "m", 0))

    scope = {"method": "POST", "path": "/v1/chat/completions", "headers": []}
    asyncio.run(asyncio.wait_for(Endpoint(handler, bounds)(scope, receive, send), 30))
    assert closed == ["m"]


@pytest.mark.parametrize("by", ["its end", "another viewer", "its token"])
def test_the_end_of_a_stream_waits_no_longer_for_its_reader(by, tmp_path):
    pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")
    from edgeserve.fronts.http.asgi import Bounds, Endpoint, Site
    from edgeserve.fronts.http.asking import send_stream
    from edgeserve.fronts.http.page_routes import PageRoutes

    (tmp_path / "token").write_text("one 0123456789abcdef")
    bounds = Bounds(HttpConfig(body_timeout_ns=5 * 10**7), Places(10**6), None)
    tokens = read_tokens(str(tmp_path / "token"))
    page = PageRoutes(Site(object(), bounds, tokens))

    class View:
        async def pieces(self):
            yield b"one"
            if by == "its token":
                (tmp_path / "token").write_text("one 0123456789abcdef0")
                yield b"two"
            page._seats._end_oldest("token:one")
            await asyncio.Event().wait()

    async def one():
        yield b"one"

    async def send(message):
        if message["type"] == "http.response.body" and message.get("body") != b"one":
            await asyncio.Event().wait()

    async def receive():
        await asyncio.Event().wait()

    page._view = View()
    handler = page.stream if by != "its end" else lambda call: send_stream(call, [], one(), lambda error: b"")
    headers = [(b"authorization", b"Bearer 0123456789abcdef")]
    scope = {"method": "GET", "path": "/", "headers": headers}
    asyncio.run(asyncio.wait_for(Endpoint(handler, bounds, tokens)(scope, receive, send), 30))


def test_what_a_request_holds_is_given_back_when_its_token_has_another_name(tmp_path):
    pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")
    from edgeserve.fronts.http.asgi import Bounds, Endpoint

    path = tmp_path / "token"
    path.write_text("kitchen 0123456789abcdef")
    places = Places(1000)

    async def handler(call):
        call.hold(10)
        path.write_text("living-room 0123456789abcdef")
        call.check_token()
        await call.answer({})

    async def send(message):
        pass

    endpoint = Endpoint(handler, Bounds(HttpConfig(), places, None), read_tokens(str(path)))
    scope = {"method": "GET", "path": "/", "headers": [(b"authorization", b"Bearer 0123456789abcdef")]}
    asyncio.run(endpoint(scope, None, send))
    assert places.count == 0
    places.enter("token:kitchen", 1000)  # nothing is left of it


class Scripted:
    """A server whose choices bring these pieces; an error among them is raised there."""

    def __init__(self, choices):
        self.choices = choices

    def stream(self, app, inputs, options, origin):
        return self._come(self.choices[inputs["place"]])

    async def infer(self, app, inputs, options, gone, origin):
        return [piece async for piece in self._come(self.choices[inputs["place"]])][-1]

    async def _come(self, pieces):
        for piece in pieces:
            await asyncio.sleep(0)
            if isinstance(piece, Exception):
                raise piece
            yield piece


TOKEN = {"text": "word ", "tokens": np.array([1], np.int32), "logprobs": '[{"token": "word "}]'}
WHOLE = Answer({"text": "word word ", "finish_reason": "stop", "completion_tokens": 2})
GONE = ServerGone("the server has ended")
ERRORS = [
    Dropped("no more", "expired"),
    Failed("another node broke"),
    GONE,
    TimedOut("no piece within 60000 ms"),
    Rejected("full", "queue_full"),
]


def sent_by(choices, stream, **request):
    """The events that a front sends for a conversation with these choices."""
    pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")
    from edgeserve.fronts.http.asgi import Bounds, Call, Site
    from edgeserve.fronts.http.chat import ChatRequest
    from edgeserve.fronts.http.chat_routes import ChatRoutes
    from edgeserve.fronts.http.completion import Completion

    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        await asyncio.Event().wait()

    bounds = Bounds(HttpConfig(), Places(10**6), None)
    call = Call({"method": "POST", "path": "/", "headers": [], "client": ("::1", 1)}, receive, send, bounds)
    asks, n = [{"place": place} for place in range(len(choices))], len(choices)
    asked = ChatRequest("m", asks, request.pop("options", {}), stream, n=n)
    routes = ChatRoutes(Site(Scripted(choices), bounds, Tokens()), lambda: 0.0)
    app = {"on_late": "partial", **request}
    asyncio.run(asyncio.wait_for(routes._answer(call, app, asked, Completion("id", "m", 0, n)), 30))
    return b"".join(message.get("body", b"") for message in sent)


def told(body, stream):
    """The text, the reason of its end and what is ours of each choice, by its number."""
    bodies = (
        [json.loads(part[6:]) for part in body.split(b"\n\n") if part[:7] == b"data: {"]
        if stream
        else [json.loads(body)]
    )
    found = {}
    for each in bodies:
        for choice in each.get("choices", ()):
            text, finish, about = found.get(choice["index"], ("", None, {}))
            said = choice["delta" if stream else "message"].get("content") or ""
            about = each.get("edgeserve", about)
            found[choice["index"]] = (text + said, choice["finish_reason"] or finish, about)
    return found


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_behind_a_text_ends_it_as_it_is(error):
    body = sent_by([[TOKEN, TOKEN, error]], True)
    ((text, finish, about),) = told(body, True).values()
    assert text == "word word " and finish == "length" and b'"error"' not in body
    assert about["late"] and about["reason"] == f"ended early, after 2 tokens: {error}"
    assert body.count(b"data: [DONE]") == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_choice_that_is_refused_takes_nothing_from_the_others(error, stream, place):
    choices = [[TOKEN, TOKEN, WHOLE], [TOKEN, Dropped("no more", "expired")]]
    body = sent_by([*choices[:place], [error], *choices[place:]], stream)
    found = told(body, stream)
    assert found.pop(place)[:2] == ("", "length") and b'"error"' not in body
    assert [each[:2] for _, each in sorted(found.items())] == [
        ("word word ", "stop"),
        ("word " if stream else "", "length"),
    ]
    assert str(error) in body.decode()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("choices", "code"),
    [
        ([[ERRORS[0]]], "expired"),
        ([[ERRORS[4]], [ERRORS[0]]], "queue_full"),
        ([[BadInput("no such thing")], [TOKEN, WHOLE]], "no such thing"),
    ],
)
def test_an_error_is_told_where_nothing_was_written_or_the_request_is_wrong(choices, code, stream):
    with pytest.raises(RequestError) as caught:
        sent_by(choices, stream)
    assert code in (str(caught.value), getattr(caught.value, "reason", ""))


@pytest.mark.parametrize(("own", "asked"), [("drop", {}), ("partial", {"on_late": "drop"})])
def test_who_wants_all_or_nothing_in_one_piece_gets_that(own, asked):
    with pytest.raises(Rejected):
        sent_by([[TOKEN, TOKEN, WHOLE], [ERRORS[4]]], False, on_late=own, options=asked)


def test_ollamas_lines_end_with_what_was_written():
    pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")
    from edgeserve.fronts.http.asking import pieces_of
    from edgeserve.fronts.http.chat import ChatRequest
    from edgeserve.fronts.http.ollama import Lines

    async def lines():
        told, written = Lines("m", chat=True), []
        async for _, piece in pieces_of(Scripted([[TOKEN, GONE]]), ChatRequest("m", [{"place": 0}], {}), ""):
            written.append(told.last(piece, 0.0) if isinstance(piece, Answer) else told.piece(piece, 0.0))
        return written

    first, last = asyncio.run(lines())
    assert first["message"]["content"] == "word " and not first["done"]
    assert last["message"]["content"] == "" and last["done"] and last["done_reason"] == "length"
    assert last["eval_count"] == 1 and last["edgeserve"]["reason"]


HELLO = [{"role": "user", "content": "hello"}]
WAYS = {
    "/v1/chat/completions": {"messages": HELLO, "stream": True},
    "/v1/completions": {"prompt": "hello", "stream": True},
    "/v1/responses": {"input": "hello", "stream": True},
    "/api/chat": {"messages": HELLO},
    "/api/generate": {"prompt": "hello"},
    "grpc": {},
}
"""Path of a stream -> what is asked there."""


class Broken(Scripted):
    """A server whose one app brings two pieces, and then this error."""

    def __init__(self, error):
        word = {key: TOKEN[key] for key in ("text", "tokens")}
        super().__init__([[word, word, error]])

    async def apps(self):
        text = {"dtype": "text", "shape": [], "optional": True}
        inputs = {"messages": text, "prompt": text}
        return {"m": {"inputs": inputs, "outputs": {}, "output_types": {}, "pieces": True}}

    async def app(self, name, version=""):
        return (await self.apps())[name]

    def stream(self, app, inputs, options, origin):
        return self._come(self.choices[0])


def stream_of(way, backend):
    """The objects of a stream over HTTP, and whether its body was ended."""
    pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")
    from edgeserve.fronts.http.asgi import Bounds, Site
    from edgeserve.fronts.http.chat_routes import ChatRoutes
    from edgeserve.fronts.http.ollama_routes import OllamaRoutes

    sent, body = [], [{"type": "http.request", "body": json.dumps({"model": "m", **WAYS[way]}).encode()}]

    async def send(message):
        sent.append(message)

    async def receive():
        return body.pop() if body else await asyncio.Event().wait()

    site = Site(backend, Bounds(HttpConfig(), Places(10**9), None), Tokens())
    routes = [*ChatRoutes(site, lambda: 0.0).routes(), *OllamaRoutes(site, lambda: 0.0).routes()]
    endpoint = next(route.endpoint for route in routes if route.path == way)
    scope = {"method": "POST", "path": way, "headers": [], "client": ("::1", 1)}
    asyncio.run(asyncio.wait_for(endpoint(scope, receive, send), 30))
    lines = b"".join(message.get("body", b"") for message in sent).decode().splitlines()
    told = [line[6:] if line.startswith("data: ") else line for line in lines]
    assert sent[0]["status"] == 200
    return [json.loads(line) for line in told if line.startswith("{")], not sent[-1].get("more_body", False)


def replies_of(backend):
    """The messages of a stream over gRPC, of which none is the last one of an answer where it has an error."""
    pytest.importorskip("grpc", reason="pip install -e '.[grpc]'")
    import grpc

    from edgeserve.front import Held
    from edgeserve.fronts.http.admission import AtOnce
    from edgeserve.fronts.http.grpc_messages import KINDS
    from edgeserve.fronts.http.grpc_service import InferStream
    from edgeserve.fronts.http.kserve import OpenInference

    asked = KINDS["ModelInferRequest"](model_name="m", id="1")
    asked.inputs.add(name="prompt", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"hello")
    coming, written = [asked.SerializeToString(), grpc.aio.EOF], []

    async def read():
        return coming.pop(0)

    async def write(packed):
        written.append(KINDS["ModelStreamInferResponse"].FromString(packed))

    async def run():  # before Python 3.10 locks belong to the loop in which they are made
        stream = InferStream(OpenInference(backend).stream, "", Held(Places(10**9), "a"), 10**9, AtOnce(10**6))
        await asyncio.wait_for(stream.run(read, write), 30)

    asyncio.run(run())
    return written


def looks_whole(way, last):
    """True if a client takes the stream that ends with this object for a whole answer."""
    if "error" in last or last.get("type") == "error":
        return False
    ends = {
        "/v1/responses": last.get("type"),
        "/api/chat": last.get("done_reason"),
        "/api/generate": last.get("done_reason"),
    }
    return ends[way] in ("response.completed", "stop") if way in ends else last["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("error", [*ERRORS, RuntimeError("a fault")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", WAYS)
def test_no_stream_that_breaks_looks_whole(way, error):
    """It ends with an error, as one that was cut, or with its connection; without the error it is whole."""
    if way == "grpc":
        assert [bool(reply.error_message) for reply in replies_of(Broken(error))] == [False, False, True]
        assert not any(reply.error_message for reply in replies_of(Broken(Answer({"text": "word word "}))))
        return
    told, is_ended = stream_of(way, Broken(error))
    assert len(told) > 2 and not looks_whole(way, told[-1]) if is_ended else isinstance(error, RuntimeError)
    told, is_ended = stream_of(way, Broken(WHOLE))
    assert is_ended and looks_whole(way, told[-1])


@pytest.mark.parametrize("stuck", ["http.response.start", "http.response.body"])
@pytest.mark.parametrize("by", ["answer", "start"])
def test_an_answer_that_nobody_reads_ends(by, stuck):
    from edgeserve.fronts.http.asgi import Bounds, Endpoint

    async def send(message):
        if message["type"] == stuck:
            await asyncio.Event().wait()  # the connection's buffer is full

    async def receive():
        await asyncio.Event().wait()

    async def handler(call):
        call.hold(100)
        if by == "answer":
            return await call.answer({"text": "words"})
        await call.start(200, [])
        await call.write(b"words")

    places = Places(10**6)
    scope = {"method": "GET", "path": "/", "headers": []}
    asyncio.run(
        asyncio.wait_for(
            Endpoint(handler, Bounds(HttpConfig(body_timeout_ns=5 * 10**7), places, None))(scope, receive, send), 10
        )
    )
    assert places.count == 0
