"""Clients that connect to the endpoint of metrics and send little or nothing."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from types import SimpleNamespace
from typing import Any, Dict

import pytest

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed: there is no endpoint")

from edgeserve.config.loading import parse_config
from edgeserve.server import metrics_of
from edgeserve.taps import metrics_endpoint as metrics
from edgeserve.taps.metrics_endpoint import MetricsEndpoint


def stats() -> Dict[str, Any]:
    zero = {"uptime_s": 1.0, "open": 0, "pending_max": 1}
    return {**zero, "apps": {}, "lanes": {}, "models": {}, "devices": {}}


def test_idle_connections_take_no_threads_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ASK_S", 1.0)
    endpoint = MetricsEndpoint("127.0.0.1:0", stats, "1")
    place = ("127.0.0.1", int(endpoint.url.split(":")[2].split("/")[0]))
    before = threading.active_count()
    idle = [socket.create_connection(place, 20) for _ in range(8)]
    try:
        dripping = idle[0]
        dripping.sendall(b"GET /metrics HT")
        begun_s = time.monotonic()
        with urllib.request.urlopen(endpoint.url, timeout=30) as reply:
            assert b"edgeserve_uptime_seconds" in reply.read()
        assert time.monotonic() - begun_s < 1.0  # it waits for none of them
        assert threading.active_count() == before
        assert [one.recv(1) for one in idle] == [b""] * 8
    finally:
        for one in idle:
            one.close()
        endpoint.close()


def test_more_connections_than_there_are_places_end_the_oldest() -> None:
    endpoint = MetricsEndpoint("127.0.0.1:0", stats, "1")
    place = ("127.0.0.1", int(endpoint.url.split(":")[2].split("/")[0]))
    idle = [socket.create_connection(place, 20) for _ in range(3 * metrics.CONNECTIONS_MAX)]
    try:
        with urllib.request.urlopen(endpoint.url, timeout=30) as reply:
            assert b"edgeserve_uptime_seconds" in reply.read()
        assert idle[0].recv(1) == b""
    finally:
        for one in idle:
            one.close()
        endpoint.close()


def test_what_is_no_scrape_is_told() -> None:
    endpoint = MetricsEndpoint("127.0.0.1:0", stats, "1")
    try:
        port = int(endpoint.url.split(":")[2].split("/")[0])
        for ask, told in [(b"POST /metrics HTTP/1.1", b"405"), (b"GET /x HTTP/1.1", b"404"), (b"nonsense", b"")]:
            with socket.create_connection(("127.0.0.1", port), 20) as one:
                one.sendall(ask + b"\r\n\r\n")
                assert one.recv(12)[9:] == told
    finally:
        endpoint.close()


def test_a_client_that_takes_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "TAKE_S", 0.05)
    endpoint = MetricsEndpoint("127.0.0.1:0", stats, "1")
    monkeypatch.setattr(endpoint, "_answer", lambda *asked: bytes(64 * 1024**2))
    try:
        port = int(endpoint.url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port), 20) as mute:
            mute.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            begun_s = time.monotonic()
            time.sleep(0.3)
            monkeypatch.undo()
            with urllib.request.urlopen(endpoint.url, timeout=30) as reply:
                assert reply.read()
            assert time.monotonic() - begun_s < 3
            mute.settimeout(20)
            while mute.recv(1 << 20):
                pass
    finally:
        endpoint.close()


@pytest.mark.parametrize(("host", "is_told"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_metrics_that_other_machines_can_read_are_told(caplog: Any, host: str, is_told: bool) -> None:
    caplog.set_level("INFO", "edgeserve")
    endpoint = metrics_of(SimpleNamespace(stats=stats), parse_config({"server": {"metrics": f"{host}:0"}}))
    assert endpoint is not None
    endpoint.close()
    assert ("other machines can read them" in caplog.text) == is_told
