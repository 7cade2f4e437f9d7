"""``edgeserve front camera --source SOURCE --app detect``: a camera's frames to an app of a running server, boxes as
JSON lines and on a page."""

from __future__ import annotations

import argparse
import sys

from edgeserve.commands.fronts import add_front_arguments, front_with
from edgeserve.commands.image_front import table_of, text_of
from edgeserve.fronts.camera_front import CameraSettings
from edgeserve.fronts.sources import shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve front camera``."""
    add_front_arguments(parser, CameraSettings)


def main(args: argparse.Namespace) -> int:
    """Run until the source ends or a signal; the exit status is 0 after a clean end."""
    front = front_with(args, "camera", {"lines": "-"})
    camera, settings, slo_ms = front.camera, front.settings, front.detector.input.slo_ms
    about = f"{shown(settings.source)} ({camera.span_s:.1f} s)"
    print(text_of(table_of(camera.tally, settings.app, about, slo_ms, camera.span_s)), file=sys.stderr)
    return 0
