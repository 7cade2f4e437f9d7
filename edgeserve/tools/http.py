"""``edgeserve http``: a front for clients that speak HTTP or gRPC, beside a running server.

Serves KServe's Open Inference Protocol v2 and OpenAI's chat protocol; asks the server over its bus.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, List

from edgeserve.client import AsyncClient, Client
from edgeserve.config.files import resolve_path
from edgeserve.config.loading import load_config
from edgeserve.config.plain_text import log_to
from edgeserve.config.schema import HttpConfig
from edgeserve.errors import EdgeServeError
from edgeserve.fronts.http.front import Front, check_http, run
from edgeserve.interpreter import settle_memory
from edgeserve.ipc.connections import raise_file_limit

log = logging.getLogger("edgeserve")

LOG_FORMAT = "%(asctime)s %(levelname).1s %(message)s"
FILES = ("server_key", "client_key", "token_file")
"""Settings that name files: those of the configuration are looked for where it lies."""

SWITCH_S = 0.0005
"""How long one thread may keep the others waiting: the event loop and the bus's thread hand each request over twice."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve http``."""
    parser.add_argument(
        "config",
        nargs="?",
        default="",
        help="the server's configuration file: its [http] table and its endpoint (default: this user's own bus)",
    )
    parser.add_argument("--endpoint", default="", help="where the server listens, such as tcp://127.0.0.1:5555")
    parser.add_argument(
        "--server-key", default="", metavar="KEY", help="public key of a server with CURVE keys, or its file"
    )
    parser.add_argument(
        "--client-key",
        default="",
        metavar="FILE",
        help="this front's own CURVE keys, for a server that lets in listed clients",
    )
    parser.add_argument(
        "--listen", default="", metavar="HOST:PORT", help="default: 127.0.0.1:8000; port 0: any free one"
    )
    parser.add_argument("--grpc", default="", metavar="HOST:PORT", help="serve gRPC too, such as 127.0.0.1:8001")
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="clients must send 'Authorization: Bearer' and the token in this file, or one of several "
        "(lines of NAME TOKEN)",
    )
    parser.add_argument(
        "--server-name",
        default="",
        metavar="NAME",
        help="what /v2 says of the server (default: edgeserve); some clients insist on triton",
    )
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input ends")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")


def main(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit status is 0 after a clean end."""
    log_to(sys.stderr, logging.DEBUG if args.verbose else logging.INFO, LOG_FORMAT)
    http, endpoint = configured(args)
    check_http(http)
    sys.setswitchinterval(SWITCH_S)
    serve_front(
        http,
        endpoint,
        lambda places, at: log.info("ready on %s, for the server at %s", ", ".join(places), at),
        args.with_stdin,
    )
    return 0


def serve_front(http: HttpConfig, endpoint: str, tell: Callable[[List[str], str], None], with_stdin: bool) -> None:
    """Serve until a signal. ``tell`` hears where, and of which server."""
    raise_file_limit()
    keys: Dict[str, Any] = {"name": "http", "server_key": http.server_key, "client_key": http.client_key}
    with Client(endpoint or None, **keys) as client:
        front = Front(http, client, AsyncClient(endpoint or None, **keys), time.time)

        def stopping(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stopped.set)
            if with_stdin:
                threading.Thread(target=_until_stdin_ends, args=(loop, stopped), daemon=True).start()

        def ready(places: List[str]) -> None:
            settle_memory()
            tell(places, client.endpoint)
            threading.Thread(target=_warn_without_server, args=(client,), daemon=True).start()

        run(front, stopping, ready)


def _warn_without_server(client: Client) -> None:
    """Requests are answered with an error until a server is there, which the user of this command should hear first."""
    try:
        client.health()
    except EdgeServeError as error:
        log.warning("%s, or give --endpoint; until a server answers, requests get this error", error)


def configured(args: argparse.Namespace) -> Any:
    """The front's settings and the server's endpoint, from the file and the arguments; these go first."""
    http, endpoint, directory = HttpConfig(), args.endpoint, "."
    if args.config:
        config = load_config(args.config)
        http, directory = config.http or http, config.directory
        endpoint = endpoint or config.server.endpoint
    keys = ("listen", "grpc", "server_name", *FILES)
    changes: Dict[str, Any] = {key: getattr(args, key) for key in keys if getattr(args, key)}
    for key in FILES:
        path = getattr(http, key)
        if path and key not in changes and os.path.exists(resolve_path(path, directory)):  # server_key may be the key
            changes[key] = resolve_path(path, directory)
    return replace(http, **changes), endpoint


def _until_stdin_ends(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """The process that started this one holds the other end; its end ends this process too."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stopped.set)
