"""Requests of monitoring: probes of its health, scrapes of Prometheus."""

from __future__ import annotations

import pytest
from http_front import FrontThread
from serving import served

from edgeserve.fronts.http.settings import HttpConfig

TOKEN = "a-token-of-these-tests"
MODELS = {"model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}}, "app": {"m": {"model": "m"}}}


def test_health_needs_no_token_and_follows_the_server(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    with served(MODELS) as (runtime, _):
        settings = HttpConfig(listen="127.0.0.1:0", token_file=str(tmp_path / "token"), timeout_ns=2 * 10**9)
        with FrontThread(runtime.endpoints[0], settings) as front:
            assert front.ask("GET", "/health") == (200, {"ready": True}) == front.ask("GET", "/health/")
            runtime.stop()
            assert front.ask("GET", "/health") == (503, {"ready": False})


def test_a_scrape_is_the_servers_stats(tmp_path):
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed: there are no metrics")
    from prometheus_client.parser import text_string_to_metric_families

    (tmp_path / "token").write_text(TOKEN)
    with served(MODELS) as (runtime, client):
        client.infer("m", {"x": 1})
        settings = HttpConfig(listen="127.0.0.1:0", token_file=str(tmp_path / "token"))
        with FrontThread(runtime.endpoints[0], settings) as front:
            assert front.ask("GET", "/metrics")[0] == 401
            status, data, headers = front.ask_raw("GET", "/metrics", None, {"Authorization": f"Bearer {TOKEN}"})
            assert status == 200 and headers["content-type"].startswith("text/plain")
            found = {family.name: family for family in text_string_to_metric_families(data.decode())}
            assert found["edgeserve_uptime_seconds"].samples[0].value > 0
            wants = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/openmetrics-text; version=1.0.0"}
            _, data, headers = front.ask_raw("GET", "/metrics", None, wants)
            assert "openmetrics" in headers["content-type"] and data.endswith(b"# EOF\n")
