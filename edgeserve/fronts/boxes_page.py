"""A page with a camera's newest frame and the boxes in it: ``/`` for a browser, ``/stream`` (MJPEG) and ``/frame.jpg``
for others, such as Home Assistant.

Nothing is drawn while no viewer is connected. There is no password: it listens where only this machine reaches it,
unless told otherwise; requests that name another host are then refused, so that no foreign page reads the pictures.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
from contextlib import suppress
from typing import Any, Callable, Optional, Tuple

from numpy.typing import NDArray

from edgeserve.errors import ConfigError
from edgeserve.front import Seats, host_and_port, is_loopback, seated, user_at
from edgeserve.fronts.camera import FrameEnd
from edgeserve.waits import await_within

EXAMPLE = "127.0.0.1:8090"

VIEWERS_MAX = 8
"""Streams; one more takes the place of the oldest."""

ASKING_MAX, ASKING_OF_ONE_MAX = 64, 48
"""Connections that are no stream, or none yet; one more takes the place of the oldest."""

HEAD_BYTES_MAX = 8192
WAIT_S = 10.0
"""Seconds that a viewer may take to send its request, or to read a picture."""

QUALITY = 80

COLOURS = ((255, 64, 64), (64, 200, 64), (64, 128, 255), (255, 200, 0), (220, 80, 220), (0, 200, 200))

HTML = """<!doctype html><html lang="en"><meta charset="utf-8"><title>EdgeServe: camera</title>
<meta name="viewport" content="width=device-width"><body style="margin:0;background:#111">
<img src="stream" alt="the camera's newest frame with its boxes" style="width:100%;height:100vh;object-fit:contain">
"""

POLICY = "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'none'"

PART = "frame"


def check_page(where: str, listen: str) -> Tuple[str, int]:
    """Host and port of a page, which stand ``where``. Raises :class:`ConfigError`, also where nothing can draw."""
    if importlib.util.find_spec("PIL") is None:
        raise ConfigError(f"{where}: the page draws with Pillow: pip install 'edgeserve-runtime[camera]'")
    return host_and_port(where, listen, EXAMPLE)


class BoxesPage:
    """The page. ``summary`` is the line above the picture."""

    def __init__(self, where: str, listen: str, summary: Callable[[], str]) -> None:
        self._where = where
        self._host, self._port = check_page(where, listen)
        self._summary = summary
        self._newest: Optional[FrameEnd] = None
        self._jpeg = b""
        self._came = asyncio.Event()
        self._asking = Seats(ASKING_MAX, ASKING_OF_ONE_MAX)
        self._viewers = Seats(VIEWERS_MAX, VIEWERS_MAX)

    def show(self, ended: FrameEnd) -> None:
        """A frame that ended; one without an answer, or an older one, leaves the picture before it."""
        if not ended.reason and (self._newest is None or ended.seen.number > self._newest.seen.number):
            self._newest, self._jpeg = ended, b""
            came, self._came = self._came, asyncio.Event()
            came.set()

    async def start(self) -> Any:
        """Listen; the server, to be closed. ``place`` says where. Raises :class:`ConfigError`."""
        try:
            server = await asyncio.start_server(self._answer, self._host, self._port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            place = f"{self._host}:{self._port}"
            raise ConfigError(f"{self._where} = {place!r}: cannot listen there: {error.strerror}") from None
        self._port = server.sockets[0].getsockname()[1]
        self.place = f"http://{self._host}:{self._port}"
        return server

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        origin = user_at(writer)
        try:
            is_stream = False
            async with seated(self._asking, origin):
                try:
                    head = await await_within(reader.readuntil(b"\r\n\r\n"), WAIT_S)
                except asyncio.LimitOverrunError:
                    await _send(writer, "431 Request Header Fields Too Large", "text/plain", b"at most 8192 bytes\n")
                    return
                is_stream = await self._serve(head.decode("latin-1"), writer)
            if is_stream:
                async with seated(self._viewers, origin):
                    await self._stream(reader, writer)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
            pass  # the viewer has gone, or never asked
        finally:
            writer.close()

    async def _serve(self, head: str, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; True for the stream, which is still to be sent."""
        method, target = (head.split(" ", 2) + ["", ""])[:2]
        path = target.partition("?")[0]
        hosts = [line[5:].strip().lower() for line in head.split("\r\n") if line.lower().startswith("host:")]
        named = hosts[0].rpartition(":")[0] or hosts[0] if hosts else ""
        sites = [line[15:].strip() for line in head.split("\r\n") if line.lower().startswith("sec-fetch-site:")]
        if any(site not in ("none", "same-origin") for site in sites):
            await _send(writer, "403 Forbidden", "text/plain", b"no page of another place shows this camera\n")
        elif is_loopback(self._host) and not (named == "localhost" or is_loopback(named.strip("[]"))):
            await _send(writer, "403 Forbidden", "text/plain", b"this page is for this machine\n")
        elif method != "GET" or path not in ("/", "/stream", "/frame.jpg"):
            await _send(writer, "404 Not Found", "text/plain", b"/, /stream or /frame.jpg\n")
        elif path == "/":
            await _send(writer, "200 OK", "text/html; charset=utf-8", HTML.encode())
        elif path == "/frame.jpg":
            if self._newest is None:
                with suppress(asyncio.TimeoutError):
                    await await_within(self._came.wait(), WAIT_S)
            if self._newest is None:
                await _send(writer, "503 Service Unavailable", "text/plain", b"no picture has come yet\n")
            else:
                await _send(writer, "200 OK", "image/jpeg", await self._picture())
        else:
            return True
        return False

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send frames until the viewer disconnects, also where no frame comes."""
        writer.write(_head("200 OK", f"multipart/x-mixed-replace; boundary={PART}"))
        going = asyncio.ensure_future(reader.read(1))
        try:
            while not going.done():
                came = asyncio.ensure_future(self._came.wait())
                if self._newest is not None:
                    jpeg = await self._picture()
                    head = f"--{PART}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                    writer.write(head.encode() + jpeg + b"\r\n")
                    await await_within(writer.drain(), WAIT_S)
                await asyncio.wait({came, going}, return_when=asyncio.FIRST_COMPLETED)
                came.cancel()
        finally:
            going.cancel()

    async def _picture(self) -> bytes:
        """The newest frame as JPEG, drawn once for all viewers."""
        newest = self._newest
        assert newest is not None
        if not self._jpeg:
            loop = asyncio.get_running_loop()
            jpeg = await loop.run_in_executor(None, drawn, newest, self._summary())
            if newest is not self._newest:
                return jpeg
            self._jpeg = jpeg
        return self._jpeg


def drawn(ended: FrameEnd, summary: str) -> bytes:
    """A frame with its boxes as JPEG."""
    from PIL import Image, ImageDraw

    pixels: NDArray[Any] = ended.seen.pixels
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    for box in ended.boxes:
        colour = COLOURS[sum(box.label.encode()) % len(COLOURS)]
        across = sorted([min(max(0.0, box.x + side * box.width / 2), image.width) for side in (-1, 1)])
        down = sorted([min(max(0.0, box.y + side * box.height / 2), image.height) for side in (-1, 1)])
        left, top = across[0], down[0]
        draw.rectangle((left, top, across[1], down[1]), outline=colour, width=2)
        _text(draw, left, max(0.0, top - 12), f"{box.label} {box.score:.2f}".strip(), colour)
    _text(draw, 0, image.height - 12, f"{summary}, {ended.latency_ms:.0f} ms", (255, 255, 255))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _text(draw: Any, left: float, top: float, text: str, colour: Any) -> None:
    draw.rectangle(draw.textbbox((left, top), text), fill=(0, 0, 0))
    draw.text((left, top), text, fill=colour)


def _head(status: str, kind: str) -> bytes:
    lines = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        "Cache-Control: no-store",
        "X-Accel-Buffering: no",  # else nginx keeps frames together
        "Connection: close",
        "X-Content-Type-Options: nosniff",
        "X-Frame-Options: DENY",
        "Cross-Origin-Resource-Policy: same-origin",
        f"Content-Security-Policy: {POLICY}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _send(writer: asyncio.StreamWriter, status: str, kind: str, body: bytes) -> None:
    writer.write(_head(status, kind) + body)
    await await_within(writer.drain(), WAIT_S)
