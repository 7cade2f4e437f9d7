"""The sources of frames: a test pattern, PyAV, or GStreamer. Each is an iterator of (seconds, uint8 [height, width,
3]) for a thread of its own.

Files come at their own times, live sources as they come. Times are the source's own.
"""

from __future__ import annotations

import glob
import importlib.util
import logging
import os
import re
import threading
from typing import Any, Callable, Dict, Iterator, Optional, Protocol, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.errors import BadInput, ConfigError
from edgeserve.front.images import PIXELS_MAX, check_pixels

Frames = Iterator[Tuple[float, NDArray[Any]]]

log = logging.getLogger("edgeserve")

TEST, DEVICE = "test", "/dev/"
PROTOCOLS = ("rtsp://", "rtsps://", "rtmp://", "http://", "https://", "udp://", "rtp://", "tcp://")
WAIT_S = 5.0
"""Seconds that a stream may be silent, when it is opened and between two frames."""

JITTER_MS = 50
"""Milliseconds that GStreamer holds packets of a stream to put them in order; over TCP they are in order."""

RTP_VIDEO = "application/x-rtp,media=video"

TEST_SIZE, TEST_RATE = (480, 640), 30.0
TEST_SQUARE = 80
TEST_STEP = 8
"""Pixels that the square of the test pattern moves in a frame."""

DAMAGED_MAX = 30
"""Damaged pictures in a row, a second of a usual camera, after which the source is opened again."""

LINES_MAX = 10_000
"""Times in a row that a live source is read on where its demuxer finds no packet: a megabyte of a picture's lines."""

NS_PER_S = 10**9


class SourceEnded(Exception):
    """The source cannot be opened or read now, and why."""


def shown(text: str) -> str:
    """A text without the passwords of addresses in it."""
    return re.sub(r"//[^/@\s]*@", "//", text)


class FrameSource(Protocol):
    """A source. ``is_live``: it does not end by itself, so it is opened again when it does."""

    name: str
    is_live: bool

    def frames(self, ending: threading.Event) -> Frames:
        """Open it and read until it ends or ``ending`` is set. Raises :class:`SourceEnded`, and :class:`ConfigError`
        where trying again is of no use."""


def is_device(text: str) -> bool:
    """True if it names a device, there or not: files may lie in ``/dev/shm``."""
    return text.startswith(DEVICE) and not os.path.isfile(text)


def source_of(text: str, clock_s: Callable[[], float], rate: float, library: str) -> FrameSource:
    """``test``, ``test:480x640``, a device, an address, a pipeline of GStreamer (it has a ``!``), or a file.
    ``library``: ``gstreamer``, ``av``, or empty for GStreamer where it is there. Raises :class:`ConfigError`."""
    if text == TEST or text.startswith(TEST + ":"):
        height, _, width = text[len(TEST) + 1 :].partition("x")
        if text != TEST and not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
            raise ConfigError(f"source {text!r}: expected test, or test:HEIGHTxWIDTH such as test:480x640")
        size = (int(height), int(width)) if height else TEST_SIZE
        _check(text, *size)
        return Pattern(size, rate or TEST_RATE, clock_s)
    is_pipeline = " ! " in text
    is_live = is_pipeline or text.startswith(PROTOCOLS) or is_device(text)
    if is_device(text) and not is_pipeline and not os.path.exists(text):
        found = ", ".join(sorted(glob.glob(f"{DEVICE}video*"))) or "none"
        raise ConfigError(f"source {text!r}: there is no such device; cameras of this machine: {found}")
    if not is_live and not os.path.isfile(text):
        raise ConfigError(
            f"source {text!r}: there is no such file; expected test, a file, {DEVICE}video0, an address such as "
            "rtsp://..., or a pipeline of GStreamer"
        )
    gstreamer = importlib.util.find_spec("gi") is not None
    if library == "gstreamer" or is_pipeline or not library and gstreamer:
        if not gstreamer:
            raise ConfigError(
                "GStreamer is used through PyGObject (gi), which this Python does not have: apt install python3-gi "
                "gir1.2-gst-plugins-base-1.0, and a venv with --system-site-packages"
            )
        return GStreamer(text, is_live, is_pipeline)
    if importlib.util.find_spec("av") is None:
        raise ConfigError(f"source {text!r} needs GStreamer or PyAV: pip install 'edgeserve-runtime[camera]'")
    return PyAv(text, is_live, clock_s)


