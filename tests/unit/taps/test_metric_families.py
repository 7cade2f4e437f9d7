"""Prometheus metrics: what ``stats`` says, bounded and in the right units; the board reads metrics that exist."""

from __future__ import annotations

import json
import os
import re

import pytest

pytest.importorskip("prometheus_client", reason="the extra 'metrics' is not installed")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edgeserve.live.stats import AppCounts, LaneCounts
from edgeserve.sched.protocol.actions import LatencyBreakdown, Outcome
from edgeserve.taps.metrics_endpoint import StatsCollector

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MS = 10**6


def stats_of(reasons=3):
    counts = AppCounts()
    counts.received = 2 + reasons
    counts.completed(3 * MS, False, LatencyBreakdown(MS, 0, 0, MS))
    counts.completed(40 * MS, True, LatencyBreakdown(30 * MS, 0, 0, 10 * MS))
    for number in range(reasons):
        counts.ended(Outcome.DROPPED, f"reason {number}")
    lane = LaneCounts()
    lane.works, lane.jobs, lane.busy_ns = 2, 5, 500 * MS
    readings = {"gpu_load": 0.5, "power_w": None, "temperatures_c": {"cpu": 51.5}, "rails_w": {"VDD_IN": 4.0}}
    return {
        "uptime_s": 10.0,
        "open": 0,
        "pending_max": 4096,
        "apps": {"detect": {**counts.table(), "expected_ms": 12.0, "slo_ms": 50.0, "energy_j": 7.0}},
        "lanes": {"gpu0": lane.table(10 * 10**9, 0, 0)},
        "models": {"net": {"latency": {"gpu0": {"pace": 1.25, "sizes": {"4": {"typical_ms": 8.0}}}}}},
        "devices": {
            "gpu": {
                "models": ["net"],
                "used_bytes": 100,
                "state_bytes": 0,
                "budget_bytes": 200,
                "free_bytes": None,
                "thermal": "soft",
                "power": "none",
            }
        },
        "device": {"monitors": {"gpu": {"readings": readings}, "cold": {"readings": None}}},
    }


def samples(stats):
    registry = CollectorRegistry()
    registry.register(StatsCollector(lambda: stats, "1.2.3"))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_units_are_those_of_prometheus():
    found = samples(stats_of())
    app = (("app", "detect"),)
    assert found["edgeserve_request_slo_seconds", app] == 0.05
    assert found["edgeserve_request_duration_seconds_sum", app] == pytest.approx(0.043)
    assert found["edgeserve_lane_busy_seconds_total", (("lane", "gpu0"),)] == pytest.approx(0.5)
    assert found["edgeserve_batch_expected_seconds", (("lane", "gpu0"), ("model", "net"), ("size", "4"))] == 0.008
    assert found["edgeserve_board_temperature_celsius", (("monitor", "gpu"), ("zone", "cpu"))] == 51.5
    assert found["edgeserve_device_limit_level", (("device", "gpu"), ("limit", "thermal"))] == 1
    assert found["edgeserve_info", (("version", "1.2.3"),)] == 1


def test_the_histogram_is_cumulative_and_ends_with_everything():
    found = samples(stats_of())
    buckets = {dict(labels)["le"]: value for (name, labels), value in found.items() if name.endswith("seconds_bucket")}
    assert (buckets["0.0025"], buckets["0.005"], buckets["0.025"], buckets["0.05"]) == (0, 1, 1, 2)
    assert buckets["+Inf"] == found["edgeserve_request_duration_seconds_count", (("app", "detect"),)] == 2


def test_phases_add_up_to_the_whole():
    found = samples(stats_of())
    phases = [value for (name, _), value in found.items() if name == "edgeserve_request_phase_seconds_total"]
    assert sum(phases) == pytest.approx(found["edgeserve_request_duration_seconds_sum", (("app", "detect"),)])


def test_what_no_source_tells_has_no_series():
    names = {name for name, _ in samples(stats_of())}
    assert "edgeserve_board_power_watts" not in names
    assert "edgeserve_board_gpu_load_ratio" in names
    assert ("edgeserve_device_memory_bytes", (("device", "gpu"), ("use", "free"))) not in samples(stats_of())


# --- the board --------------------------------------------------------------------------------------------------------

WORDS = {"sum", "by", "rate", "histogram_quantile", "on", "group_left"}


def test_the_board_asks_for_series_and_labels_that_exist():
    with open(os.path.join(ROOT, "docs", "grafana", "edgeserve.json"), encoding="utf-8") as file:
        board = json.load(file)
    stats = stats_of()
    stats["device"]["monitors"]["gpu"]["readings"].update(power_w=5.0, memory_available_bytes=1)
    labels = {}
    for name, pairs in samples(stats):
        labels.setdefault(name, set()).update(key for key, _ in pairs)
    expressions = [(panel["title"], target) for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) >= 12
    for title, target in expressions:
        expression = target["expr"]
        assert expression.count("(") == expression.count(")"), title
        names = set(re.findall(r"edgeserve_\w+", expression))
        assert names, title
        assert not names - set(labels), title
        known = set().union(*(labels[name] for name in names))
        said = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        said |= set(re.findall(r'(\w+)(?:!=|=~|=)"', expression))
        assert not said - known, title
        rest = re.sub(r'edgeserve_\w+|"[^"]*"|\$\w+|\$__rate_interval', "", expression)
        assert not set(re.findall(r"[a-z_]{2,}", rest)) - WORDS - known, title
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in board["panels"]]
    assert len(set(places)) == len(places)


def test_a_hundred_thousand_names_of_clients_make_no_series():
    counts = AppCounts()
    stats = stats_of(0)
    ends = [
        (Outcome.DROPPED, "made room for {}"),
        (Outcome.CANCELLED, "client_gone: {}"),
        (Outcome.FAILED, "said {}"),
        (Outcome.REJECTED, "over_share"),
    ]

    def series(first, last):
        for number in range(first, last):
            outcome, reason = ends[number & 3]
            counts.ended(outcome, reason.format(f"pid:{number}"))
        counts.received = last
        stats["apps"]["detect"].update(counts.table())
        return set(samples(stats))

    few = series(0, 1_000)
    assert series(1_000, 100_000) == few and len(few) < 200
    found = samples(stats)
    assert sum([value for (name, _), value in found.items() if name == "edgeserve_requests_unanswered_total"]) == 10**5
