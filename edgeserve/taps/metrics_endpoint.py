"""``stats()`` in the form that Prometheus scrapes: for ``/metrics`` of the HTTP front, and a program's own registry."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Tuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from edgeserve.taps.metric_families import families


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
