"""The Grafana board, drawn from two scrapes of a runtime under load: each of its questions is computed as Prometheus
would, and each series gets its legend. Grafana itself does not run here."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="the extra 'metrics' is not installed")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from promql import Samples, evaluate

from edgeserve.config.loading import parse_config
from edgeserve.errors import Rejected
from edgeserve.runtime import Runtime
from edgeserve.taps.metrics_endpoint import StatsCollector

BOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "edgeserve.json"
NAP = {"engine": "synthetic", "batch": [1, 2], "expected": {"1": "10ms", "2": "12ms"}}
CONFIG = {
    "lane": {"cpu0": {}, "cpu1": {}},
    "model": {"quick": {**NAP, "lanes": ["cpu0"]}, "busy": {**NAP, "lanes": ["cpu1"]}},
    "app": {
        "quick": {"model": "quick", "slo": "20s", "policy": "edf"},
        "busy": {"model": "busy", "slo": "15ms", "on_late": "answer", "policy": "fifo"},
    },
    "policy": {"fifo": {}, "edf": {}},
}
READINGS = {"power_w": 7.5, "temperatures_c": {"cpu": 51.5}, "memory_available_bytes": 1 << 30}
X = {"x": np.zeros(2, np.float32)}


def scraped(runtime: Runtime) -> Samples:
    registry = CollectorRegistry()
    registry.register(
        StatsCollector(lambda: {**runtime.stats(), "device": {"monitors": {"gpu": {"readings": READINGS}}}}, "1.2.3")
    )
    text = generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def drawn(before: Samples, after: Samples, seconds: float) -> Dict[str, Dict[str, float]]:
    """Panel -> legend -> value, with every app chosen."""
    with open(BOARD, encoding="utf-8") as file:
        board = json.load(file)
    assert {row["name"] for row in board["templating"]["list"]} == {"source", "app"}
    found: Dict[str, Dict[str, float]] = {}
    for panel in board["panels"]:
        series = found.setdefault(panel["title"], {})
        for target in panel["targets"]:
            expression = target["expr"].replace("$app", "busy|quick").replace("$__rate_interval", "range")
            for labels, value in evaluate(expression, before, after, seconds).items():
                legend = re.sub(r"\{\{(\w+)\}\}", lambda word, own=dict(labels): own[word[1]], target["legendFormat"])
                assert legend not in series, f"{panel['title']}: two series are called {legend}"
                series[legend] = value
    return found


@pytest.fixture(scope="module")
def panels() -> Any:
    with Runtime(parse_config(CONFIG)) as runtime:
        runtime.infer("quick", X)
        began_s, before = time.monotonic(), scraped(runtime)
        futures = [runtime.submit("busy", X) for _ in range(20)]
        for _ in range(5):
            runtime.infer("quick", X)
        with pytest.raises(Rejected):
            runtime.infer("quick", X, slo_ms=1e-6)
        assert sum(future.result(60).late for future in futures) >= 15
        yield drawn(before, scraped(runtime), time.monotonic() - began_s)


def test_every_panel_has_its_series(panels: Dict[str, Dict[str, float]]) -> None:
    assert {title for title, series in panels.items() if not series} == {"Lanes that are not up"}
    for title, series in panels.items():
        assert not [
            legend for legend, value in series.items() if value < 0 or (math.isnan(value) and title != "Jobs per batch")
        ], title  # the copy lane runs none
    assert set(panels["Power and heat"]) == {"gpu W", "cpu C"}
    assert {"gpu available", "cpu used"} <= set(panels["Memory"])


def test_what_they_show_is_what_happened(panels: Dict[str, Dict[str, float]]) -> None:
    in_time = panels["In time, of all that ended"]
    assert in_time["quick"] == pytest.approx(5 / 6)
    assert in_time["busy"] <= 0.25
    ends = panels["Requests per second, by outcome"]
    assert ends["busy completed"] == pytest.approx(4 * ends["quick completed"])
    assert ends["quick rejected"] == pytest.approx(ends["quick completed"] / 5)
    assert set(panels["Without an answer, by reason"]) >= {"quick expired"}
    latency = panels["Latency: median and 99th percentile"]
    assert 0.01 <= latency["busy p50"] <= latency["busy p99"]
    assert latency["busy slo"] == pytest.approx(0.015)
    spent = panels["Where the time of answers goes"]
    assert {f"quick {phase}" for phase in ("queue", "load", "batch", "execute", "other")} <= set(spent)
    assert spent["quick execute"] >= 0.009 and spent["busy queue"] > spent["quick queue"]
    busy = panels["Lanes: busy"]
    assert 0.05 < busy["cpu1"] <= 1.05 and 0 < busy["cpu0"] <= 1.05
    assert 1 <= panels["Jobs per batch"]["cpu1"] <= 2
    assert panels["Open requests"] == {"open": 0.0, "bound": 4096.0}
