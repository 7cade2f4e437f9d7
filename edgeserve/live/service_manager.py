"""Messages to the service manager that started this process: systemd's notification protocol (``sd_notify(3)``).

One datagram of ``NAME=value`` lines to the socket that ``NOTIFY_SOCKET`` names. Without that variable everything here
does nothing. The server decides when to send which; that the loop alone sends heartbeats is what makes
the watchdog notice a loop that is stuck.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Any, Callable, Collection, MutableMapping, Optional, Protocol

from edgeserve.units import counted, ns_to_s

log = logging.getLogger("edgeserve")

STATUS_S = 10.0
"""Seconds between two updates of the status where no watchdog needs heartbeats more often."""

STEP_S = 900.0
"""Seconds that a step of a start may take before the service manager gives the start up: one model loaded, one lane
warmed up. While a plan is built, something is said more often."""

WATCHDOG_SHARE = 3
"""Heartbeats in one watchdog time: systemd advises two, and one may come late on a busy board."""

NS_PER_US = 1000


class ServiceManager:
    """Tells the service manager how the server is. ``watchdog_ns``: the longest time between two heartbeats, 0 for no
    watchdog. Any thread may use it. A message that cannot be sent is logged once and never raises."""

    def __init__(self, address: str = "", watchdog_ns: int = 0) -> None:
        self.watchdog_ns = watchdog_ns if address else 0
        self._address = _socket_address(address)
        self._socket: Optional[socket.socket] = None
        self._complained = False

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str], pid: int) -> ServiceManager:
        """The one that started process ``pid``, as its environment says. The variables are taken out, so that no child
        process speaks in the server's name."""
        address, asked_us, whose = [
            environ.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
        ]
        if address and not address.startswith(("/", "@")):
            log.warning(
                "NOTIFY_SOCKET is %r, expected a path or a name that begins with @: the service manager hears nothing",
                address,
            )
            address = ""
        watchdog_ns = int(asked_us) * NS_PER_US if asked_us.isdecimal() and whose in ("", str(pid)) else 0
        return cls(address, watchdog_ns)

    @property
    def listens(self) -> bool:
        """True if a service manager listens."""
        return bool(self._address)

    @property
    def interval_s(self) -> float:
        """The interval at which :meth:`alive` must be called, in seconds."""
        return min(STATUS_S, ns_to_s(self.watchdog_ns) / WATCHDOG_SHARE) if self.watchdog_ns else STATUS_S

    def starting(self, status: str) -> None:
        """Report the step of the start that runs now, before :meth:`ready`."""
        self._send(_status(status))

    def loading(self, status: str) -> None:
        """Say that the start goes on, and that its next step may take :data:`STEP_S`."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(STEP_S * 1e6)}", _status(status))

    def ready(self, status: str) -> None:
        """Say that every app can be asked."""
        self._send("READY=1", _status(status))

    def alive(self, status: str) -> None:
        """Send a heartbeat; for the loop's thread alone."""
        self._send(*(["WATCHDOG=1"] if self.watchdog_ns else []), _status(status))

    def stopping(self, status: str) -> None:
        """Say that nothing more is accepted."""
        self._send("STOPPING=1", _status(status))

    def close(self) -> None:
        """Give the socket back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.setblocking(False)  # the loop never waits for the service manager
            self._socket.sendto("\n".join(lines).encode("utf-8"), self._address)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning(
                    "the service manager at NOTIFY_SOCKET=%s cannot be told (%s); the server goes on",
                    self._address.replace("\0", "@"),
                    error.strerror or error,
                )


class RunningServer(Protocol):
    """A running server, as its service manager sees it; asked on the loop's thread."""

    def blocked_apps(self) -> Collection[str]:
        """Apps that could not run now."""

    def health(self) -> Any:
        """``stopping``, ``open`` and ``lanes``, as told over the bus."""


HandToLoop = Callable[[Callable[[RunningServer], None]], None]
"""Has the loop's thread call something, without waiting."""


class Heartbeat:
    """Beats that the loop answers: :meth:`beat` hands one to the loop's thread, which tells the service manager.

    While the loop has not answered, no further beat is handed to it, so a stuck loop is silent and its mailbox stays as
    it is. ``READY=1`` goes out with the first beat that finds every app able to run."""

    def __init__(self, manager: ServiceManager, hand_to_loop: HandToLoop) -> None:
        self.manager = manager
        self._hand_to_loop = hand_to_loop
        self._waiting = False
        self._ready = False
        self._stopping = False

    def beat(self) -> None:
        """Ask the loop for a sign of life, unless it owes one."""
        if self.manager.listens and not self._waiting:
            self._waiting = True
            self._hand_to_loop(self._on_the_loop)

    def stopping(self) -> None:
        """Say once that the server stops; safe in a signal handler."""
        if not self._stopping:
            self._stopping = True
            self.manager.stopping("finishing what was accepted")

    def _on_the_loop(self, server: RunningServer) -> None:
        self._waiting = False
        health = server.health()
        if health["stopping"]:  # also where a client asked to drain
            self.stopping()
        blocked = server.blocked_apps()
        status = status_of(health, blocked)
        if not self._ready and not blocked:
            self._ready = True
            self.manager.ready(status)
        if self._ready:
            self.manager.alive(status)
        else:
            self.manager.starting(status)


def status_of(health: Any, blocked: Collection[str]) -> str:
    """The line that ``systemctl status`` shows."""
    lanes = health["lanes"]
    up = sum(state == "up" for state in lanes.values())
    words = [f"{up} of {counted(len(lanes), 'lane')} up", f"{counted(health['open'], 'open request')}"]
    if health["stopping"]:
        words.insert(0, "stopping")
    if blocked:
        words.insert(0, f"no lane can run {', '.join(blocked)}")
    return "; ".join(words)


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())}"


def _socket_address(text: str) -> str:
    """``@name`` is a name in the abstract namespace."""
    return f"\0{text[1:]}" if text.startswith("@") else text


def started_by() -> ServiceManager:
    """The service manager that started this process."""
    return ServiceManager.from_environment(os.environ, os.getpid())
