"""An Orin Nano at its clocks of MAXN_SUPER: over-current events come several times a second, and no clock falls."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from edgeserve.config.schema import DeviceConfig
from edgeserve.device.events import readings_of
from edgeserve.device.state import DeviceState
from edgeserve.sim.hardware import SimHardware
from edgeserve.sim.scenario import Scenario, parse_scenario

GPU = DeviceConfig("gpu", "cuda")
CLOCKS_MHZ = (306.0, 612.0, 918.0, 1020.0)
_readings = SimHardware.readings


def nano(seconds: float, ambient_c: float) -> Scenario:
    """A camera, a person's questions and background work."""
    milliseconds: Mapping[str, Mapping[str, str]] = {
        "detect": {"1": "12ms", "2": "20ms"},
        "read": {"1": "20ms", "2": "30ms", "4": "48ms"},
    }
    tables: Dict[str, Any] = {
        "device": {"gpu": {"kind": "cuda"}},
        "lane": {"gpu0": {"device": "gpu"}},
        "model": {
            name: {"engine": "synthetic", "batch": [int(size) for size in expected], "expected": expected}
            for name, expected in milliseconds.items()
        },
        "app": {
            "camera": {"model": "detect", "slo": "50ms", "class": "critical"},
            "ask": {"model": "read", "slo": "250ms"},
            "index": {"model": "read", "slo": "5s", "class": "background"},
        },
        "workload": {
            "camera": {"app": "camera", "kind": "periodic", "rate": 15},
            "ask": {"app": "ask", "rate": 12},
            "index": {"app": "index", "rate": 6},
        },
        "run": {"duration": f"{seconds}s", "noise": 0.02},
        "hardware": {
            "gpu": {
                "clocks": list(CLOCKS_MHZ),
                "power": {"static": 6.0, "dynamic": 14.0},
                "thermal": {"ambient": ambient_c, "resistance": 2.0, "time": "20s", "trip": 99.0, "release": 95.0},
            }
        },
    }
    return parse_scenario(tables, ".")


def ticking(hardware: SimHardware, used_bytes: int) -> Any:
    """In place of ``SimHardware.readings``: with ticks of OC3 between any two, as the monitor would tell them."""
    base = _readings(hardware, used_bytes)
    flags = ["over_current:oc3"]
    if base.clock_max_mhz < 0.98 * hardware.top_mhz:
        flags += ["gpu_clock:capped", "cooling:gpu-devfreq"]
    return base._replace(throttled=readings_of(DeviceState(throttles=tuple(flags)), GPU, on_card=False).throttled)
