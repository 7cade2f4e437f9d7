"""``edgeserve front http``: a front for clients that speak HTTP or gRPC, beside a running server.

Serves KServe's Open Inference Protocol v2 and OpenAI's chat protocol; asks the server over its bus.
"""

from __future__ import annotations

import argparse

from edgeserve.commands.fronts import add_front_arguments, serve_front


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve front http``."""
    add_front_arguments(parser)
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
    keys = ("listen", "grpc", "server_name", "token_file")
    return serve_front(args, "http", **{key: getattr(args, key) or None for key in keys})
