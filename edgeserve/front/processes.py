"""Fronts as children of ``edgeserve serve``: started when the server is ready, ended with it, started again after a
crash. One that ends by itself, as a camera's front does with its film, or by SIGTERM, stays ended.

The front of a server that dies, however it dies, sees the end of its standard input and ends too.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
from typing import Dict, List, Optional

from edgeserve.child import Child, how_it_ended
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError
from edgeserve.front.registry import front_of, server_key_of
from edgeserve.front.runner import WRONG_USAGE

log = logging.getLogger("edgeserve")

RESTART_S = 1.0
"""Seconds after a crash until a front is started again."""

END_S = 2.0
"""Seconds beyond a front's drain that it may take to end before it is killed."""


class FrontProcess:
    """The child of one ``[front.NAME]`` table, which is read and checked when this is made: raises
    :class:`~edgeserve.errors.ConfigError`."""

    def __init__(self, config: Config, name: str) -> None:
        self.name = name
        self.table = dict(config.fronts[name])
        made, self.settings = front_of(name, self.table, config.directory)
        made.check(self.settings)
        self._config = config
        self._drain_s = made.drain_s(self.settings) + END_S
        self._child: Optional[Child] = None
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._watch = threading.Thread(target=self._keep, name=f"edgeserve-{name}", daemon=True)
        self._command: List[str] = []

    def start(self, endpoint: str) -> None:
        """Start the front of the server at ``endpoint``."""
        server_key = self.settings.server_key or server_key_of(self._config, endpoint)
        own = {**self.table, "server_key": server_key} if server_key else self.table
        table = ("--table", json.dumps(own), "--directory", self._config.directory)
        self._command = ["-m", "edgeserve.front.runner", self.name, *table, "--endpoint", endpoint, "--with-stdin"]
        self._watch.start()

    def ask_to_stop(self) -> None:
        """Have it end soon, and not start again."""
        self._ending.set()
        with self._lock:
            if self._child is not None:
                self._child.cut()

    def stop(self) -> None:
        """Let requests end within the front's drain, then kill. Idempotent."""
        self.ask_to_stop()
        if self._child is not None and self._child.end(self._drain_s) == -signal.SIGKILL:
            log.warning("front %s did not end within %.1f s; it was killed", self.name, self._drain_s)

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
                log.error("front %s cannot start; the server goes on without it", self.name)
                return
            if status == 0:
                log.info("front %s has ended; the server goes on without it", self.name)
                return
            log.error("front %s ended (%s); it is started again", self.name, how_it_ended(status))
            self._ending.wait(RESTART_S)


class FrontProcesses:
    """All fronts of a configuration, checked and not started. Raises :class:`~edgeserve.errors.ConfigError`, also where
    two would take each other's place."""

    def __init__(self, config: Config) -> None:
        self._fronts = [FrontProcess(config, name) for name in config.fronts]
        known: Dict[str, str] = {}
        for front in self._fronts:
            identity = front.settings.identity
            other = known.setdefault(identity, front.name)
            if identity and other != front.name:
                raise ConfigError(f"[front.{front.name}] has {identity}, as [front.{other}]; give one of them another")

    def start(self, endpoint: str) -> None:
        """Start them."""
        for front in self._fronts:
            front.start(endpoint)

    def stop(self) -> None:
        """End them, all at once."""
        for front in self._fronts:
            front.ask_to_stop()
        for front in self._fronts:
            front.stop()
