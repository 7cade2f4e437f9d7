"""Frigate's ``zmq`` detector, answered by an app of a running server.

Frigate sends a message of two frames, a header (JSON: ``shape``, ``dtype``, ``model_type``) and an image's bytes, over
a REQ socket, and takes one frame of 20 x 6 float32 (class, score, top, left, bottom, right), zeros where there is
nothing. It waits 200 ms, then it makes another socket. So a request's deadline is that time, and a refused or late
request is answered as an empty image. A socket of Frigate is a stream of its own where the app keeps streams.

From 0.17 on it first asks, with a header alone, whether the detector has its model, and would send the file. The app
has its own: the answer is yes, and no file is ever taken.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from edgeserve.client import AsyncClient
from edgeserve.errors import BadInput, ConfigError, EdgeServeError, Rejected
from edgeserve.front import (
    AcceptedConnections,
    Front,
    FrontSettings,
    Held,
    Places,
    Ready,
    Troubles,
    entry,
    host_and_port,
    number,
    one_of,
    string,
)
from edgeserve.front.images import ERROR_CHARS
from edgeserve.fronts.detections import FORMS, MODEL_TYPES, rows_of
from edgeserve.fronts.image_apps import AppInput, the_input
from edgeserve.fronts.req_sockets import OddPeer, as_message, read_message, shake_hands

log = logging.getLogger("edgeserve")

EXAMPLE = "tcp://127.0.0.1:5555"
ROWS = 20
CONNECTIONS_MAX, CONNECTIONS_OF_ONE_MAX = 256, 128
"""A Frigate has one per detector."""

BYTES_MAX = 128 * 1024**2
"""Of requests that are read and not answered, over all connections."""

TOGETHER_MAX = 32
"""Requests with the server at once, one of a connection: Frigate waits for an answer before it asks again. Others wait
behind those of an owner that fills its places."""

HEADER_BYTES_MAX = 4096
"""Frigate's has about 100."""

IMAGE_BYTES_MAX = 64 * 1024**2

MARGIN = 0.9
"""The deadline's part of Frigate's time-out: the answer travels, too."""

EMPTY = bytes(ROWS * 6 * 4)
"""An answer without boxes."""

MODEL_ANSWER = json.dumps({"model_available": True, "model_loaded": True, "model_saved": False}).encode()

Header = Tuple[Tuple[int, ...], str, str]


@dataclass(frozen=True)
class Frigate(FrontSettings):
    """``[front.frigate]``: the app that is asked for every image, and how."""

    app: str = entry(string, "")  # the app that is asked for every image
    listen: str = entry(string, EXAMPLE)  # what Frigate's detector names as endpoint
    timeout_ms: float = entry(number(1.0), 200.0)  # Frigate's request_timeout_ms
    form: str = entry(one_of("", *FORMS), "")  # how the model answers; "" = as Frigate's model_type says
    score: float = entry(number(0.0, 1.0), 0.4)  # the least score of a box


