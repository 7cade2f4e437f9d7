"""Where Prometheus scrapes: one thread that answers ``GET /metrics``, by asking for ``stats()`` each time."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Tuple

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from edgeserve.errors import ConfigError
from edgeserve.metrics.families import families


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
    """``GET http://HOST:PORT/metrics`` until ``close``. ``address`` is ``HOST:PORT``; port 0 takes a free one."""

    def __init__(self, address: str, read: Callable[[], Mapping[str, Any]], version: str) -> None:
        host, port = split_address(address)
        registry = CollectorRegistry()
        registry.register(StatsCollector(read, version))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise ConfigError(
                f"[server] metrics = {address!r}: cannot listen there: {error.strerror or error}; choose "
                "another port, or end the program that has it"
            ) from None

    @property
    def url(self) -> str:
        """Where it can be scraped."""
        host, port = self._server.server_address[:2]
        return f"http://{_text(host)}:{port}/metrics"

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def split_address(address: str) -> Tuple[str, int]:
    """``("127.0.0.1", 9464)`` of ``"127.0.0.1:9464"``; ``[::1]:9464`` for IPv6. Raises
    :class:`~edgeserve.errors.ConfigError`."""
    host, colon, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and host and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"[server] metrics = {address!r}: expected HOST:PORT, such as 127.0.0.1:9464")
    return host, int(port)


def _text(host: Any) -> str:
    text = host.decode() if isinstance(host, bytes) else str(host)
    return f"[{text}]" if ":" in text else text
