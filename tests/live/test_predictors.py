"""Hints that an app predicts reach the policy before it decides: embedded, and over the bus."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import Any, Dict, List

import live_functions
import numpy as np
import pytest

from edgeserve.client import Client
from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.errors import EngineError, Rejected
from edgeserve.runtime import Runtime

HERE = str(Path(live_functions.__file__).parent)

SHORT, LONG = np.array([1, 1], np.float32), np.array([1e9, 2e9], np.float32)
NEGATIVE = np.array([-1, 0], np.float32)


def config_of(**server: Any) -> Config:
    """A request has a second, and its ``x`` says how many steps it will need."""
    model = {"engine": "python", "function": "live_functions:echo", "options": {"example": "live_functions:example"}}
    app = {"model": "echo", "slo": "1s", "inputs": {"x": {"shape": [2]}},
           "predict": {"steps": "live_functions:total_of_x"}}
    return parse_config({"policy": {"pard_local": {}}, "model": {"echo": model}, "app": {"echo": app},
                         "server": server}, directory=HERE)


def arrivals(path: Path) -> List[Dict[str, float]]:
    """The hints of the requests in a recording, in their order."""
    events = [event for line in path.read_text().splitlines() for event in json.loads(line).get("events", ())]
    return [event["request"].get("hints", {}) for event in events if "request" in event]


def test_a_predicted_hint_decides_as_a_declared_one_does(tmp_path: Path) -> None:
    """3e9 steps cannot be done in a second: it is refused at arrival, on the prediction alone."""
    live_functions.predicted_on.clear()
    with Runtime(config_of(record=str(tmp_path / "record.jsonl"))) as runtime:
        assert runtime.infer("echo", {"x": SHORT}).outcome == "completed"
        with pytest.raises(Rejected) as refused:
            runtime.infer("echo", {"x": LONG})
        assert refused.value.reason == "cannot_make_deadline"
        assert runtime.infer("echo", {"x": LONG}, hints={"steps": 2}).outcome == "completed"  # its own word counts
        assert runtime.stats()["apps"]["echo"]["failed_predictions"] == {}
        assert runtime.infer("echo", {"x": NEGATIVE}).outcome == "completed"
        assert runtime.stats()["apps"]["echo"]["failed_predictions"] == {"steps": 1}
        runtime.check()
    assert live_functions.predicted_on == [threading.get_ident()] * 3  # the caller's thread
    assert arrivals(tmp_path / "record.jsonl") == [{"steps": 2.0}, {"steps": 3e9}, {"steps": 2}, {}]


def test_over_the_bus_the_loop_s_thread_predicts() -> None:
    live_functions.predicted_on.clear()
    with tempfile.TemporaryDirectory(prefix="es") as folder, \
            Runtime(config_of(endpoint=f"ipc://{folder}/bus/socket"), serve=True) as runtime, \
            Client(runtime.endpoints[0]) as bus:
        assert bus.infer("echo", {"x": SHORT}).outcome == "completed"
        with pytest.raises(Rejected) as refused:
            bus.infer("echo", {"x": LONG})
        assert refused.value.reason == "cannot_make_deadline"
        assert bus.infer("echo", {"x": NEGATIVE}).outcome == "completed"
        assert bus.stats()["apps"]["echo"]["failed_predictions"] == {"steps": 1}
    assert len(set(live_functions.predicted_on)) == 1 and threading.get_ident() not in live_functions.predicted_on


def test_a_predictor_that_cannot_be_imported_is_said_before_anything_starts() -> None:
    app = {"model": "echo", "predict": {"length": "live_functions:missing"}}
    config = parse_config({"model": {"echo": {"engine": "synthetic"}}, "app": {"a": app}}, directory=HERE)
    with pytest.raises(EngineError, match=r"app.a.predict. 'length' = 'live_functions:missing'.*no function 'missing'"):
        Runtime(config)
