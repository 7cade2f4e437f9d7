"""One request of a chat protocol, asked of the server: its choices whole, or in pieces as they come, and how a stream
of pieces is sent. What the pieces look like is the protocol's.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, AsyncGenerator, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from edgeserve.answers import Answer
from edgeserve.errors import BadInput, EdgeServeError, Malformed, RequestError, TooLarge, UnknownApp
from edgeserve.front import ClientGone
from edgeserve.fronts.http.asgi import Call, Headers
from edgeserve.fronts.http.backend import Backend
from edgeserve.fronts.http.chat import ChatRequest
from edgeserve.fronts.http.completion import count_of, objects_of, text_of
from edgeserve.units import counted

TOGETHER_MAX = 16
"""Requests of one call that the server has at a time: a list of texts to embed leaves room for other clients."""

QUIET_S = 5.0
"""Silence on a stream after which its client is told that the request lives: proxies end silent connections. Longer
than a client tries to reach a server, at most 3 s: the refusal of one that is not there has a status of its own."""

COMMENT = b": waiting\n\n"
"""The comment that event streams send for that; clients ignore it."""

MISTAKES = (Malformed, TooLarge, BadInput, UnknownApp)
"""Errors of one choice that end them all: the request itself is wrong."""


async def answers_to(backend: Backend, call: Call, request: ChatRequest, keeps: bool = False) -> List[Answer]:
    """The answers, one per choice. A client that goes cancels them, and so does the first error; with ``keeps`` a
    choice that ends without an answer is empty, where others have one."""
    asks, options, name = request.asks, request.options, request.model
    if len(asks) == 1:
        return [await backend.infer(name, asks[0], options, call.gone, call.origin)]
    room = asyncio.Semaphore(TOGETHER_MAX)

    async def answer(inputs: Any) -> Union[Answer, RequestError]:
        async with room:
            try:
                return await backend.infer(name, inputs, options, None, call.origin)
            except RequestError as error:
                if not keeps or isinstance(error, MISTAKES):
                    raise
                return error

    tasks = [asyncio.ensure_future(answer(inputs)) for inputs in asks]
    try:
        async with call.until_gone():
            found = await asyncio.gather(*tasks)
            if isinstance(found[0], RequestError) and not any(isinstance(each, Answer) for each in found):
                raise found[0]
            return [each if isinstance(each, Answer) else WrittenText().ended(each) for each in found]
    finally:
        await _end(tasks)
    raise ClientGone("the client went away")


async def texts_to(backend: Backend, call: Call, app: Mapping[str, Any], request: ChatRequest) -> List[Answer]:
    """The answers to a request for texts. Each choice keeps what it has, unless all or nothing is wanted."""
    return await answers_to(backend, call, request, request.options.get("on_late", app.get("on_late")) != "drop")


async def pieces_of(backend: Backend, request: ChatRequest, origin: str) -> AsyncGenerator[Tuple[int, Any], None]:
    """The choices' pieces as they come: the choice's number with a table of values, and last with its
    :class:`Answer`. An error ends a choice with its partial text; it is raised where no choice has any text. Closing
    the iterator cancels what is open."""
    streams = [kept(backend.stream(request.model, inputs, request.options, origin)) for inputs in request.asks]
    if len(streams) == 1:
        try:
            async for piece in streams[0]:
                yield 0, piece
        finally:
            await streams[0].aclose()  # not whenever the collector finds it: the request would run until then
        return
    coming: asyncio.Queue[Tuple[int, Any]] = asyncio.Queue(1)
    tasks = [asyncio.ensure_future(_follow(index, stream, coming)) for index, stream in enumerate(streams)]
    lost: Dict[int, RequestError] = {}
    left, has_answered = len(tasks), False
    try:
        while left:
            index, piece = await coming.get()
            if isinstance(piece, RequestError) and not isinstance(piece, MISTAKES):
                lost[index] = piece
                left -= 1
                continue
            if isinstance(piece, Exception):
                raise piece
            is_over = isinstance(piece, Answer)
            left, has_answered = left - is_over, has_answered or is_over
            yield index, piece
        for index, error in sorted(lost.items()):
            if not has_answered:
                raise error
            yield index, WrittenText().ended(error)
    finally:
        await _end(tasks)


class WrittenText:
    """The part of one text that has come so far."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens = 0
        self.chances: List[Any] = []

    def add(self, piece: Mapping[str, Any]) -> None:
        """Another piece has come."""
        self.text += text_of(piece)
        self.tokens += count_of(piece.get("tokens"))
        self.chances += objects_of(piece, "logprobs")

    def ended(self, error: EdgeServeError) -> Answer:
        """The answer that it is, since nothing more comes because of ``error``."""
        outputs: Dict[str, Any] = {"text": self.text, "completion_tokens": self.tokens, "finish_reason": "length"}
        if self.chances:
            outputs["logprobs"] = json.dumps(self.chances, ensure_ascii=False)
        return Answer(outputs, late=True, reason=f"ended early, after {counted(self.tokens, 'token')}: {error}")


async def kept(stream: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """The pieces of one text, and its answer; an error behind the first of them ends it with what was written."""
    written = WrittenText()
    try:
        async for piece in stream:
            if not isinstance(piece, Answer):
                written.add(piece)
            yield piece
    except EdgeServeError as error:
        if not (written.text or written.tokens):
            raise
        yield written.ended(error)
    finally:
        await stream.aclose()


async def _follow(index: int, stream: AsyncGenerator[Any, None], coming: asyncio.Queue[Tuple[int, Any]]) -> None:
    try:
        async for piece in stream:
            await coming.put((index, piece))
    except Exception as error:  # noqa: BLE001 raised where the pieces are read
        await coming.put((index, error))
    finally:
        await stream.aclose()


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def send_stream(
    call: Call,
    headers: Headers,
    parts: AsyncGenerator[bytes, None],
    failed: Callable[[EdgeServeError], bytes],
    quiet: bytes = COMMENT,
) -> None:
    """Send the parts as they come, and ``quiet`` after each :data:`QUIET_S` without one. The status is sent with the
    first of either, so that a refusal at once has its own; an error after that is told by ``failed``. A client that
    goes cancels the request."""
    coming: Optional[asyncio.Future[bytes]] = None
    try:
        async with call.until_gone():
            try:
                while True:
                    coming = asyncio.ensure_future(parts.__anext__())
                    while not (await asyncio.wait({coming}, timeout=QUIET_S))[0]:
                        await _send(call, headers, quiet)
                    await _send(call, headers, coming.result())
            except StopAsyncIteration:
                pass
            except EdgeServeError as error:
                if not call.begun or isinstance(error, ClientGone):
                    raise
                await call.write(failed(error), more=True)
            await call.write(b"")
    finally:
        if coming is not None:
            await _end([coming])
        await parts.aclose()


async def _send(call: Call, headers: Headers, part: bytes) -> None:
    call.check_token()
    if not call.begun:
        await call.start(200, list(headers))
    await call.write(part, more=True)
