"""An app that takes one image, or one cloud of points, asked by a front: what it declares, frames in its form, boxes in
its answers, and frames of a live source of which the newest wins.

Knows no camera and no message. Times come from the event loop's own clock.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import (
    Any,
    Awaitable,
    Callable,
    Deque,
    Dict,
    Generic,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

import numpy as np
from numpy.typing import NDArray

from edgeserve.answers import Answer
from edgeserve.client import AsyncClient
from edgeserve.engines.image import BORDER, ImageForm, inside, resized
from edgeserve.errors import BadInput, Dropped, EdgeServeError, Rejected
from edgeserve.front import STREAMS, app_for, of_any
from edgeserve.front.images import PictureForm, form_of, in_form
from edgeserve.fronts.detections import Box, boxes_of, has_named_boxes

NEWEST_WINS = "newest_wins"
BOXES_MAX = 100

LATENCIES_KEPT = 100_000

MM_PER_M = 1000.0

GREY = np.array([0.299, 0.587, 0.114], np.float32)
"""Shares of red, green and blue in the brightness (ITU-R BT.601-7)."""

IN_FLIGHT_MAX = 2
"""Frames of one source without an answer: one runs, and one is there when it ends."""

IN_FLIGHT_STREAM_MAX = 4
"""The same where the app's own stream drops a waiting frame for a newer one."""


class AppInput(NamedTuple):
    """The one input of an app, how it treats streams, and its deadline."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    stream: str
    slo_ms: float

    @property
    def has_streams(self) -> bool:
        """True if requests name their source."""
        return self.stream in STREAMS


def of_image(about: Mapping[str, Any]) -> bool:
    """True if an input holds a picture: numbers of two axes, or of three with the colours first or last."""
    return of_any(about) and form_of({**about, "dtype": "uint8"}) is not None


async def the_input(
    client: AsyncClient, app: str, sender: str, fits: Callable[[Mapping[str, Any]], bool] = of_image
) -> AppInput:
    """The declared input of an app of the server. ``sender``: the sender of one image, or of another input that
    ``fits``. Raises :class:`EdgeServeError` where there is no such app, or it takes something else."""
    apps = await client.apps()
    example = 'image = { dtype = "uint8", shape = [320, 320, 3] }'
    found = app_for(apps, app, f"one image: {sender} sends no more", fits, example)
    return AppInput(found.input, found.dtype, found.shape, apps[app]["stream"], float(apps[app]["slo_ms"]))


class Detector:
    """An app that is asked about frames. ``form``, one of :data:`~edgeserve.fronts.detections.FORMS`, says how it
    answers (empty: outputs named boxes and scores, else ``yolo``); ``size`` is the height and width of the network's
    image where the server resizes; ``letterbox``: resizing keeps the aspect. ``labels`` are the classes' names.
    """

    def __init__(
        self,
        client: AsyncClient,
        app: str,
        form: str = "",
        score_min: float = 0.5,
        size: Tuple[int, ...] = (),
        letterbox: bool = False,
        labels: Sequence[str] = (),
    ) -> None:
        self.app = app
        self.input = AppInput("", "", (), "none", 0.0)
        self._client = client
        self._form = form
        self._score_min = score_min
        self._size = size
        self._border = BORDER if letterbox else -1
        self._labels = labels
        self._image: Optional[PictureForm] = None

    async def look(self, sender: str, fits: Callable[[Mapping[str, Any]], bool] = of_any) -> None:
        """Ask the server for the app. Raises :class:`EdgeServeError` where it cannot be asked by ``sender``."""
        self.input = await the_input(self._client, self.app, sender, fits)
        self._image = form_of({"dtype": self.input.dtype, "shape": self.input.shape})

    async def ask(self, array: NDArray[Any], slo_ms: float, stream: str) -> Answer:
        """The answer to a frame that :meth:`prepared` made. Raises what :meth:`AsyncClient.infer` does."""
        name = stream if self.input.has_streams else None
        return await self._client.infer(
            self.app, {self.input.name: array}, slo_ms=slo_ms, on_late="drop", stream=name, timeout_ms=slo_ms + 30_000.0
        )

    def prepared(self, array: NDArray[Any]) -> NDArray[Any]:
        """uint8 [height, width, 3], a depth image [height, width] or points [n, columns] as the app takes it. Raises
        :class:`BadInput`."""
        wanted = f"app {self.app!r} takes {self.input.dtype} {list(self.input.shape)}"
        if array.ndim == 2 and array.dtype == np.float32 and len(self.input.shape) == 2 and self.input.shape[1] > 0:
            return array  # points
        if self._image is None and (array.dtype.name, array.ndim) != (self.input.dtype, len(self.input.shape)):
            raise BadInput(f"{wanted}, which is neither an image nor {array.dtype.name} of {array.ndim} axes")
        if self._image is None:
            return array
        if array.ndim == 2:
            if not self._image.grey or self.input.dtype == "uint8":
                raise BadInput(f"{wanted}; a depth image is float32 [height, width], in m")
            metres = array / np.float32(MM_PER_M) if array.dtype == np.uint16 else array
            return metres.astype(self.input.dtype)
        height, width = self._network(array.shape[0], array.shape[1])
        if self._image.height > 0 and (height, width) != array.shape[:2]:
            array = _fitted(array, ImageForm(size=(height, width), border=self._border))
        if self._image.grey:
            array = np.rint(array @ GREY).astype(np.uint8)
        return in_form(array, self._image)

    def _network(self, height: int, width: int) -> Tuple[int, int]:
        """Height and width of the network's image, for a frame of that size."""
        if self._image is not None and self._image.height > 0 and self._image.width > 0:
            return self._image.height, self._image.width
        return (self._size[0], self._size[1]) if self._size else (height, width)

    def found(self, outputs: Mapping[str, Any], height: int, width: int) -> List[Box]:
        """The boxes in an answer, in pixels of a frame of that size. Raises :class:`BadInput`."""
        size = self._network(height, width)
        rows, columns, top, left = inside(ImageForm(size=size, border=self._border), (height, width))
        boxes = boxes_of(outputs, self._form, size[0], size[1], self._score_min, BOXES_MAX)
        is_sized = self._image is not None and self._image.height > 0
        if has_named_boxes(outputs, self._form) and not is_sized:
            return [self._named(box) for box in boxes]  # the app had the frame itself
        across, down = width / columns, height / rows
        return [
            self._named(Box((x - left) * across, (y - top) * down, box_width * across, box_height * down, label, score))
            for x, y, box_width, box_height, label, score in boxes
        ]

    def _named(self, box: Box) -> Box:
        number = int(box.label) if box.label.isdecimal() else -1
        return box._replace(label=self._labels[number]) if 0 <= number < len(self._labels) else box


