"""A runtime with its monitor on: statistics tell of the device, and the threads end with the runtime."""

from __future__ import annotations

import threading

from serving import wait_until

from edgeserve.config.loading import parse_config
from edgeserve.device import signs
from edgeserve.device.boards import detect_board
from edgeserve.runtime import Runtime


def test_statistics_tell_what_the_monitor_reads():
    config = parse_config(
        {
            "device": {"cpu": {"headroom": "1MB"}},
            "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}},
            "app": {"a": {"model": "m"}},
        }
    )
    with Runtime(config) as runtime:

        def told():
            (monitor,) = runtime.stats()["device"]["monitors"].values()
            return monitor["readings"] is not None and monitor["sources"]["memory"]["reads"] > 1 and monitor

        wait_until(told)
        monitor = told()
        assert monitor["devices"] == ["cpu"]
        assert monitor["readings"]["memory_available_bytes"] > 0
        assert 0 <= monitor["core_share"] < 1
        runtime.infer("a", {}, slo_ms=10_000)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edgeserve-monitor")]


def test_without_a_monitor_statistics_name_the_board_and_no_reading(monkeypatch):
    monkeypatch.setattr(signs, "has_none", lambda: True)
    model = {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}}
    config = parse_config({"model": model, "app": {"a": {"model": "m"}}})
    with Runtime(config) as runtime:
        for _ in range(2):
            table = runtime.stats()["device"]
            assert (table["board"], table["monitors"]) == (detect_board().kind.slug, {})
            table["board"] = "changed by the caller"
