"""``edgeserve front frigate``: an app of a running server as the detector of Frigate, the network video recorder."""

from __future__ import annotations

import argparse

from edgeserve.commands.fronts import add_front_arguments, serve_front
from edgeserve.fronts.detections import FORMS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve front frigate``."""
    add_front_arguments(parser)
    parser.add_argument("--app", default="", help="the app that is asked for every image")
    parser.add_argument(
        "--listen",
        default="",
        metavar="PLACE",
        help="what Frigate's detector names as endpoint (default: tcp://127.0.0.1:5555)",
    )
    parser.add_argument("--timeout-ms", type=float, metavar="MS", help="Frigate's request_timeout_ms (default: 200)")
    parser.add_argument(
        "--form",
        default="",
        metavar="FORM",
        help=f"how the model answers: {', '.join(FORMS)}; default: as Frigate says",
    )
    parser.add_argument("--score", type=float, metavar="SHARE", help="the least score (default: 0.4)")


def main(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit status is 0 after a clean end."""
    given = {"app": args.app or None, "listen": args.listen or None, "timeout_ms": args.timeout_ms}
    return serve_front(args, "frigate", **given, form=args.form or None, score=args.score)
