"""The server whose page scripts look at: a device that is asked a little more than it can do, with a model that fails
now and then."""

from __future__ import annotations

import random
import time
from typing import Any, Dict

import numpy as np

import edgeserve
from edgeserve.config.loading import parse_config

IMAGE = {"dtype": "uint8", "shape": [48, 64, 3]}
TABLES: Dict[str, Any] = {
    "device": {"cpu": {"headroom": "1MB"}},
    "lane": {"cpu0": {}, "cpu1": {}},
    "model": {
        "detector": {"expected": {1: "9ms", 2: "14ms", 4: "24ms"}, "batch": [1, 2, 4], "lanes": ["cpu0"]},
        "depth": {"expected": {1: "16ms"}, "lanes": ["cpu0"], "options": {"fail_every": 60}},
        "wakeword": {"expected": {1: "3ms", 2: "4ms", 4: "6ms"}, "batch": [1, 2, 4], "lanes": ["cpu1"]},
        "intent": {"expected": {1: "40ms"}, "lanes": ["cpu1"]},
    },
    "app": {
        "detect": {"model": "detector", "slo": "60ms", "class": "critical", "inputs": {"image": IMAGE}},
        "depth": {"model": "depth", "slo": "120ms", "inputs": {"image": IMAGE}},
        "wake": {"model": "wakeword", "slo": "60ms", "inputs": {"sound": {"shape": [1600]}}},
        "intents": {"model": "intent", "slo": "250ms", "inputs": {"said": {"dtype": "text"}}},
    },
}
LOADS = {"detect": (15.0, None), "depth": (6.0, 30.0), "wake": (8.0, 6.0), "intents": (2.0, 60.0)}
"""App -> requests a second, and the deadline in ms of every tenth of them, which is too short."""


def send(endpoint: str, app: str, inputs: Dict[str, Any]) -> None:
    """Ask the app until the process ends, sometimes several times at once."""
    draw, (rate_hz, short_ms) = random.Random(app), LOADS[app]
    with edgeserve.Client(endpoint) as client:
        while True:
            time.sleep(1 / rate_hz if short_ms is None else draw.expovariate(rate_hz))
            for _ in range(4 if draw.random() < 0.04 else 1):
                slo_ms = short_ms if draw.random() < 0.1 else None
                client.submit(app, inputs, slo_ms=slo_ms).add_done_callback(lambda future: future.exception())


def inputs_of_apps() -> Dict[str, Dict[str, Any]]:
    """The inputs of each app's requests."""
    image = np.zeros((48, 64, 3), np.uint8)
    return {
        "detect": {"image": image},
        "depth": {"image": image},
        "wake": {"sound": np.zeros(1600, np.float32)},
        "intents": {"said": "lights on"},
    }


def serve(endpoint: str) -> edgeserve.Runtime:
    """The server of the pictures, not started."""
    models = {name: {"engine": "synthetic", **table} for name, table in TABLES["model"].items()}
    return edgeserve.Runtime(parse_config({**TABLES, "model": models, "server": {"endpoint": endpoint}}), serve=True)
