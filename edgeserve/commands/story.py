"""``edgeserve story``: what happened to a request of a running server, by the id of its answer or error."""

from __future__ import annotations

import argparse
import sys

from edgeserve.commands.connection import add_connection_arguments, connected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id", type=int, help="the request's id: of an Answer, a future or an error; request_id on the bus"
    )
    add_connection_arguments(parser, "a control key")


def main(args: argparse.Namespace) -> int:
    """Print the story; the exit status is 1 when the server does not remember that request."""
    with connected(args) as client:
        lines = client.story(args.id)
    if not lines:
        print(
            f"edgeserve: the server remembers no request {args.id}: it keeps the open ones and the last that have",
            file=sys.stderr,
        )
        return 1
    print("\n".join(lines))
    return 0
