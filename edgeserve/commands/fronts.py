"""Common pieces of the commands of all fronts for other systems: which server they ask, and their life until a
signal."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from dataclasses import replace
from typing import Any, Awaitable, Callable, Mapping, Tuple, Type, TypeVar

from edgeserve.client import AsyncClient
from edgeserve.commands.connection import add_connection_arguments
from edgeserve.config.plain_text import log_to
from edgeserve.front import Front
from edgeserve.front.registry import front_of, server_key_of, with_options
from edgeserve.front.runner import LOG_FORMAT, run_connected, run_front
from edgeserve.python_file import CONFIG_HELP, config_at

OPTIONS = {
    "apps": "--wake, --vad, --asr, --intent or --tts",
    "askers": "--asker",
    "cameras": "--camera",
    "every_s": "--every",
    "host": "--broker",
    "labels_file": "--labels",
    "languages": "--language",
    "port": "--broker",
    "score_min": "--score",
    "tls": "--broker",
    "wake_words": "--wake-word",
}
"""Key of a front's table -> the option of its command, where that has another name."""


def add_front_arguments(parser: argparse.ArgumentParser) -> None:
    """The configuration and the connection."""
    parser.add_argument("config", nargs="?", default="", help=f"for its endpoint and its [front.NAME]: {CONFIG_HELP}")
    add_connection_arguments(parser, "this front's own keys")


def serve_front(args: argparse.Namespace, kind: str, **given: Any) -> int:
    """Serve as :func:`front_with` does; the exit status is 0 after a clean end."""
    front_with(args, kind, **given)
    return 0


def front_with(args: argparse.Namespace, kind: str, usual: Mapping[str, Any] | None = None, **given: Any) -> Any:
    """Serve the front of a kind until it ends; ``given`` are keys of its table from the command line, ``usual`` those
    of a command whose table lacks them. Returns it."""
    log_to(sys.stderr, logging.DEBUG if getattr(args, "verbose", False) else logging.INFO, LOG_FORMAT)
    made, settings, endpoint = configured(args, kind, usual, **given)
    return run_front(made, settings, endpoint, kind, with_stdin=getattr(args, "with_stdin", False))


def configured(
    args: argparse.Namespace, kind: str, usual: Mapping[str, Any] | None = None, **given: Any
) -> Tuple[Type[Front], Any, str]:
    """A front's class, its settings and the server's endpoint: from ``given``, unless it is None, False or empty, from
    the file's table ``[front.KIND]``, and from ``usual``, all checked as a table is. Raises
    :class:`~edgeserve.errors.ConfigError`."""
    table: Mapping[str, Any] = {}
    endpoint, directory, key = args.endpoint, ".", ""
    if args.config:
        config = config_at(args.config)
        table, directory, endpoint = config.fronts.get(kind, {}), config.directory, endpoint or config.server.endpoint
        key = server_key_of(config, endpoint)
    made, settings = front_of(kind, {**(usual or {}), **table}, directory)
    settings = replace(settings, server_key=settings.server_key or key)
    given.update(server_key=args.server_key or None, client_key=args.client_key or None)
    own = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value is not None and value is not False and value not in ((), {})  # 0 and "" are values
    }
    options = {
        name: OPTIONS.get(name, "--" + name.replace("_", "-")) for name in given if name in own or name not in table
    }
    return made, with_options(settings, own, options), endpoint


Result = TypeVar("Result")


def run_asking(
    args: argparse.Namespace,
    name: str,
    serve: Callable[[AsyncClient, asyncio.Event], Awaitable[Result]],
    timeout_ms: float = 30_000.0,
) -> Result:
    """The result of ``serve``, which ends soon after a signal has set its event. It asks as the bus's client ``name``
    that waits ``timeout_ms`` for an answer at most."""
    log_to(sys.stderr, logging.INFO, LOG_FORMAT)
    endpoint = args.endpoint or (config_at(args.config).server.endpoint if args.config else "")
    keys = {"server_key": args.server_key, "client_key": args.client_key}
    return run_connected(serve, endpoint, name=name, timeout_ms=timeout_ms, **keys)
