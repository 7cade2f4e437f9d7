"""A function's hints for a request are known to the policy when it decides about the next node."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Dict, List, Mapping

import numpy as np
import pytest
from serving import LIB, function

from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.errors import Dropped
from edgeserve.runtime import Runtime
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.events import WorkFinished
from edgeserve.taps.replay import replay
from edgeserve.taps.trace import build_inputs, read_recording

SHORT, LONG = np.array([1, 1], np.float32), np.array([1e9, 2e9], np.float32)
NEGATIVE = np.array([-1, 0], np.float32)


def config_of(record: Path) -> Config:
    """A request has a second; look says how many runs of read it will need. A model of each node, on one lane."""
    app = {
        "slo": "1s",
        "inputs": {"x": {"shape": [2]}},
        "node": [{"name": "look"}, {"name": "read"}],
    }
    models = {"look": function("say"), "read": function("echo")}
    tables = {"policy": {"edf": {}}, "model": models, "app": {"page": app}, "server": {"record": str(record)}}
    return parse_config(tables, directory=LIB)


def said(path: Path) -> List[Mapping[str, float]]:
    """The hints of all results in a recording, in their order."""
    return [
        result.hints
        for step in read_recording(str(path)).steps
        for event in step.events
        if isinstance(event, WorkFinished)
        for result in event.results
    ]


def test_what_a_node_says_decides_about_the_next(tmp_path: Path, caplog: Any) -> None:
    """3e9 runs of read cannot be done in a second: the request is given up when look has said so, before any."""
    record = tmp_path / "record.jsonl"
    config = config_of(record)
    with caplog.at_level(logging.WARNING, "edgeserve"), Runtime(config) as runtime:
        assert runtime.infer("page", {"x": SHORT}).outcome == "completed"
        assert jobs(runtime) == 2
        with pytest.raises(Dropped) as dropped:
            runtime.infer("page", {"x": LONG}, hints={"read.steps": 1})  # it saw more than the client
        assert dropped.value.reason == "cannot_make_deadline"
        assert jobs(runtime) == 3
        for _ in range(2):  # nonsense costs the hint, not the request
            assert runtime.infer("page", {"x": NEGATIVE}).outcome == "completed"
        models = runtime.stats()["models"]
        assert {name: table["ignored_hints"] for name, table in models.items()} == {
            "look": {"read.steps": 2},
            "read": {},
        }
        runtime.check()
    assert len([entry for entry in caplog.records if "'read.steps': 'many'" in entry.getMessage()]) == 1
    look = {"read.work": 0.5}
    assert said(record) == [{**look, "read.steps": 2.0}, {}, {**look, "read.steps": 3e9}, look, {}, look, {}]
    recording = read_recording(str(record))
    assert replay(build_scheduler(config, **build_inputs(recording.start)), recording.steps) is None


def jobs(runtime: Runtime) -> int:
    lanes: Dict[str, Any] = runtime.stats()["lanes"]
    return sum(lane["jobs"] for lane in lanes.values())
