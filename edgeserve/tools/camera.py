"""``edgeserve camera SOURCE --app detect``: a camera's frames to an app of a running server, boxes as JSON lines and on
a page."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import time
import zlib
from typing import Any, Dict, Optional, TextIO

from edgeserve.client import AsyncClient
from edgeserve.config.addresses import host_and_port, is_loopback
from edgeserve.errors import ConfigError
from edgeserve.fronts.boxes_page import BoxesPage
from edgeserve.fronts.camera import Camera, Ended
from edgeserve.fronts.image_apps import of_image
from edgeserve.fronts.sources import shown, source_of
from edgeserve.tools.fronts import run_front
from edgeserve.tools.image_front import add_image_arguments, detector_of, table_of, text_of

log = logging.getLogger("edgeserve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve camera``."""
    parser.add_argument(
        "source", help="test, a video file, /dev/video0, rtsp://..., or a pipeline of GStreamer in quotes"
    )
    add_image_arguments(parser)
    parser.add_argument("--page", default="", metavar="HOST:PORT", help="show the boxes there, such as 127.0.0.1:8090")
    parser.add_argument(
        "--lines", default="-", metavar="FILE", help="a JSON line for each frame (default: standard output; '': none)"
    )
    parser.add_argument("--rate", type=float, default=0.0, metavar="N", help="at most so many frames a second")
    parser.add_argument("--loop", action="store_true", help="play a file again and again")
    parser.add_argument("--frames", type=int, default=0, metavar="N", help="end after so many")
    parser.add_argument(
        "--library", default="", choices=("gstreamer", "av"), help="what reads (default: GStreamer where it is there)"
    )
    parser.add_argument("--name", default="", help="this camera's stream, where the app has streams")


def main(args: argparse.Namespace) -> int:
    """Run until the source ends or a signal; the exit status is 0 after a clean end."""
    if not 0 <= args.rate <= 1000 or args.frames < 0:
        raise ConfigError(f"--rate {args.rate:g}, --frames {args.frames}: expected 0 to 1000 a second, and 0 or more")
    with contextlib.ExitStack() as stack:
        lines: Optional[TextIO] = sys.stdout if args.lines == "-" else None
        if args.lines not in ("", "-"):
            try:
                lines = stack.enter_context(open(args.lines, "a", encoding="utf-8"))
            except OSError as error:
                raise ConfigError(f"--lines {args.lines}: cannot be written: {error.strerror}") from None
        table = run_front(args, "camera", lambda client, stopped: _run(args, lines, client, stopped))
    print(text_of(table), file=sys.stderr)
    return 0


async def _run(
    args: argparse.Namespace, lines: Optional[TextIO], client: AsyncClient, stopped: asyncio.Event
) -> Dict[str, Any]:
    page: Optional[BoxesPage] = None
    server: Any = None

    def look(ended: Ended) -> None:
        if lines is not None:
            lines.write(line_of(ended) + "\n")
            lines.flush()
        if page is not None:
            page.show(ended)

    try:
        detector = detector_of(args, client)
        source = source_of(args.source, time.monotonic, args.rate, args.library)
        await detector.look("a camera", of_image)
        stream = args.name or f"camera-{zlib.crc32(args.source.encode()):08x}"
        options = {"again": args.loop, "rate": args.rate, "frames_max": args.frames}
        camera = Camera(source, detector, stream, look, time.monotonic_ns, **options)
        tally = camera.tally
        if args.page:
            page = BoxesPage(args.page, lambda: f"{tally.answered - tally.late} of {tally.sent} in time")
            server = await page.start()
            log.info("boxes are shown on %s", page.place)
            if not is_loopback(host_and_port("--page", args.page, "127.0.0.1:8090")[0]):
                log.warning("whoever reaches %s sees this camera: it asks for no password", page.place)
        await camera.run(stopped)
    finally:
        if server is not None:
            server.close()
    return table_of(
        tally, args.app, f"{shown(args.source)} ({camera.span_s:.1f} s)", detector.input.slo_ms, camera.span_s
    )


def line_of(ended: Ended) -> str:
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
