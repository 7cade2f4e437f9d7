"""One request of a chat protocol, asked of the server: its choices whole, or in pieces as they come, and how a stream
of pieces is sent. What the pieces look like is the protocol's.
"""

from __future__ import annotations

import asyncio
from typing import Any, AsyncGenerator, Callable, List, Sequence, Tuple

from edgeserve.answers import Answer
from edgeserve.errors import EdgeServeError
from edgeserve.http.asgi import Call, Headers
from edgeserve.http.backend import Backend
from edgeserve.http.chat import ChatRequest
from edgeserve.http.failures import ClientGone

TOGETHER_MAX = 16
"""Requests of one call that the server has at a time: a list of texts to embed leaves room for other clients."""


async def answers_to(backend: Backend, call: Call, request: ChatRequest) -> List[Answer]:
    """The answers, one per choice. A client that goes cancels them, and so does the first error."""
    asks, options, name = request.asks, request.options, request.model
    if len(asks) == 1:
        return [await backend.infer(name, asks[0], options, call.gone, call.origin)]
    room = asyncio.Semaphore(TOGETHER_MAX)

    async def answer(inputs: Any) -> Answer:
        async with room:
            return await backend.infer(name, inputs, options, None, call.origin)

    tasks = [asyncio.ensure_future(answer(inputs)) for inputs in asks]
    try:
        async with call.until_gone():
            return list(await asyncio.gather(*tasks))
    finally:
        await _end(tasks)
    raise ClientGone("the client went away")


async def pieces_of(backend: Backend, request: ChatRequest, origin: str) -> AsyncGenerator[Tuple[int, Any], None]:
    """The choices' pieces as they come: the choice's number with a table of values, and last with its
    :class:`Answer`. Closing the iterator cancels what is open."""
    streams = [backend.stream(request.model, inputs, request.options, origin) for inputs in request.asks]
    if len(streams) == 1:
        try:
            async for piece in streams[0]:
                yield 0, piece
        finally:
            await streams[0].aclose()  # not whenever the collector finds it: the request would run until then
        return
    coming: asyncio.Queue[Tuple[int, Any]] = asyncio.Queue(1)
    tasks = [asyncio.ensure_future(_follow(index, stream, coming)) for index, stream in enumerate(streams)]
    left = len(tasks)
    try:
        while left:
            index, piece = await coming.get()
            if isinstance(piece, Exception):
                raise piece
            left -= isinstance(piece, Answer)
            yield index, piece
    finally:
        await _end(tasks)


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
    call: Call, headers: Headers, parts: AsyncGenerator[bytes, None], failed: Callable[[EdgeServeError], bytes]
) -> None:
    """Send the parts as they come. The status is sent with the first, so that a refusal has its own; an error after
    that is told by ``failed``. A client that goes cancels the request."""
    try:
        async with call.until_gone():
            try:
                async for part in parts:
                    await _send(call, headers, part)
            except EdgeServeError as error:
                if not call.begun or isinstance(error, ClientGone):
                    raise
                await _send(call, headers, failed(error))
            await call.send({"type": "http.response.body", "body": b""})
    finally:
        await parts.aclose()


async def _send(call: Call, headers: Headers, part: bytes) -> None:
    if not call.begun:
        await call.start(200, list(headers))
    try:
        message = {"type": "http.response.body", "body": part, "more_body": True}
        await asyncio.wait_for(call.send(message), call.bounds.body_s_max)
    except asyncio.TimeoutError:
        raise ClientGone("the client does not read its stream") from None
