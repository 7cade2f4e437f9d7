"""A runtime with its monitor on: statistics tell of the device, and the threads end with the runtime."""

from __future__ import annotations

import threading
import time

from edgeserve.config.loading import parse_config
from edgeserve.runtime import Runtime

WAIT_S = 30.0


def test_statistics_tell_what_the_monitor_reads():
    config = parse_config(
        {
            "monitor": {"enabled": "always", "interval": "20ms", "tegrastats": "never"},
            "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}},
            "app": {"a": {"model": "m"}},
        }
    )
    with Runtime(config) as runtime:
        due_s = time.monotonic() + WAIT_S
        while True:
            (monitor,) = runtime.stats()["device"]["monitors"].values()
            if monitor["readings"] is not None and monitor["sources"]["memory"]["reads"] > 1:
                break
            assert time.monotonic() < due_s
            time.sleep(0.01)
        assert monitor["devices"] == ["cpu"]
        assert monitor["readings"]["memory_available_bytes"] > 0
        assert 0 <= monitor["core_share"] < 1
        runtime.infer("a", {}, slo_ms=10_000)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edgeserve-monitor")]
