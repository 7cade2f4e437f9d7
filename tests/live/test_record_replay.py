"""A live run's recording, replayed by ``edgeserve simulate --replay``: the same scheduler makes the same decisions."""

from __future__ import annotations

import json

import pytest

from edgeserve import Runtime
from edgeserve.cli import main
from edgeserve.config.loading import load_config
from edgeserve.errors import RequestError

CONFIG = """
[server]
record = "{record}"
[device.cpu]
memory = "3MB"
[lane.cpu0]
[lane.cpu1]
[model.a]
engine = "synthetic"
batch = [1, 2, 4]
expected = {{1 = "2ms", 2 = "3ms", 4 = "5ms"}}
lanes = ["cpu0"]
memory = "2MB"
load = "1ms"
[model.b]
engine = "synthetic"
expected = {{1 = "3ms"}}
memory = "2MB"
load = "1ms"
[app.one]
model = "a"
slo = "40ms"
[app.two]
slo = "90ms"
[[app.two.node]]
name = "a"
[[app.two.node]]
name = "b"
"""


@pytest.fixture
def recorded(tmp_path):
    """A configuration and the recording of a run with bursts, refusals, loads and a cancellation."""
    path, record = tmp_path / "edge.toml", tmp_path / "live.jsonl"
    path.write_text(CONFIG.format(record=record))
    outcomes = set()
    with Runtime(load_config(str(path))) as runtime:
        for _ in range(3):
            futures = [runtime.submit(app, {}) for _ in range(12) for app in ("one", "two")]
            futures[-1].cancel()
            for future in futures[:-1]:
                try:
                    outcomes.add(future.result(10).outcome)
                except RequestError as error:
                    outcomes.add(error.code)
        outcomes.add(runtime.infer("two", {}, on_late="answer").outcome)
    assert "completed" in outcomes
    return str(path), str(record)


def test_a_recorded_live_run_is_decided_again_exactly(recorded, capsys):
    config, record = recorded
    assert main(["simulate", config, "--replay", record]) == 0
    said = capsys.readouterr().out
    assert "every decision is the same" in said
    with open(record, encoding="utf-8") as file:
        kinds = file.read()
    for kind in ("RequestArrived", "WorkFinished", "RunBatch", "LoadModel", "FinishRequest", "DrainRequested"):
        assert kind in kinds, f"the run had no {kind}"


def test_a_recording_that_was_changed_is_noticed(recorded, capsys):
    config, record = recorded
    with open(record, encoding="utf-8") as file:
        lines = file.readlines()
    index = next(i for i, line in enumerate(lines) if '"RunBatch"' in line)
    step = json.loads(lines[index])
    lines[index] = json.dumps(step).replace('"expected_ns": ', '"expected_ns": 9')
    with open(record, "w", encoding="utf-8") as file:
        file.write("".join(line if line.endswith("\n") else line + "\n" for line in lines))
    assert main(["simulate", config, "--replay", record]) == 1
    assert "RunBatch" in capsys.readouterr().out
