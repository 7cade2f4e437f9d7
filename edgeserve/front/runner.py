"""The life of a front in a process of its own: its connection, its event loop, its end by a signal."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import threading
from typing import Any, Awaitable, Callable, Optional, Sequence, Type, TypeVar

from edgeserve.client import AsyncClient
from edgeserve.config.plain_text import log_to
from edgeserve.errors import ConfigError, EdgeServeError, UnknownApp
from edgeserve.front.contract import Front
from edgeserve.front.registry import front_of
from edgeserve.interpreter import settle_memory
from edgeserve.ipc.connections import raise_file_limit

log = logging.getLogger("edgeserve")

LOG_FORMAT = "%(asctime)s %(levelname).1s %(message)s"

WRONG_USAGE = 2
"""The exit status of a front that cannot work as configured: starting it again would not help."""

Result = TypeVar("Result")


def run_connected(
    serve: Callable[[AsyncClient, asyncio.Event], Awaitable[Result]],
    endpoint: Optional[str],
    with_stdin: bool = False,
    **options: Any,
) -> Result:
    """The result of ``serve``, which ends soon after a signal has set its event, or the end of standard input with
    ``with_stdin``. ``options`` are those of :class:`AsyncClient`."""
    raise_file_limit()

    async def run() -> Result:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        if with_stdin:
            threading.Thread(target=_until_stdin_ends, args=(loop, stopped), daemon=True).start()
        async with AsyncClient(endpoint or None, **options) as client:
            settle_memory()
            return await serve(client, stopped)

    return asyncio.run(run())


def run_front(
    made: Type[Front],
    settings: Any,
    endpoint: Optional[str],
    name: str,
    tell: Optional[Callable[..., None]] = None,
    with_stdin: bool = False,
) -> Front:
    """Serve until the end; returns the front, which knows what it did. ``tell(endpoint, *places)`` is called when
    clients can come; without it the log has the places."""
    made.check(settings)
    made.prepare()

    async def serve(client: AsyncClient, stopped: asyncio.Event) -> Front:
        front = made(client, settings)
        await front.look()

        def ready(*places: str) -> None:
            if tell is not None:
                tell(client.endpoint, *places)
            else:
                log.info("ready on %s, for the server at %s", ", ".join(places), client.endpoint)

        await front.serve(stopped, ready)
        log.info("%s: %s", name, front.summary())
        return front

    keys = {"server_key": settings.server_key, "client_key": settings.client_key}
    return run_connected(serve, endpoint, with_stdin, name=name, timeout_ms=made.timeout_ms, **keys)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The front of one ``[front.NAME]`` table, as ``edgeserve serve`` starts it (``python -m edgeserve.front.runner``).
    Returns the exit status: :data:`WRONG_USAGE` where starting it again would not help."""
    parser = argparse.ArgumentParser(prog="edgeserve.front")
    parser.add_argument("name")
    parser.add_argument("--table", default="{}", help="the table as JSON")
    parser.add_argument("--directory", default=".", help="where relative paths start")
    parser.add_argument("--endpoint", default="", help="where the server listens")
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input ends")
    args = parser.parse_args(arguments)
    log_to(sys.stderr, logging.INFO, LOG_FORMAT)
    try:
        made, settings = front_of(args.name, json.loads(args.table), args.directory)
        run_front(made, settings, args.endpoint, args.name, with_stdin=args.with_stdin)
    except (ConfigError, UnknownApp) as error:
        log.error("%s", error)
        return WRONG_USAGE
    except EdgeServeError as error:  # of a server that is busy, or is not there yet
        log.error("%s", error)
        return 1
    return 0


def _until_stdin_ends(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """The process that started this one holds the other end; its end ends this process too."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stopped.set)


if __name__ == "__main__":
    sys.exit(main())
