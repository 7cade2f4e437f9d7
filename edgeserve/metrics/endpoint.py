"""Where Prometheus scrapes: one thread that answers ``GET /metrics``, by asking for ``stats()`` each time."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, Callable, Iterator, Mapping, Optional, Tuple

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from edgeserve.config.addresses import host_and_port, is_loopback
from edgeserve.errors import ConfigError
from edgeserve.metrics.families import families

ASK_S = 2.0
ASK_PARTS_MAX = 4
"""Pieces in which a request may come; most come in one."""
ASK_BYTES_MAX = 8 * 1024  # of each
TAKE_S = 5.0
BACKLOG = 16
LOOK_S = 0.2
"""How often the thread looks whether it shall end."""


class StatsCollector(Collector):
    """A collector of ``prometheus_client``: one question to the server per scrape, nothing in between. Register it with
    a registry of your own where your program serves metrics already."""

    def __init__(self, read: Callable[[], Mapping[str, Any]], version: str) -> None:
        self._read = read
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """The families of this moment."""
        return families(self._read(), self._version)

    def describe(self) -> Iterator[Metric]:
        """Nothing: which series there are is known when they are asked for."""
        return iter(())


class MetricsEndpoint:
    """``GET http://HOST:PORT/metrics`` until ``close``. ``address`` is ``HOST:PORT``; port 0 takes a free one. An
    address that other machines reach needs ``remote``. One scrape at a time: a connection that does not ask within
    :data:`ASK_S`, or does not take its answer within :data:`TAKE_S`, is ended."""

    def __init__(self, address: str, read: Callable[[], Mapping[str, Any]], version: str, remote: bool = False) -> None:
        host, port = host_and_port("[server] metrics", address, "127.0.0.1:9464")
        if not remote and not is_loopback(host):
            raise ConfigError(
                f"[server] metrics = {address!r} can be reached from other machines, and everybody there could read "
                f"it: set [server] metrics_remote = true, or listen on 127.0.0.1:{port}"
            )
        self._registry = CollectorRegistry()
        self._registry.register(StatsCollector(read, version))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((host, port))
            self._listener.listen(BACKLOG)
        except OSError as error:
            self._listener.close()
            raise ConfigError(
                f"[server] metrics = {address!r}: cannot listen there: {error.strerror or error}; choose "
                "another port, or end the program that has it"
            ) from None
        self._listener.settimeout(LOOK_S)
        self._host, self._port = self._listener.getsockname()[:2]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edgeserve-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it can be scraped."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}/metrics"

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._closing.set()
        self._thread.join()
        self._listener.close()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                connection = self._listener.accept()[0]
            except socket.timeout:
                continue
            except OSError:  # no descriptors left: the connection still waits
                self._closing.wait(LOOK_S)
                continue
            with connection, contextlib.suppress(OSError):
                asked = _ask_of(connection)
                if asked is not None:
                    connection.settimeout(TAKE_S)  # for all of it
                    connection.sendall(self._answer(*asked))

    def _answer(self, method: str, path: str, accepts: str) -> bytes:
        status, kind, body = "200 OK", "text/plain; charset=utf-8", b""
        if method not in ("GET", "HEAD"):
            status = "405 Method Not Allowed"
        elif path.partition("?")[0] not in ("/", "/metrics"):
            status = "404 Not Found"
        else:
            encode, kind = choose_encoder(accepts)
            try:
                body = encode(self._registry)
            except Exception as error:  # noqa: BLE001 the loop may be ending; the next scrape is told
                status, kind, body = "503 Service Unavailable", "text/plain; charset=utf-8", str(error).encode()
        head = f"HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + (b"" if method == "HEAD" else body)


def _ask_of(connection: socket.socket) -> Optional[Tuple[str, str, str]]:
    """Method, path and what the client accepts; ``None`` where that does not come in time and within bounds."""
    connection.settimeout(ASK_S / ASK_PARTS_MAX)  # for each of them: all together take no longer
    data = b""
    for _ in range(ASK_PARTS_MAX):
        data += connection.recv(ASK_BYTES_MAX)
        if b"\r\n\r\n" in data:
            break
    else:
        return None
    first, *lines = data.decode("latin-1").split("\r\n")
    words = first.split()
    accepts = [line.partition(":")[2] for line in lines if line.lower().startswith("accept:")]
    return (words[0], words[1], ",".join(accepts)) if len(words) == 3 else None
