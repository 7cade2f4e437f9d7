"""``edgeserve reload``: a running server reads its configuration again, or loads one model anew."""

from __future__ import annotations

import argparse
import sys

from edgeserve.commands.connection import add_connection_arguments, connected
from edgeserve.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``edgeserve reload``."""
    parser.add_argument(
        "model",
        nargs="?",
        default="",
        help="load this model anew, as [model.NAME] names it (default: "
        "read the configuration again: apps, policies, models)",
    )
    add_connection_arguments(parser, "a control key")
    parser.add_argument(
        "--timeout",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="wait at most this long (default 900: an engine may be built)",
    )


def main(args: argparse.Namespace) -> int:
    """Reload it; the exit status is 1 where a device could not, which goes on with what it had."""
    if not args.timeout > 0:
        raise ConfigError(f"--timeout {args.timeout:g}: expected seconds above 0")
    with connected(args) as client:
        reply = client.reload(args.model, timeout_ms=args.timeout * 1000)
    if not args.model:
        if reply["failed"]:
            print(f"edgeserve: nothing has changed: {reply['failed']['configuration']}", file=sys.stderr)
            return 1
        print(f"the configuration was read again; apps: {', '.join(reply['apps'])}")
        return 0
    for device in reply["devices"]:
        if device in reply["failed"]:
            print(f"edgeserve: device {device} goes on with the old one: {reply['failed'][device]}", file=sys.stderr)
        else:
            print(f"model {reply['model']} is reloaded on device {device}")
    return 1 if reply["failed"] else 0
