"""A stream that goes silent: what a lane computes of numbers too small to be normal, and how long it takes."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import onnx_models
import pytest

from edgeserve.config.loading import parse_config
from edgeserve.engines.denormals import REGISTERS
from edgeserve.live import startup
from edgeserve.runtime import Runtime

pytestmark = pytest.mark.skipif(platform.machine() not in REGISTERS, reason="this machine's register is not known")

FUNCTIONS = """
import numpy as np

def halve(item):
    return {"y": item["x"] * np.float32(0.5)}

def example():
    return {"x": np.zeros(LENGTH, np.float32)}

try:
    import torch
except ImportError:
    pass
else:
    class Half(torch.nn.Module):
        def forward(self, x):
            return x * 0.5
"""

LENGTH = 200_000
"""Numbers of an item: enough that a library gives a part of them to threads of its own."""

SMALL = np.full(LENGTH, 1e-39, np.float32)


def config_of(folder: Path) -> Any:
    (folder / "halves.py").write_text(FUNCTIONS.replace("LENGTH", str(LENGTH)))
    file = onnx_models.scaled(str(folder), [0.5] * LENGTH)
    function = {"engine": "python", "function": "halves:halve", "options": {"example": "halves:example"}}
    models: Dict[str, Any] = {
        "function": function,
        "elsewhere": {**function, "options": {"example": "halves:example", "process": True}},
        "network": {"engine": "onnx", "file": file},
        "network_elsewhere": {"engine": "onnx", "file": file, "options": {"process": True}},
    }
    try:
        import torch  # noqa: F401 whether it is there
    except ImportError:
        pass
    else:
        models["module"] = {"engine": "torch", "function": "halves:Half", "shapes": {"x": [LENGTH]}}
    apps = {name: {"model": name, "slo": "60s"} for name in models}
    return parse_config({"lane": {"cpu0": {"threads": 2}}, "model": models, "app": apps}, str(folder))


def test_every_engine_counts_them_as_zero_and_the_application_computes_as_before(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with Runtime(config) as runtime:
        for app in config.apps:
            answer = runtime.infer(app, {"x": SMALL})
            (values,) = answer.values()
            np.testing.assert_array_equal(values, 0 * SMALL, err_msg=app)
            assert (SMALL * np.float32(0.5) != 0).all(), "numbers of the application's own thread"
    assert (SMALL * np.float32(0.5) != 0).all()


STEPS, STATE = 16, 400_000


def times_as_long(runtime: Runtime) -> float:
    """A step of a stream that went silent beside one of a stream that did not, in turn: the fastest of each, since what
    else the machine does only ever adds."""
    sound = np.random.default_rng(1).random(STATE).astype(np.float32)
    times: Dict[str, List[float]] = {"loud": [], "silent": []}
    runtime.infer("listen", {"x": sound * np.float32(1e-38)}, stream="silent")
    for _ in range(STEPS):
        for stream, x in (("loud", sound), ("silent", 0 * sound)):
            started = time.perf_counter()
            runtime.infer("listen", {"x": x}, stream=stream)
            times[stream].append(time.perf_counter() - started)
    return min(times["silent"]) / min(times["loud"])


def test_a_stream_that_goes_silent_takes_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state fades until it is denormal, and stays so."""
    file = onnx_models.fading(str(tmp_path), STATE)
    ratios = {}
    for flush in (True, False):
        if not flush:
            monkeypatch.setattr(startup, "flush_to_zero", lambda: "")
        config = parse_config(
            {
                "model": {"m": {"engine": "onnx", "file": file, "state": {"state": "stateN"}}},
                "app": {"listen": {"model": "m", "slo": "60s", "stream": "in_order"}},
            },
            str(tmp_path),
        )
        with Runtime(config) as runtime:
            ratios[flush] = times_as_long(runtime)
    if ratios[False] < 2:
        pytest.skip(f"this processor is hardly slower with denormal numbers ({ratios[False]:.1f} times)")
    assert ratios[True] < max(1.5, ratios[False] / 2), ratios
