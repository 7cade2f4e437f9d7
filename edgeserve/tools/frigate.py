"""``edgeserve frigate``: an app as the detector of Frigate, the network video recorder, beside a running server."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

from edgeserve.client import AsyncClient
from edgeserve.config.loading import load_config
from edgeserve.fronts.detections import FORMS
from edgeserve.fronts.frigate import FrigateFront
from edgeserve.tools.connection import add_connection_arguments

log = logging.getLogger("edgeserve")

LOG_FORMAT = "%(asctime)s %(levelname).1s %(message)s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve frigate``."""
    parser.add_argument("config", nargs="?", default="", help="the server's configuration file: its endpoint")
    parser.add_argument("--app", required=True, help="the app that is asked for every image")
    add_connection_arguments(parser, "this front's own keys")
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
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    endpoint = args.endpoint or (load_config(args.config).server.endpoint if args.config else "")
    asyncio.run(_serve(args, endpoint))
    return 0


async def _serve(args: argparse.Namespace, endpoint: str) -> None:
    client = AsyncClient(endpoint or None, name="frigate", server_key=args.server_key, client_key=args.client_key)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        front = FrigateFront(client, args.app, args.timeout_ms, args.form, args.score)
        await front.look()
        await front.serve(
            args.listen,
            stopped,
            lambda place: log.info("ready on %s, for app %s of %s", place, args.app, client.endpoint),
        )
        log.info("%d images answered, %d of them as empty", front.answered, front.empty)
    finally:
        await client.close()
