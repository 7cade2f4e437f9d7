"""The endpoint that Prometheus scrapes: one thread that answers ``GET /metrics``, by asking for ``stats()`` each
time."""

from __future__ import annotations

import selectors
import socket
import threading
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from edgeserve.config.addresses import host_and_port
from edgeserve.errors import ConfigError
from edgeserve.taps.metric_families import families

ASK_S = 2.0
ASK_BYTES_MAX = 8 * 1024
TAKE_S = 5.0
CONNECTIONS_MAX = 16
"""Open at a time, and waiting to be accepted: one more ends the oldest."""

LOOK_S = 0.2
"""The period at which the thread looks whether it shall end."""


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


def scraped(stats: Mapping[str, Any], version: str, accepts: str) -> Tuple[bytes, str]:
    """One answer of ``stats()`` in the form that a scraper ``accepts``, and the form's content type."""
    registry = CollectorRegistry()
    registry.register(StatsCollector(lambda: stats, version))
    encode, kind = choose_encoder(accepts)
    return encode(registry), kind


class MetricsEndpoint:
    """``GET http://HOST:PORT/metrics`` until ``close``. ``address`` is ``HOST:PORT``; port 0 takes a free one. There
    is no token: the address says which machines may scrape. A connection that does not ask within :data:`ASK_S`,
    or does not take its answer within :data:`TAKE_S`, is ended; scrapes do not wait for it."""

    def __init__(self, address: str, read: Callable[[], Mapping[str, Any]], version: str) -> None:
        host, port = host_and_port("[server] metrics", address, "127.0.0.1:9464")
        self._registry = CollectorRegistry()
        self._registry.register(StatsCollector(read, version))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((host, port))
            self._listener.listen(CONNECTIONS_MAX)
        except OSError as error:
            self._listener.close()
            raise ConfigError(
                f"[server] metrics = {address!r}: cannot listen there: {error.strerror or error}; choose "
                "another port, or end the program that has it"
            ) from None
        self._listener.setblocking(False)
        self._host, self._port = self._listener.getsockname()[:2]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edgeserve-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address at which it can be scraped."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}/metrics"

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._closing.set()
        self._thread.join()
        self._listener.close()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        connections: Dict[socket.socket, _Connection] = {}  # in the order in which they came
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closing.is_set():
                ready = selector.select(LOOK_S)
                for key, _ in ready:
                    one = connections.get(key.fileobj)  # type: ignore[call-overload]
                    if one is None:
                        self._accept(selector, connections)
                    elif one.goes_on(self._answer):
                        selector.modify(one.socket, one.wants)
                    else:
                        _end(selector, connections, one)
                if not ready:  # silent connections age; while others send, new ones replace them
                    for one in list(connections.values()):
                        one.left_s -= LOOK_S
                        if one.left_s <= 0:
                            _end(selector, connections, one)
            for one in list(connections.values()):
                _end(selector, connections, one)

    def _accept(self, selector: Any, connections: Dict[socket.socket, _Connection]) -> None:
        try:
            accepted = self._listener.accept()[0]
        except OSError:  # it has gone, or no descriptors are left: then the connection still waits
            self._closing.wait(LOOK_S / 10)
            return
        accepted.setblocking(False)
        if len(connections) >= CONNECTIONS_MAX:
            _end(selector, connections, next(iter(connections.values())))
        connections[accepted] = _Connection(accepted)
        selector.register(accepted, selectors.EVENT_READ)

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


class _Connection:
    """One that was accepted: what it has asked so far, then what it has not taken of its answer."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.left_s = ASK_S
        self.wants = selectors.EVENT_READ
        self._asked = b""
        self._answer = memoryview(b"")

    def goes_on(self, answer: Callable[[str, str, str], bytes]) -> bool:
        """Read or write what can be; whether anything is left to do."""
        try:
            if self.wants == selectors.EVENT_READ:
                part = self.socket.recv(ASK_BYTES_MAX)
                self._asked += part
                asked = _ask_of(self._asked)
                if asked is None:
                    return bool(part) and len(self._asked) < ASK_BYTES_MAX and b"\r\n\r\n" not in self._asked
                self._answer, self.wants, self.left_s = memoryview(answer(*asked)), selectors.EVENT_WRITE, TAKE_S
            self._answer = self._answer[self.socket.send(self._answer) :]
            return bool(self._answer)
        except BlockingIOError:
            return True
        except OSError:
            return False


def _end(selector: Any, connections: Dict[socket.socket, _Connection], one: _Connection) -> None:
    selector.unregister(one.socket)
    del connections[one.socket]
    one.socket.close()


def _ask_of(data: bytes) -> Optional[Tuple[str, str, str]]:
    """Method, path and what the client accepts; ``None`` where that is not there, or not yet."""
    if b"\r\n\r\n" not in data:
        return None
    first, *lines = data.decode("latin-1").split("\r\n")
    words = first.split()
    accepts = [line.partition(":")[2] for line in lines if line.lower().startswith("accept:")]
    return (words[0], words[1], ",".join(accepts)) if len(words) == 3 else None
