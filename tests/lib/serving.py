"""Parts for tests of running servers: a wait with an end, models of Python functions, a server and its client."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from edgeserve import cli
from edgeserve.client import Client
from edgeserve.config.loading import parse_config
from edgeserve.runtime import Runtime

LIB = os.path.dirname(os.path.abspath(__file__))


def wait_until(holds: Callable[[], Any], seconds: float = 30.0) -> None:
    due = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < due, f"it did not happen within {seconds} s"
        time.sleep(0.005)


def command(words: str) -> List[str]:
    """``edgeserve`` with these words, of this checkout and this Python."""
    return [sys.executable, "-m", "edgeserve", *words.split()]


def function(name: str, example: str = "example", home: str = "live_functions", **more: Any) -> Dict[str, Any]:
    """The table of a model that is a function of module ``home``, with the example of its inputs."""
    options = {"example": f"{home}:{example}", **more.pop("options", {})}
    return {"engine": "python", "function": f"{home}:{name}", "options": options, **more}


def status_of(words: Sequence[str]) -> int:
    """The exit status of a command, also of one whose arguments are wrong."""
    try:
        return cli.main(words)
    except SystemExit as end:
        return int(end.code or 0)


@contextlib.contextmanager
def served(tables: Mapping[str, Any], directory: str = LIB) -> Iterator[Tuple[Runtime, Client]]:
    """A server of this configuration and a client of it. The socket has a short path: 107 characters are allowed."""
    with tempfile.TemporaryDirectory(prefix="es") as folder:
        server = {"endpoint": f"ipc://{folder}/bus/socket", **tables.get("server", {})}
        config = parse_config({**tables, "server": server}, directory=directory)
        with Runtime(config, serve=True) as runtime, Client(runtime.endpoints[0]) as client:
            yield runtime, client
