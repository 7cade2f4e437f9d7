"""A server in a process of its own, for the scripts that measure or attack one from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Mapping, Sequence

from edgeserve.client import Client
from edgeserve.errors import RequestError

SERVE = ("-m", "edgeserve.cli", "serve")
"""The code of the process; the path of the configuration follows."""

READY_S = 60.0
"""The seconds that a server may take to be ready, or to end: far beyond what a loaded machine needs."""


class ServerProcess:
    """The server of one configuration, which is written into ``folder`` as ``edge.toml``; ``{folder}`` in its text is
    that folder. It runs from the start on; :meth:`stop` or :meth:`kill` ends it, :meth:`start` starts another one.

    ``files``: name -> text of what else lies there. ``log``: the file that its output is appended to, thrown away where
    none is given. ``popen``: further arguments of ``subprocess.Popen``.
    """

    def __init__(
        self,
        folder: Path,
        config: str,
        files: Mapping[str, str] | None = None,
        log: Path | None = None,
        program: Sequence[str] = SERVE,
        **popen: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.log = log
        self._popen = popen
        self._command = [sys.executable, *program, str(folder / "edge.toml")]
        for name, text in {"edge.toml": config.format(folder=folder), **(files or {})}.items():
            (folder / name).write_text(text)
        self.start()

    def start(self) -> None:
        """Start it, on the same path as the one before."""
        if self.log is None:
            self.process = subprocess.Popen(
                self._command, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **self._popen}
            )
        else:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(self._command, stdout=log, stderr=log, **self._popen)

    @property
    def pid(self) -> int:
        """The id of its process."""
        return int(self.process.pid)

    def has_ended(self) -> bool:
        """True if it has ended."""
        return self.process.poll() is not None

    def said(self, count: int = 4000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-count:] if self.log is not None else ""

    def is_ready(self, endpoint: str) -> bool:
        """True if it answers, and could run every app now."""
        try:
            with Client(endpoint, connect_ms=300, timeout_ms=2000) as client:
                return bool(client.health()["ready"])
        except RequestError:
            return False

    def wait_ready(self, endpoint: str) -> None:
        """Wait until it is. :class:`SystemExit` with its log where it ends, or is not within :data:`READY_S`."""
        due_s = time.monotonic() + READY_S
        while not self.has_ended() and time.monotonic() < due_s:
            if self.is_ready(endpoint):
                return
            time.sleep(0.05)
        status = self.process.poll()
        became = f"it runs, and is not ready after {READY_S:g} s" if status is None else f"it ended with {status}"
        raise SystemExit(f"the server did not start ({became}):\n{self.said()}")

    def stop(self) -> int:
        """Ask it to end, and wait. Returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return int(self.process.wait(READY_S))

    def kill(self) -> None:
        """End it at once, if it runs."""
        if not self.has_ended():
            self.process.kill()
        self.process.wait()
