"""What the commands of all fronts for other systems share: which server they ask, and their life until a signal."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from dataclasses import replace
from typing import Any, Awaitable, Callable, Mapping, TypeVar

from edgeserve.client import AsyncClient
from edgeserve.commands.connection import add_connection_arguments
from edgeserve.config.loading import load_config
from edgeserve.config.plain_text import log_to
from edgeserve.front.registry import front_of, server_key_of
from edgeserve.front.runner import LOG_FORMAT, run_connected, run_front


def add_front_arguments(parser: argparse.ArgumentParser) -> None:
    """The configuration and the connection."""
    parser.add_argument("config", nargs="?", default="", help="the server's configuration file: its endpoint")
    add_connection_arguments(parser, "this front's own keys")


def serve_front(args: argparse.Namespace, kind: str, **given: Any) -> int:
    """Serve as :func:`front_with` does; the exit status is 0 after a clean end."""
    front_with(args, kind, **given)
    return 0


def front_with(args: argparse.Namespace, kind: str, **given: Any) -> Any:
    """Serve the front of a kind until it ends, with the settings of the configuration's table and those ``given``,
    which go first unless they are None, False or empty. Returns the front."""
    log_to(sys.stderr, logging.INFO, LOG_FORMAT)
    table: Mapping[str, Any] = {}
    endpoint, directory, key = args.endpoint, ".", ""
    if args.config:
        config = load_config(args.config)
        table, directory, endpoint = config.fronts.get(kind, {}), config.directory, endpoint or config.server.endpoint
        key = server_key_of(config, endpoint)
    made, settings = front_of(kind, table, directory)
    server_key = args.server_key or settings.server_key or key
    given.update(server_key=server_key, client_key=args.client_key or None)
    changes = {
        key: value
        for key, value in given.items()
        if value is not None and value is not False and value not in ((), {})  # 0 is a value
    }
    return run_front(made, replace(settings, **changes), endpoint, kind)


Result = TypeVar("Result")


def run_asking(
    args: argparse.Namespace,
    name: str,
    serve: Callable[[AsyncClient, asyncio.Event], Awaitable[Result]],
    timeout_ms: float = 30_000.0,
) -> Result:
    """What ``serve`` returns, which ends soon after a signal has set its event. It asks as the bus's client ``name``
    that waits ``timeout_ms`` for an answer at most."""
    log_to(sys.stderr, logging.INFO, LOG_FORMAT)
    endpoint = args.endpoint or (load_config(args.config).server.endpoint if args.config else "")
    keys = {"server_key": args.server_key, "client_key": args.client_key}
    return run_connected(serve, endpoint, name=name, timeout_ms=timeout_ms, **keys)