class FrigateFront(Front):
    """One app as Frigate's detector."""

    Settings = Frigate

    def __init__(self, client: AsyncClient, settings: Frigate) -> None:
        super().__init__(client, settings)
        self._client = client
        self._app = settings.app
        self._timeout_ms = settings.timeout_ms
        self._form = settings.form
        self._score_min = settings.score
        self._input = AppInput("", "", (), "none", 0.0)
        self._troubles = Troubles("frigate")
        self._places = Places(TOGETHER_MAX, "images without an answer", lasting=True)
        self._bytes = Places(BYTES_MAX, "bytes of images", lasting=True)
        self._numbers = itertools.count(1)
        self.answered = 0
        self.empty = 0
        self.refused = 0

    @classmethod
    def check(cls, settings: Frigate) -> None:
        """See :class:`~edgeserve.front.Front`."""
        if not settings.app:
            raise ConfigError(f"no app is named: set {settings.where('app')}")

    async def look(self) -> None:
        """Ask the server for the app. Raises :class:`EdgeServeError` where it cannot be a detector."""
        self._input = await the_input(self._client, self._app, "Frigate")

    def summary(self) -> str:
        """See :class:`~edgeserve.front.Front`."""
        return f"{self.answered} images answered, {self.empty} of them as empty; {self.refused} left out"

    async def serve(self, stopped: asyncio.Event, ready: Ready) -> None:
        """See :class:`~edgeserve.front.Front`."""
        connections = AcceptedConnections(self._converse, CONNECTIONS_MAX, CONNECTIONS_OF_ONE_MAX)
        server, place = await self._listen(connections)
        try:
            ready(place)
            await stopped.wait()
        finally:
            server.close()
            await connections.close()
            if place.startswith("ipc://"):
                with suppress(OSError):
                    os.unlink(place[len("ipc://") :])

    async def _listen(self, connections: AcceptedConnections) -> Tuple[asyncio.AbstractServer, str]:
        where, listen = self.settings.where("listen"), self.settings.listen
        transport, _, address = listen.partition("://")
        try:
            if transport == "ipc" and address:
                return await asyncio.start_unix_server(connections.accept, address), listen
            if transport == "tcp" and address.endswith(":*"):
                address = address[:-1] + "0"
            host, port = host_and_port(where, address if transport == "tcp" else "", EXAMPLE)
            server = await asyncio.start_server(connections.accept, "0.0.0.0" if host == "*" else host, port)
        except (OSError, ConfigError) as error:
            raise ConfigError(f"{where} = {listen!r}: {error}; expected such as {EXAMPLE}") from None
        bound = server.sockets[0].getsockname()[1]
        return server, f"tcp://{address.rpartition(':')[0]}:{bound}"

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, origin: str) -> None:
        """Answer one connection's requests, one after the other; the next is read meanwhile, so that a client that goes
        ends its request."""
        stream = f"frigate-{os.getpid()}-{next(self._numbers)}"
        tasks: List[asyncio.Future[Any]] = []
        rooms: List[Held] = []  # of the request that is answered, and of the next
        try:
            coming = asyncio.ensure_future(self._read(reader, writer, origin, rooms))
            while True:
                tasks = [coming]
                frames = await coming
                if frames is None:
                    return
                coming = asyncio.ensure_future(self._read(reader, None, origin, rooms))
                answering = asyncio.ensure_future(self._answer(frames, origin, stream))
                tasks = [coming, answering]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if coming.done() and coming.result() is None:
                    return
                writer.write(as_message(await answering))
                rooms.pop(0).close()
                await writer.drain()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for room in rooms:
                room.close()

    async def _read(
        self, reader: asyncio.StreamReader, new: Optional[asyncio.StreamWriter], origin: str, rooms: List[Held]
    ) -> Optional[List[bytes]]:
        """The next request of a connection, for which ``rooms`` gets one more; None at the connection's end. One that
        is ``new`` is greeted first."""
        try:
            if new is not None:
                await shake_hands(reader, new)
            rooms.append(Held(self._bytes, origin))
            frames, too_long = await read_message(reader, (HEADER_BYTES_MAX, IMAGE_BYTES_MAX), rooms[-1].set)
        except (OddPeer, Rejected) as error:
            self.refused += 1
            kind = "malformed" if isinstance(error, OddPeer) else "full"
            self._troubles.tell(kind, f"{origin}: a connection is ended: {error}")
            return None
        except (ConnectionError, asyncio.IncompleteReadError):
            return None
        if too_long:
            text = f"a header of more than {HEADER_BYTES_MAX} bytes is no request; answered as an empty image"
            self._troubles.tell("malformed", text)
        return frames

    async def _answer(self, frames: List[bytes], origin: str, stream: str) -> bytes:
        about = _model_question(frames[0])
        if about:
            self._troubles.tell(about, f"{about}: Frigate's model is not used; app {self._app!r} answers with its own")
            return MODEL_ANSWER
        rows: Optional[Any] = None
        try:
            self._places.enter(origin)
        except Rejected as error:
            self.refused += 1
            self._troubles.tell("full", f"an image is answered as empty: {error}")
            await asyncio.sleep(self._timeout_ms * MARGIN / 1000)  # who asks too often is not answered the sooner
            return EMPTY
        try:
            self.answered += 1
            rows = await self._rows(frames, origin, stream)
        except EdgeServeError as error:
            kind = str(error) if error.code == "bad_input" else error.code
            self._troubles.tell(kind, f"{error.code}: an image is answered as empty: {error}")
        except Exception as error:  # noqa: BLE001 outputs of any form come from the app: Frigate gets its answer all the same
            self._troubles.tell("outputs", f"outputs: an image is answered as empty: {type(error).__name__}: {error}")
        finally:
            self._places.leave(origin)
        if rows is None:
            self.empty += 1
            return EMPTY
        return bytes(rows.tobytes())

    async def _rows(self, frames: List[bytes], origin: str, stream: str) -> Any:
        (shape, dtype, model_type), image = header_of(frames), frames[1]
        array = self._fitted(np.frombuffer(image, dtype).reshape(shape))
        options: Dict[str, Any] = {"slo_ms": self._timeout_ms * MARGIN, "on_late": "drop", "origin": origin}
        if self._input.has_streams:
            options["stream"] = stream
        answer = await self._client.infer(self._app, {self._input.name: array}, timeout_ms=self._timeout_ms, **options)
        form = self._form or MODEL_TYPES.get(model_type, "yolo")
        height, width = (shape[-3], shape[-2]) if shape[-1] in (1, 3) else (shape[-2], shape[-1])
        return rows_of(answer.outputs, form, height, width, self._score_min, ROWS)

    def _fitted(self, array: Any) -> Any:
        """The image as the app takes it: without the batch's axis."""
        dtype, shape = self._input.dtype, self._input.shape
        if array.ndim == len(shape) + 1 and array.shape[0] == 1:
            array = array[0]
        fits = len(array.shape) == len(shape) and all(
            wanted in (-1, length) for wanted, length in zip(shape, array.shape)
        )
        if not fits or array.dtype.name != dtype:
            raise BadInput(
                f"Frigate sends {array.dtype.name} of shape {list(array.shape)}, app {self._app!r} takes {dtype} "
                f"of shape {list(shape)}; set width, height, input_tensor (nhwc or nchw) and input_dtype in "
                "Frigate's model section"
            )
        return array


