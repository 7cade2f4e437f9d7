"""A camera as a front: its frames to an app of the server, boxes as JSON lines and on a page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import zlib
from dataclasses import dataclass
from time import monotonic, monotonic_ns
from typing import Any, ClassVar, Dict, Optional, TextIO, Tuple

from edgeserve.client import AsyncClient
from edgeserve.config.text_files import written_file
from edgeserve.errors import ConfigError
from edgeserve.front import (
    Front,
    FrontSettings,
    Ready,
    boolean,
    entry,
    host_and_port,
    integer,
    is_loopback,
    lines_of,
    number,
    one_of,
    string,
    tuple_of,
)
from edgeserve.fronts.boxes_page import EXAMPLE, BoxesPage, check_page
from edgeserve.fronts.camera import Camera, FrameEnd
from edgeserve.fronts.detections import FORMS
from edgeserve.fronts.image_apps import Detector, of_image
from edgeserve.fronts.sources import shown, source_of

log = logging.getLogger("edgeserve")

SCORE = 0.5


@dataclass(frozen=True)
class CameraSettings(FrontSettings):
    """``[front.camera]``: the source, the app that is asked about its frames, and where its boxes go."""

    FILES: ClassVar[Tuple[str, ...]] = (*FrontSettings.FILES, "labels_file")

    source: str = entry(string, "")  # test, a video file, /dev/video0, rtsp://..., or a pipeline of GStreamer
    app: str = entry(string, "")  # the app that is asked
    form: str = entry(one_of("", *FORMS), "")  # how the model answers; "" = outputs boxes and scores, else yolo
    score: float = entry(number(0.0, 1.0), SCORE)  # the least score of a box
    size: Tuple[int, ...] = entry(tuple_of(integer(1, 1 << 15)), ())  # of the network's image, where the server resizes
    letterbox: bool = entry(boolean, False)  # frames are resized with their aspect kept
    labels_file: str = entry(string, "")  # names of the classes, a line each
    page: str = entry(string, "")  # HOST:PORT of a page that shows the boxes; "" = none
    lines: str = entry(string, "")  # the file that gets a JSON line for each frame; - = standard output, "" = none
    rate: float = entry(number(0.0, 1000.0), 0.0)  # at most so many frames a second; 0 = all
    loop: bool = entry(boolean, False)  # play a file again and again
    frames: int = entry(integer(0), 0)  # end after so many; 0 = never
    library: str = entry(one_of("", "gstreamer", "av"), "")  # gstreamer or av; "" = GStreamer where it is there
    name: str = entry(string, "")  # this camera's stream, where the app has streams


def detector_of(client: AsyncClient, settings: CameraSettings) -> Detector:
    """The app that is asked, as the settings say. Raises :class:`ConfigError`."""
    labels = lines_of(settings.where("labels_file"), settings.labels_file)
    return Detector(client, settings.app, settings.form, settings.score, settings.size, settings.letterbox, labels)


class CameraFront(Front):
    """One source of frames. It ends with its source."""

    Settings = CameraSettings

    def __init__(self, client: AsyncClient, settings: CameraSettings) -> None:
        super().__init__(client, settings)
        self.detector = detector_of(client, settings)
        source = source_of(settings.source, monotonic, settings.rate, settings.library)
        stream = settings.name or f"camera-{zlib.crc32(settings.source.encode()):08x}"
        options: Dict[str, Any] = {"again": settings.loop, "rate": settings.rate, "frames_max": settings.frames}
        self.camera = Camera(source, self.detector, stream, self._look, monotonic_ns, **options)
        self._lines: Optional[TextIO] = None
        self._failure: Optional[OSError] = None
        self._over: Optional[asyncio.Event] = None
        self._page: Optional[BoxesPage] = None

    @classmethod
    def check(cls, settings: CameraSettings) -> None:
        """See :class:`~edgeserve.front.Front`."""
        for key in ("source", "app"):
            if not getattr(settings, key):
                raise ConfigError(f"a camera needs a source and an app: set {settings.where(key)}")
        lines_of(settings.where("labels_file"), settings.labels_file)
        if settings.page:
            check_page(settings.where("page"), settings.page)

    async def look(self) -> None:
        """See :class:`~edgeserve.front.Front`."""
        await self.detector.look("a camera", of_image)

    def summary(self) -> str:
        """See :class:`~edgeserve.front.Front`."""
        tally = self.camera.tally
        return f"{tally.answered - tally.late} of {tally.sent} frames in time"

    async def serve(self, stopped: asyncio.Event, ready: Ready) -> None:
        """See :class:`~edgeserve.front.Front`; returns when the source ends, too. ``OSError`` where the lines cannot be
        written any more and there is no page."""
        with contextlib.ExitStack() as stack:
            self._lines = opened(self.settings.where("lines"), self.settings.lines, stack)
            places = [shown(self.settings.source)]
            if self.settings.page:
                where = self.settings.where("page")
                self._page = BoxesPage(where, self.settings.page, self.summary)
                server = await self._page.start()
                stack.callback(server.close)
                log.info("boxes are shown on %s", self._page.place)
                places.append(self._page.place)
                if not is_loopback(host_and_port(where, self.settings.page, EXAMPLE)[0]):
                    log.warning("every client that reaches %s sees this camera: it asks for no password", places[-1])
            ready(*places)
            self._over = over = asyncio.Event()
            waiting = asyncio.ensure_future(stopped.wait())
            waiting.add_done_callback(lambda _: over.set())
            try:
                await self.camera.run(over)
            finally:
                waiting.cancel()
            if self._failure is not None and self._page is None:
                raise self._failure

    def _look(self, ended: FrameEnd) -> None:
        if self._page is not None:
            self._page.show(ended)
        if self._lines is None:
            return
        try:
            self._lines.write(line_of(ended) + "\n")
            self._lines.flush()
        except OSError as error:
            self._failure = error
            if self._lines is not sys.stdout:
                with contextlib.suppress(OSError):
                    self._lines.close()
            self._lines = None
            if self._page is None and self._over is not None:
                self._over.set()
            else:
                log.warning("no more lines are written to %r: %s", self.settings.lines, error)


def opened(where: str, lines: str, stack: contextlib.ExitStack) -> Optional[TextIO]:
    """The stream of the lines. Raises :class:`ConfigError`."""
    if lines in ("", "-"):
        return sys.stdout if lines else None
    try:
        return stack.enter_context(open(lines, "a", encoding="utf-8", opener=written_file))
    except OSError as error:
        raise ConfigError(f"{where} = {lines!r} cannot be written: {error.strerror}") from None


def line_of(ended: FrameEnd) -> str:
    """A frame as JSON: corners in its pixels, or why it has no boxes."""
    table: Dict[str, Any] = {"frame": ended.seen.number, "time_s": round(ended.seen.time_s, 6)}
    if ended.reason:
        return json.dumps({**table, "lost": ended.reason})
    boxes = [
        {
            "label": box.label,
            "score": round(box.score, 4),
            "box": [
                round(value, 1)
                for value in (
                    box.x - box.width / 2,
                    box.y - box.height / 2,
                    box.x + box.width / 2,
                    box.y + box.height / 2,
                )
            ],
        }
        for box in ended.boxes
    ]
    return json.dumps({**table, "latency_ms": round(ended.latency_ms, 2), "late": ended.late, "boxes": boxes})
