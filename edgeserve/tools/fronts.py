"""What the commands of all fronts for other systems share: which server they ask, and their life until a signal."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import signal
import sys
from typing import Any, Awaitable, Callable, TypeVar

from edgeserve.client import AsyncClient
from edgeserve.config.loading import load_config
from edgeserve.config.plain_text import log_to
from edgeserve.errors import ConfigError
from edgeserve.interpreter import settle_memory
from edgeserve.tools.connection import add_connection_arguments

LOG_FORMAT = "%(asctime)s %(levelname).1s %(message)s"


def add_front_arguments(parser: argparse.ArgumentParser) -> None:
    """The configuration and the connection."""
    parser.add_argument("config", nargs="?", default="", help="the server's configuration file: its endpoint")
    add_connection_arguments(parser, "this front's own keys")


def front_module(name: str) -> Any:
    """The module of ``edgeserve.fronts`` with that name. Raises :class:`ConfigError` with the command that installs
    what is missing."""
    try:
        return importlib.import_module(f"edgeserve.fronts.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(f"this front needs {error.name}: pip install 'edgeserve-runtime[{name}]'") from None


Result = TypeVar("Result")


def run_front(
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

    async def run() -> Result:
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with AsyncClient(endpoint or None, name=name, timeout_ms=timeout_ms, **keys) as client:
            settle_memory()
            return await serve(client, stopped)

    return asyncio.run(run())