def _model_question(head: bytes) -> str:
    """The model that a header asks for, or brings; empty for an image's header."""
    try:
        header = json.loads(head)
    except (ValueError, RecursionError):
        return ""
    asks = isinstance(header, dict) and (header.get("model_request") or header.get("model_data"))
    return str(header.get("model_name", "a model"))[:128] if asks else ""


def header_of(frames: List[bytes]) -> Header:
    """Shape, dtype and model type of a request. Raises :class:`BadInput`."""
    if len(frames) != 2:
        raise BadInput(f"a request of {len(frames)} frames; expected a header and an image")
    try:
        header = json.loads(frames[0])
        shape = tuple(int(length) for length in header["shape"])
        dtype = np.dtype(str(header["dtype"]))  # numpy parses it as Python
    except (
        ValueError,
        TypeError,
        KeyError,
        SyntaxError,
        RecursionError,
        OverflowError,
    ) as error:  # numpy parses dtypes
        raise BadInput(
            f"the header of a request is none ({str(error)[:ERROR_CHARS]}); expected JSON with shape and dtype"
        ) from None
    if dtype.hasobject or not 2 <= len(shape) <= 4 or min(shape) < 1:
        raise BadInput(f"an image of {dtype} and shape {shape}; expected two to four axes of numbers")
    if math.prod(shape) * dtype.itemsize != len(frames[1]):
        raise BadInput(f"an image of {len(frames[1])} bytes; its header says {shape} of {dtype.name}")
    return shape, dtype.str, str(header.get("model_type", ""))
