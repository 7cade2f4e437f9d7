"""Common parts of ``edgeserve front bag`` and ``camera``: the app's arguments, and the result."""

from __future__ import annotations

import argparse
from typing import Any, Dict, Mapping, Tuple

from edgeserve.client import AsyncClient
from edgeserve.commands.bench import as_text
from edgeserve.commands.fronts import add_front_arguments
from edgeserve.config.readers import one_of
from edgeserve.errors import ConfigError
from edgeserve.front import lines_of
from edgeserve.fronts.camera_front import CameraSettings
from edgeserve.fronts.detections import FORMS
from edgeserve.fronts.image_apps import Detector, Tally
from edgeserve.live.stats import percentiles_ms


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """The app, how its answers are read, and where it is served."""
    add_front_arguments(parser)
    parser.add_argument("--app", required=True, help="the app that is asked")
    parser.add_argument(
        "--form",
        default="",
        metavar="FORM",
        help=f"how the model answers: {', '.join(FORMS)}; default: outputs boxes and scores, else yolo",
    )
    parser.add_argument("--score", type=float, metavar="SHARE", help="the least score (default: 0.5)")
    parser.add_argument(
        "--size", default="", metavar="HxW", help="the network's image, where the server resizes (options.image)"
    )
    parser.add_argument("--letterbox", action="store_true", help="frames are resized with their aspect kept")
    parser.add_argument("--labels", default="", metavar="FILE", help="names of the classes, a line each")


def detector_of(args: argparse.Namespace, client: AsyncClient) -> Detector:
    """The app as the arguments say. Raises :class:`ConfigError`."""
    one_of("", *FORMS)(args.form, "--form")
    labels, score = lines_of("--labels", args.labels), CameraSettings.score if args.score is None else args.score
    return Detector(client, args.app, args.form, score, size_of("--size", args.size), args.letterbox, labels)


def size_of(option: str, text: str) -> Tuple[int, ...]:
    """``480x640`` as height and width; nothing of an empty text."""
    if not text:
        return ()
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdigit() and 1 <= int(part) <= 1 << 15 for part in parts):
        raise ConfigError(f"{option} {text!r}: expected height and width in pixels, such as 480x640")
    return int(parts[0]), int(parts[1])


def table_of(tally: Tally, app: str, loop: str, slo_ms: float, span_s: float) -> Dict[str, Any]:
    """A run's result as plain values, those of ``edgeserve bench``."""
    in_time, span_s = tally.answered - tally.late, max(span_s, 1e-3)
    return {
        "app": app,
        "loop": loop,
        "slo_ms": slo_ms,
        "sent": tally.sent,
        "in_time": in_time,
        "late": tally.late,
        "unanswered": 0,
        "finish_rate": in_time / max(1, tally.sent),
        "offered_per_s": tally.sent / span_s,
        "goodput_per_s": in_time / span_s,
        "ended_otherwise": dict(sorted(tally.reasons.items())),
        "latency_ms": percentiles_ms(tally.latencies_ns),
        "sent_late_p99_ms": 0.0,
        "breakdown_ms": {key: total / max(1, tally.answered) for key, total in tally.breakdown_ms.items()},
        "trouble": tally.trouble,
        "boxes": tally.boxes,
    }


def text_of(table: Mapping[str, Any]) -> str:
    """The same for people, with one error of each kind in words."""
    return "\n".join([as_text(table), *(f"{reason}: {words}" for reason, words in table["trouble"].items())])
