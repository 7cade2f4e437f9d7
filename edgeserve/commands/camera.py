"""``edgeserve front camera SOURCE --app detect``: a camera's frames to an app of a running server, boxes as
JSON lines and on a page."""

from __future__ import annotations

import argparse
import sys

from edgeserve.commands.fronts import front_with
from edgeserve.commands.image_front import add_image_arguments, size_of, table_of, text_of
from edgeserve.errors import ConfigError
from edgeserve.fronts.sources import shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve front camera``."""
    parser.add_argument(
        "source", help="test, a video file, /dev/video0, rtsp://..., or a pipeline of GStreamer in quotes"
    )
    add_image_arguments(parser)
    parser.add_argument("--page", default="", metavar="HOST:PORT", help="show the boxes there, such as 127.0.0.1:8090")
    parser.add_argument(
        "--lines",
        metavar="FILE",
        help="a JSON line for each frame (default: as [front.camera] says, else standard output; '': none)",
    )
    parser.add_argument("--rate", type=float, metavar="N", help="at most so many frames a second")
    parser.add_argument("--loop", action="store_true", help="play a file again and again")
    parser.add_argument("--frames", type=int, metavar="N", help="end after so many")
    parser.add_argument(
        "--library", default="", choices=("gstreamer", "av"), help="what reads (default: GStreamer where it is there)"
    )
    parser.add_argument("--name", default="", help="this camera's stream, where the app has streams")


def main(args: argparse.Namespace) -> int:
    """Run until the source ends or a signal; the exit status is 0 after a clean end."""
    rate, frames = args.rate or 0.0, args.frames or 0
    if not 0 <= rate <= 1000 or frames < 0:
        raise ConfigError(f"--rate {rate:g}, --frames {frames}: expected 0 to 1000 a second, and 0 or more")
    front = front_with(
        args,
        "camera",
        {"lines": "-"},
        source=args.source,
        app=args.app,
        form=args.form or None,
        score=args.score,
        size=size_of("--size", args.size),
        letterbox=args.letterbox,
        labels_file=args.labels or None,
        page=args.page or None,
        lines=args.lines,
        rate=args.rate,
        loop=args.loop,
        frames=args.frames or None,
        library=args.library or None,
        name=args.name or None,
    )
    camera, slo_ms = front.camera, front.detector.input.slo_ms
    about = f"{shown(args.source)} ({camera.span_s:.1f} s)"
    print(text_of(table_of(camera.tally, args.app, about, slo_ms, camera.span_s)), file=sys.stderr)
    return 0
