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
import json
import logging
import math
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, List, Optional, Set, Tuple

import numpy as np
import zmq
import zmq.asyncio

from edgeserve.client import AsyncClient
from edgeserve.errors import BadInput, ConfigError, EdgeServeError, Rejected
from edgeserve.front import Front, FrontSettings, Places, Ready, Troubles, entry, number, one_of, string, user_of_file
from edgeserve.front.images import ERROR_CHARS
from edgeserve.fronts.detections import FORMS, MODEL_TYPES, rows_of
from edgeserve.fronts.image_apps import AppInput, the_input

log = logging.getLogger("edgeserve")

ROWS = 20
MESSAGE_BYTES_MAX = 64 * 1024**2
TOGETHER_MAX = 64
"""Requests that are open at once; a Frigate has one per detector."""

OF_ONE_MAX = 2
"""The most of them of one connection: Frigate's asks one at a time, and gives up before it asks again."""

FRAMES_MAX = 4
"""The sender's name, an empty frame, a header and an image."""

FRAMES_AT_ONCE = 1000
"""Frames too many that are thrown away before others have a turn: about a millisecond."""

HEADER_BYTES_MAX = 4096
"""Frigate's has about 100."""

MARGIN = 0.9
"""The deadline's part of Frigate's time-out: the answer travels, too."""

MODEL_ANSWER = json.dumps({"model_available": True, "model_loaded": True, "model_saved": False}).encode()

Header = Tuple[Tuple[int, ...], str, str]


@dataclass(frozen=True)
class Frigate(FrontSettings):
    """``[front.frigate]``: the app that is asked for every image, and how."""

    app: str = entry(string, "")  # the app that is asked for every image
    listen: str = entry(string, "tcp://127.0.0.1:5555")  # what Frigate's detector names as endpoint
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
        self._places = Places(TOGETHER_MAX, "images without an answer", lasting=True)  # by the owner of a connection
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
        listen = self.settings.listen
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            try:
                socket.bind(listen)
            except zmq.ZMQError as error:
                where = f"{self.settings.where('listen')} = {listen!r}"
                raise ConfigError(f"{where}: {error}; expected such as tcp://127.0.0.1:5555") from None
            ready(socket.getsockopt_string(zmq.LAST_ENDPOINT))
            await self._answer_all(socket, stopped)
        finally:
            socket.close()
            context.term()

    async def _answer_all(self, socket: Any, stopped: asyncio.Event) -> None:
        open_now: Set[asyncio.Task[None]] = set()
        of_one: Counter[int] = Counter()
        plain = zmq.Socket.shadow(socket.underlying)
        ending = asyncio.ensure_future(stopped.wait())
        try:
            while not stopped.is_set():
                coming = asyncio.ensure_future(self._received(socket, plain))
                await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    break
                frames, file = coming.result()
                if not frames or of_one[file] >= OF_ONE_MAX:
                    self.refused += 1
                    continue  # its sender gives up after the time-out
                origin = user_of_file(file)
                try:
                    self._places.enter(origin)
                except Rejected as error:
                    self.refused += 1
                    self._troubles.tell("full", str(error))
                    continue
                task = asyncio.ensure_future(self._answer(socket, frames, origin))
                open_now.add(task)
                of_one[file] += 1
                task.add_done_callback(partial(self._ended, open_now, of_one, file, origin))
        finally:
            ending.cancel()
            for task in list(open_now):
                task.cancel()
            await asyncio.gather(*open_now, return_exceptions=True)

    def _ended(
        self, open_now: Set[Any], of_one: Counter[int], file: int, origin: str, task: asyncio.Task[None]
    ) -> None:
        open_now.discard(task)
        self._places.leave(origin)
        of_one[file] -= 1
        if not of_one[file]:
            del of_one[file]

    async def _received(self, socket: Any, plain: Any) -> Tuple[List[bytes], int]:
        """The next message, frame by frame, and the connection that it came by; no frames for one that is none of
        Frigate's, of which no more is copied than that takes."""
        frame = await socket.recv(copy=False)
        frames, count = [bytes(frame.buffer)], 1
        while frame.more:  # a message comes whole, so that its next frame is there
            frame = plain.recv(zmq.NOBLOCK, copy=False)
            count += 1
            size = frame.buffer.nbytes
            if count <= FRAMES_MAX and (size <= HEADER_BYTES_MAX or count == FRAMES_MAX):
                frames.append(bytes(frame.buffer))
            elif not count % FRAMES_AT_ONCE:
                await asyncio.sleep(0)
        file = int(frame.get(zmq.SRCFD))  # before libzmq 4.3.5 a message's first frame does not tell it
        if len(frames) == count:
            return frames, file
        self._troubles.tell("malformed", f"a message of {count} frames, or with a long header, is no request")
        return [*frames[:2], b""] if len(frames) > 1 else [], file  # answered as an empty image

    async def _answer(self, socket: Any, frames: List[bytes], origin: str) -> None:
        if len(frames) < 3 or frames[1]:
            return  # no REQ socket: it waits for no answer
        about = _model_question(frames[2])
        if about:
            self._troubles.tell(about, f"{about}: Frigate's model is not used; app {self._app!r} answers with its own")
            await socket.send_multipart([frames[0], b"", MODEL_ANSWER])
            return
        self.answered += 1
        rows: Optional[Any] = None
        try:
            rows = await self._rows(frames[0], frames[2:], origin)
        except EdgeServeError as error:
            kind = str(error) if error.code == "bad_input" else error.code
            self._troubles.tell(kind, f"{error.code}: an image is answered as empty: {error}")
        except Exception as error:  # noqa: BLE001 outputs of any form come from the app: Frigate gets its answer all the same
            self._troubles.tell("outputs", f"outputs: an image is answered as empty: {type(error).__name__}: {error}")
        if rows is None:
            self.empty += 1
            rows = np.zeros((ROWS, 6), np.float32)
        await socket.send_multipart([frames[0], b"", rows.tobytes()])

    async def _rows(self, sender: bytes, frames: List[bytes], origin: str) -> Any:
        (shape, dtype, model_type), image = header_of(frames), frames[1]
        array = self._fitted(np.frombuffer(image, dtype).reshape(shape))
        options: Dict[str, Any] = {"slo_ms": self._timeout_ms * MARGIN, "on_late": "drop", "origin": origin}
        if self._input.has_streams:
            options["stream"] = f"frigate-{sender.hex()}"
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
        header = json.loads(head) if len(head) <= HEADER_BYTES_MAX else {}
    except (ValueError, RecursionError):
        return ""
    asks = isinstance(header, dict) and (header.get("model_request") or header.get("model_data"))
    return str(header.get("model_name", "a model"))[:128] if asks else ""


def header_of(frames: List[bytes]) -> Header:
    """Shape, dtype and model type of a request. Raises :class:`BadInput`."""
    if len(frames) != 2:
        raise BadInput(f"a request of {len(frames)} frames; expected a header and an image")
    if len(frames[0]) > HEADER_BYTES_MAX:
        raise BadInput(f"a header of {len(frames[0])} bytes; at most {HEADER_BYTES_MAX} are read")
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