def _fitted(array: NDArray[np.uint8], form: ImageForm) -> NDArray[np.uint8]:
    """A frame in another size, by Pillow where it is there: ten times as fast."""
    rows, columns, top, left = inside(form, (array.shape[0], array.shape[1]))
    try:
        from PIL import Image
    except ImportError:
        small = np.rint(resized(array, rows, columns)).astype(np.uint8)
    else:
        small = np.asarray(Image.fromarray(array).resize((columns, rows), Image.Resampling.BILINEAR))
    if (rows, columns) == form.size:
        return small
    whole = np.full((*form.size, 3), form.border, np.uint8)
    whole[top : top + rows, left : left + columns] = small
    return whole


def reason_of(error: BaseException) -> str:
    """The reason under which a frame without an answer is counted."""
    if isinstance(error, (Rejected, Dropped)):
        return f"{error.code}: {error.reason}"
    return error.code if isinstance(error, EdgeServeError) else "error"


class Tally:
    """The outcomes of a run's frames, counted; the newest latencies alone are kept."""

    def __init__(self) -> None:
        self.sent = 0
        self.answered = 0
        self.late = 0
        self.boxes = 0
        self.latencies_ns: Deque[int] = deque(maxlen=LATENCIES_KEPT)
        self.breakdown_ms: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.trouble: Dict[str, str] = {}  # reason -> its first error in words

    def answer(self, answer: Answer, took_ns: int) -> None:
        """An answer came."""
        self.answered += 1
        self.late += answer.late
        self.latencies_ns.append(took_ns)
        self.breakdown_ms.update(answer.breakdown_ms)

    def lost(self, error: Exception) -> str:
        """A frame ended without an answer; the reason that it is counted as."""
        reason = reason_of(error)
        self.reasons[reason] += 1
        self.trouble.setdefault(reason, str(error))
        return reason


Frame = TypeVar("Frame")


class NewestWins(Generic[Frame]):
    """Frames of one source on their way: at most ``in_flight_max`` are asked at once, and of the frames that wait for a
    place only the newest stays. ``ask`` asks about one and returns when it has ended; it raises nothing."""

    def __init__(self, ask: Callable[[Frame], Awaitable[None]], in_flight_max: int, reasons: Counter[str]) -> None:
        self._ask = ask
        self._in_flight_max = in_flight_max
        self._reasons = reasons
        self._open: Set[asyncio.Future[None]] = set()
        self._waiting: List[Frame] = []

    def offer(self, frame: Frame) -> None:
        """A new frame. One that waited is given up for it, and counted."""
        if len(self._open) < self._in_flight_max:
            return self._start(frame)
        if self._waiting:
            self._reasons["superseded"] += 1
        self._waiting = [frame]

    def _start(self, frame: Frame) -> None:
        task = asyncio.ensure_future(self._ask(frame))
        self._open.add(task)
        task.add_done_callback(self._next)

    def _next(self, task: asyncio.Future[None]) -> None:
        self._open.discard(task)
        if self._waiting and not task.cancelled():
            self._start(self._waiting.pop())

    async def ended(self) -> None:
        """Wait until all offered frames have ended."""
        while self._open:
            await asyncio.wait(self._open)

    async def cancel(self) -> None:
        """End all that are open."""
        self._waiting = []
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
