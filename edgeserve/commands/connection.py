"""Which running server a command asks, and with which keys."""

from __future__ import annotations

import argparse
import shlex

from edgeserve.client import Client


def add_connection_arguments(parser: argparse.ArgumentParser, client_key: str = "this client's own keys") -> None:
    """``--endpoint``, ``--server-key`` and ``--client-key``; ``client_key`` says whose keys the command needs."""
    parser.add_argument("--endpoint", default=None, help="where the server listens (default: this user's own bus)")
    parser.add_argument(
        "--server-key", default="", metavar="KEY", help="public key of a server with CURVE keys, or its file"
    )
    parser.add_argument("--client-key", default="", metavar="FILE", help=f"{client_key} (NAME.key_secret)")


def same_connection(args: argparse.Namespace) -> str:
    """The arguments again, for a command that asks the same server; a client's own keys are for it to choose."""
    given = (("--endpoint", args.endpoint), ("--server-key", args.server_key))
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value)


def connected(args: argparse.Namespace) -> Client:
    """A client of the server that the arguments name."""
    return Client(args.endpoint, server_key=args.server_key, client_key=args.client_key)
