"""``edgeserve front http``: a front for clients that speak HTTP or gRPC, beside a running server.

Serves KServe's Open Inference Protocol v2 and OpenAI's chat protocol; asks the server over its bus.
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from typing import Any

from edgeserve.config.loading import load_config
from edgeserve.config.plain_text import log_to
from edgeserve.front.registry import front_of, server_key_of
from edgeserve.front.runner import LOG_FORMAT, run_front
from edgeserve.fronts.http.front import HttpFront
from edgeserve.fronts.http.settings import HttpConfig

log = logging.getLogger("edgeserve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve front http``."""
    parser.add_argument(
        "config",
        nargs="?",
        default="",
        help="the server's configuration file: its [front.http] table and its endpoint (default: this user's own bus)",
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
    settings, endpoint = configured(args)
    run_front(HttpFront, settings, endpoint, "http", with_stdin=args.with_stdin)
    return 0


def configured(args: argparse.Namespace) -> Any:
    """The front's settings and the server's endpoint, from the file and the arguments; these go first."""
    settings, endpoint = HttpConfig(), args.endpoint
    if args.config:
        config = load_config(args.config)
        settings = front_of("http", config.fronts.get("http", {}), config.directory)[1]
        endpoint = endpoint or config.server.endpoint
        settings = replace(settings, server_key=settings.server_key or server_key_of(config, endpoint))
    keys = ("listen", "grpc", "server_name", *HttpConfig.FILES)
    return replace(settings, **{key: getattr(args, key) for key in keys if getattr(args, key)}), endpoint
