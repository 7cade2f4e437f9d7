"""The records of an ensemble's requests, and the requests that are left out."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, Optional

import numpy as np
import pytest

from edgeserve.config.loading import parse_config
from edgeserve.engines.base import Result
from edgeserve.errors import ConfigError
from edgeserve.live.request import LiveRequest, request_of_call
from edgeserve.predict.serving import history_recorder
from edgeserve.predict.serving.history_recorder import AppRecords, HistoryRecorder, recorded_apps
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import JobId

NODES = [
    {"name": "look", "after": []},
    {"name": "a", "after": ["look"]},
    {"name": "b", "after": ["look"]},
    {"name": "vote", "after": ["a", "b"], "join": "policy", "inputs": {"a": "a.p", "b": "b.p"}},
]


def config(directory: pathlib.Path, **app: Any) -> Any:
    return parse_config(
        {
            "policy": {"plan": {}},
            "model": {name: {"engine": "synthetic"} for name in ("look", "a", "b", "vote")},
            "app": {"q": {"node": NODES, "history": "h.npz", "inputs": {"x": {"shape": [-1]}}, **app}},
        },
        directory=str(directory),
    )


def records(directory: pathlib.Path, **app: Any) -> AppRecords:
    return recorded_apps(config(directory, **app))["q"]


def request(**inputs: Any) -> LiveRequest:
    made = request_of_call("q", inputs)
    made.values = {("look", ()): {"features": np.arange(3)}}
    return made


def said(table: AppRecords, node: str, **outputs: Any) -> Optional[Any]:
    return table.said(JobId(1, node, ()), Result({name: np.asarray(value) for name, value in outputs.items()}))


def begun(table: AppRecords, **inputs: Any) -> bool:
    return table.begin(JobId(1, "a", ()), request(**inputs))


@pytest.mark.parametrize(("features", "expected"), [("request.x", [7, 8]), ("look.features", [0, 1, 2]), ("", None)])
def test_a_record_is_whole_when_all_models_have_spoken(tmp_path: pathlib.Path, features: str, expected: Any) -> None:
    table = records(tmp_path, history_features=features)
    assert begun(table, x=np.array([7, 8], np.float32))
    assert said(table, "look", p=[9, 9]) is None
    assert said(table, "b", other=[5, 5], p=[0.2, 0.8]) is None
    record = said(table, "a", p=[[0.6], [0.4]])
    assert record is not None and record[0] == pytest.approx(np.array([[0.6, 0.4], [0.2, 0.8]]))
    assert (record[1] if record[1] is None else record[1].tolist()) == expected
    assert said(table, "a", p=[0.6, 0.4]) is None  # a probe of what has spoken meanwhile


@pytest.mark.parametrize("wrong", [{"p": [0.1, 0.2, 0.7]}, {"p": "text"}, {"p": [float("nan"), 1]}, {"z": [1, 0]}])
def test_an_output_of_no_use_leaves_the_request_out(
    tmp_path: pathlib.Path, wrong: Dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    table = records(tmp_path)
    for _ in range(2):
        assert begun(table)
        said(table, "a", p=[0.5, 0.5])
        assert said(table, "b", **wrong) is None
        assert said(table, "b", p=[0.5, 0.5]) is None
    assert table.left_out == 2
    assert len([line for line in caplog.messages if "node 'b'" in line]) == 1


def test_features_of_no_use_leave_the_request_out(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    table = records(tmp_path, history_features="request.x")
    assert not begun(table)
    assert not begun(table, x="text")
    assert not begun(table, x=np.zeros(history_recorder.VALUES_MAX + 1))
    assert table.left_out == 3 and "history_features" in caplog.text


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("x", "expected 'request.NAME'"),
        ("request.y", "declares no 'y'"),
        ("a.p", "a node before the models"),
        ("request.", "expected 'request.N"),
    ],
)
def test_features_that_cannot_be_are_refused_before_anything_is_loaded(
    tmp_path: pathlib.Path, named: str, said: str
) -> None:
    with pytest.raises(ConfigError, match="history_features") as refused:
        records(tmp_path, history_features=named)
    assert said in str(refused.value)


def test_requests_that_never_become_whole_are_bounded(tmp_path: pathlib.Path) -> None:
    table = records(tmp_path)
    for number in range(history_recorder.OPEN_MAX + 5):
        assert table.begin(JobId(number, "a", ()), request())
    assert table.left_out == 5


def test_a_batch_may_hold_requests_of_several_apps_and_some_that_failed(tmp_path: pathlib.Path) -> None:
    apps = recorded_apps(config(tmp_path))
    recorder = HistoryRecorder(apps)
    jobs = (JobId(1, "a", ()), JobId(2, "a", ()), JobId(3, "other", ()))
    recorder.begin(jobs[0], request())
    recorder.begin(jobs[1], request())
    result = Result({"p": np.array([1.0, 0.0])})
    recorder.said(RunBatch(1, "cpu0", "a", jobs, 4, 0, 10, 5, None), [result, ValueError("no"), result])
    recorder.said(RunBatch(2, "cpu0", "a", jobs, 4, 0, 10, 5, None), ValueError("no list at all"))
    for job in jobs[:2]:
        recorder.said(RunBatch(3, "cpu0", "b", (job._replace(node="b"),), 1, 0, 10, 5, None), [result])
    recorder.close()
    assert (len(apps["q"].file), recorder.table("q")["history"]["records"]) == (1, 1)
    assert recorder.table("other") == {} and (tmp_path / "h.npz").exists()