def _check(name: str, height: int, width: int) -> None:
    try:
        check_pixels(width, height)
    except BadInput as error:
        raise ConfigError(f"source {shown(name)!r}: {error}") from None


class Pattern:
    """A bright square that moves over a dark ground. Needs no package."""

    is_live = False

    def __init__(self, size: Tuple[int, int], rate: float, clock_s: Callable[[], float]) -> None:
        self.name = TEST
        self._size = size
        self._rate = rate
        self._clock_s = clock_s

    def frames(self, ending: threading.Event) -> Frames:
        """Yield frames without an end."""
        height, width = self._size
        side = max(1, min(TEST_SQUARE, height // 2, width // 2))
        ground = np.zeros((height, width, 3), np.uint8)
        ground[:, :, 2] = np.linspace(20, 90, width, dtype=np.uint8)
        begin_s = self._clock_s()
        for number in range(1 << 62):
            if ending.wait(max(0.0, begin_s + number / self._rate - self._clock_s())):
                return
            left, top = number * TEST_STEP % max(1, width - side), number * TEST_STEP // 2 % max(1, height - side)
            frame = ground.copy()
            frame[top : top + side, left : left + side] = 255
            yield number / self._rate, frame


class PyAv:
    """FFmpeg's libraries, by PyAV."""

    def __init__(self, name: str, is_live: bool, clock_s: Callable[[], float]) -> None:
        self.name = name
        self.is_live = is_live
        self._clock_s = clock_s
        self._has_told = False

    def frames(self, ending: threading.Event) -> Frames:
        """See :class:`FrameSource`."""
        import av

        options: Dict[str, Any] = {"timeout": WAIT_S} if self.is_live else {}
        if is_device(self.name):
            options = {"format": "v4l2"}
        elif self.name.startswith("rtsp"):
            options["options"] = {"rtsp_transport": "tcp", "fpsprobesize": "0"}  # no wait for an unused rate
        try:
            with av.open(self.name, **options) as container:
                if not container.streams.video:
                    raise ConfigError(f"source {self.name!r} has no video")
                container.streams.video[0].codec_context.options = {"max_pixels": str(PIXELS_MAX)}
                yield from self._decoded(container, ending)
        except (av.error.FFmpegError, OSError) as error:
            if not self.is_live:
                raise ConfigError(f"source {self.name!r} cannot be read: {error}") from None
            raise SourceEnded(shown(str(error))) from None

    def _decoded(self, container: Any, ending: threading.Event) -> Frames:
        step_s = 1.0 / float(container.streams.video[0].guessed_rate or TEST_RATE)
        begin_s, time_s = self._clock_s(), 0.0
        own_s: Optional[float] = None
        for number, frame in enumerate(self._whole(container)):
            if not number:
                begin_s = self._clock_s()
            elif frame.time is None or own_s is None or frame.time < own_s:
                time_s += step_s  # it has no times, or they begin anew
            else:
                time_s += frame.time - own_s
            own_s = frame.time
            if not self.is_live and ending.wait(max(0.0, begin_s + time_s - self._clock_s())):
                return
            _check(self.name, frame.height, frame.width)
            yield time_s, frame.to_ndarray(format="rgb24")
            if ending.is_set():
                return

    def _whole(self, container: Any) -> Iterator[Any]:
        """The frames whose pictures were decoded whole. Raises :class:`OSError` after :data:`DAMAGED_MAX` in a row that
        were not. Packets without a picture count in a live stream that has begun: some decoders report no error."""
        import av

        damaged, has_begun = 0, False
        for packet in self._packets(container):
            frames, error = [], "it could not be decoded whole"
            try:
                frames = packet.decode()
                is_damaged = any(frame.is_corrupt for frame in frames)
            except av.error.FFmpegError as caught:
                is_damaged, error = True, str(caught)
                if not isinstance(caught, av.error.InvalidDataError):
                    packet.stream.codec_context.flush_buffers()  # else some decoders take no more packets
            whole = [frame for frame in frames if not frame.is_corrupt]
            damaged = 0 if whole else damaged + (is_damaged or self.is_live and has_begun)
            has_begun = has_begun or bool(whole)
            if damaged >= DAMAGED_MAX:
                raise OSError(f"{damaged} pictures in a row are damaged: {error}")
            if is_damaged:
                self._tell_damaged(error)
            yield from whole

    def _packets(self, container: Any) -> Iterator[Any]:
        """The packets of the container. A live one whose demuxer finds no packet is read on from there, as a
        ``multipart`` camera with a damaged head of a part: its demuxer passes over a line each time."""
        import av

        left = 0
        while True:
            try:
                for packet in container.demux(video=0):
                    left = LINES_MAX
                    yield packet
                return
            except av.error.InvalidDataError as error:
                left -= 1
                if not self.is_live or left <= 0:
                    raise
                self._tell_damaged(str(error))

    def _tell_damaged(self, error: str) -> None:
        if not self._has_told:
            self._has_told = True
            log.warning("%s: a damaged picture is left out (%s; told once)", shown(self.name), shown(error))


class GStreamer:
    """A pipeline of GStreamer, which keeps the newest frame alone."""

    def __init__(self, name: str, is_live: bool, is_pipeline: bool) -> None:
        self.name = name
        self.is_live = is_live
        self._is_pipeline = is_pipeline

    def _text(self, gst: Any) -> str:
        """The whole pipeline. Where NVIDIA's converter is (Jetson), frames may lie in the decoder's memory."""
        if self._is_pipeline:
            head = self.name
        elif is_device(self.name):
            head = f'v4l2src device="{self.name}" ! decodebin'
        elif self.name.startswith("rtsp"):
            head = f'rtspsrc location="{self.name}" protocols=tcp latency={JITTER_MS} ! {RTP_VIDEO} ! decodebin'
        else:
            uri = self.name if self.is_live else gst.filename_to_uri(os.path.abspath(self.name))
            head = f'uridecodebin uri="{uri}"'
        jetson = "nvvidconv ! video/x-raw,format=RGBA ! " if gst.ElementFactory.find("nvvidconv") else ""
        sync = "false" if self.is_live else "true"
        end = f"appsink name=frames max-buffers=1 drop=true sync={sync}"
        return f"{head} ! {jetson}videoconvert ! video/x-raw,format=RGB ! {end}"

    def frames(self, ending: threading.Event) -> Frames:
        """See :class:`FrameSource`."""
        import gi

        gi.require_version("Gst", "1.0")
        from gi.repository import GLib, Gst

        Gst.init(None)
        try:
            pipeline = Gst.parse_launch(self._text(Gst))
        except GLib.Error as error:
            raise ConfigError(f"source {self.name!r}: GStreamer says: {error.message}") from None
        try:
            pipeline.set_state(Gst.State.PLAYING)
            yield from self._pulled(Gst, pipeline, ending)
        finally:
            pipeline.set_state(Gst.State.NULL)

    def _pulled(self, gst: Any, pipeline: Any, ending: threading.Event) -> Frames:
        sink, bus = pipeline.get_by_name("frames"), pipeline.get_bus()
        first_ns: Optional[int] = None
        silent_s, step_s = 0.0, 0.1
        while not ending.is_set():
            sample = sink.emit("try-pull-sample", int(step_s * NS_PER_S))
            if sample is None:
                silent_s += step_s
                self._check(gst, bus, silent_s)
                if sink.get_property("eos"):
                    return
                continue
            silent_s = 0.0
            buffer, shape = sample.get_buffer(), sample.get_caps().get_structure(0)
            height, width = shape.get_value("height"), shape.get_value("width")
            _check(self.name, height, width)
            first_ns = buffer.pts if first_ns is None else first_ns
            data = np.frombuffer(buffer.extract_dup(0, buffer.get_size()), np.uint8)
            lines = data.reshape(height, -1)[:, : 3 * width]
            yield (buffer.pts - first_ns) / NS_PER_S, np.ascontiguousarray(lines).reshape(height, width, 3)

    def _check(self, gst: Any, bus: Any, silent_s: float) -> None:
        message = bus.pop_filtered(gst.MessageType.ERROR)
        if message is None and (not self.is_live or silent_s < 2 * WAIT_S):
            return
        words = f"nothing came for {silent_s:g} s" if message is None else message.parse_error()[0].message
        if not self.is_live:
            raise ConfigError(f"source {self.name!r} cannot be read: {words}")
        raise SourceEnded(shown(words))
