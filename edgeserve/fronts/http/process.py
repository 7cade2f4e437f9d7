"""The front as a child of ``edgeserve serve``: started when the server is ready, ended with it, started again after a
crash.

The front of a server that dies, however it dies, sees the end of its standard input and ends too.
"""

from __future__ import annotations

import logging
import signal
import threading
from typing import List, Optional

from edgeserve.child import Child
from edgeserve.config.schema import Config
from edgeserve.fronts.http.front import bind, check_http

log = logging.getLogger("edgeserve")

RESTART_S = 1.0
"""Seconds after a crash until the gateway is started again."""

END_S = 2.0
"""Beyond ``[http] drain``: how long the front may take to end before it is killed."""

WRONG_USAGE = 2
"""The exit status of a front that cannot work as configured: starting it again would not help."""


class FrontProcess:
    """The child. :meth:`check` says before anything is loaded what would keep it from starting."""

    def __init__(self, config: Config) -> None:
        assert config.http is not None, "only for a configuration with [http]"
        self._config = config
        self._drain_s = config.http.drain_ns / 1e9 + END_S
        self._child: Optional[Child] = None
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._watch = threading.Thread(target=self._keep, name="edgeserve-http", daemon=True)
        self._command: List[str] = []

    def check(self) -> None:
        """Raise :class:`~edgeserve.errors.ConfigError` for missing packages, wrong settings, and ports in use."""
        http = self._config.http
        assert http is not None, "checked when this was made"
        check_http(http)
        for key, place in (("listen", http.listen), ("grpc", http.grpc)):
            if place:
                bind(key, place).close()

    def start(self, endpoint: str) -> None:
        """Start the front of the server at ``endpoint``."""
        self._command = [
            "-m",
            "edgeserve.cli",
            "http",
            self._config.source,
            "--endpoint",
            endpoint,
            "--with-stdin",
        ]
        http = self._config.http
        if self._config.curve_secret_key_path and http is not None and not http.server_key:
            self._command += ["--server-key", self._config.curve_secret_key_path]
        self._watch.start()

    def stop(self) -> None:
        """Let requests end within ``[http] drain``, then kill. Idempotent."""
        self._ending.set()
        with self._lock:
            child = self._child
        if child is None:
            return
        if child.end(self._drain_s) == -signal.SIGKILL:
            log.warning("the HTTP front did not end within %.1f s; it was killed", self._drain_s)

    def _keep(self) -> None:
        while not self._ending.is_set():
            with self._lock:
                if self._ending.is_set():
                    return
                self._child = Child(self._command, own_session=True)
            status = self._child.process.wait()
            if self._ending.is_set():
                return
            if status == WRONG_USAGE:
                log.error("the HTTP front cannot start; the server goes on without it")
                return
            log.error("the HTTP front ended with status %d; it is started again", status)
            self._ending.wait(RESTART_S)
