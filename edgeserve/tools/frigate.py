"""``edgeserve frigate``: an app as the detector of Frigate, the network video recorder, beside a running server."""

from __future__ import annotations

import argparse
import asyncio
import logging

from edgeserve.client import AsyncClient
from edgeserve.fronts.detections import FORMS
from edgeserve.fronts.frigate import FrigateFront
from edgeserve.tools.fronts import add_front_arguments, run_front

log = logging.getLogger("edgeserve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve frigate``."""
    add_front_arguments(parser)
    parser.add_argument("--app", required=True, help="the app that is asked for every image")
    parser.add_argument(
        "--listen",
        default="tcp://127.0.0.1:5555",
        metavar="PLACE",
        help="what Frigate's detector names as endpoint (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout-ms", type=float, default=200.0, metavar="MS", help="Frigate's request_timeout_ms (default: 200)"
    )
    parser.add_argument(
        "--form",
        default="",
        metavar="FORM",
        help=f"how the model answers: {', '.join(FORMS)}; default: as Frigate says",
    )
    parser.add_argument("--score", type=float, default=0.4, metavar="SHARE", help="the least score (default: 0.4)")


def main(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit status is 0 after a clean end."""

    async def serve(client: AsyncClient, stopped: asyncio.Event) -> None:
        front = FrigateFront(client, args.app, args.timeout_ms, args.form, args.score)
        await front.look()
        await front.serve(
            args.listen,
            stopped,
            lambda place: log.info("ready on %s, for app %s of %s", place, args.app, client.endpoint),
        )
        log.info("%d images answered, %d of them as empty; %d left out", front.answered, front.empty, front.refused)

    run_front(args, "frigate", serve)
    return 0
