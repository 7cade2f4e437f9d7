"""An ensemble's history recorded while it serves, fitted, and served with the fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Mapping

import ensemble_functions
import numpy as np
import pytest
from serving import function, wait_until

from edgeserve.cli import main
from edgeserve.config.loading import parse_config
from edgeserve.predict.history import load_history
from edgeserve.predict.recorded import RecordedHistory
from edgeserve.predict.serving import history_recorder
from edgeserve.runtime import Runtime

LIB = str(Path(ensemble_functions.__file__).parent)
NODES = ("plain", "careful", "other")


def config(history: Path, policy: Mapping[str, Any] = {"kind": "plan"}, **app: Any) -> Any:
    nodes = [{"name": name, "after": [], "inputs": {"x": "request.x"}} for name in NODES]
    nodes.append(
        {
            "name": "vote",
            "after": list(NODES),
            "join": "policy",
            "inputs": {name: f"{name}.probabilities" for name in NODES},
        }
    )
    models = {name: function(name, home="ensemble_functions", lanes=["cpu0"]) for name in NODES}
    models["vote"] = function("vote", "example_vote", "ensemble_functions", lanes=["cpu1"])
    return parse_config(
        {
            "lane": {"cpu0": {}, "cpu1": {}},
            "policy": {"main": policy},
            "model": models,
            "app": {
                "q": {
                    "slo": "20s",
                    "on_late": "partial",
                    "node": nodes,
                    "inputs": {"x": {"shape": [4]}},
                    "history": str(history),
                    "history_share": 1.0,
                    **app,
                }
            },
        },
        directory=LIB,
    )


def asked(number: int) -> Any:
    """Request ``number``: how hard it is, its class, two numbers that say nothing."""
    return np.array([number % 10 / 10, number % 3, 1, number], np.float32)


def recorded(runtime: Runtime) -> Dict[str, Any]:
    table: Dict[str, Any] = runtime.stats()["apps"]["q"]["history"]
    return table


def wait_for(runtime: Runtime, records: int) -> None:
    wait_until(lambda: recorded(runtime)["records"] == records, 60)


def serve(runtime: Runtime, count: int) -> None:
    """One request after the other, each recorded before the next is asked."""
    for number in range(count):
        runtime.infer("q", {"x": asked(number)})
        wait_for(runtime, number + 1)


def test_what_is_served_is_recorded_fitted_and_served_with_the_fit(tmp_path: Path) -> None:
    place = tmp_path / "q.npz"
    with Runtime(config(place, history_features="request.x")) as runtime:
        serve(runtime, 60)
        assert recorded(runtime) == {"file": str(place), "records": 60, "left_out": 0, "stopped": ""}
        runtime.check()
    history = load_history(str(place))
    assert history.models == NODES and history.task == "classification" and history.features is not None
    order = np.argsort(history.features[:, 3])
    for row, number in zip(order, range(60)):
        assert history.features[row].tolist() == asked(number).tolist()
        expected = [getattr(ensemble_functions, name)({"x": asked(number)})["probabilities"] for name in NODES]
        assert history.outputs[row] == pytest.approx(np.stack(expected))

    with np.load(place) as stored:  # a fit without the network, which needs more libraries
        np.savez(tmp_path / "plain.npz", **{name: stored[name] for name in ("models", "outputs", "task")})
    fitted = tmp_path / "q.ensemble.json"
    assert main(["profile", "--fit", f"q={tmp_path / 'plain.npz'}", "--out", str(fitted)]) == 0
    with Runtime(config(place, ensemble=str(fitted), history_share=0.0)) as runtime:
        answer = runtime.infer("q", {"x": asked(0)})
        assert 0 < answer.quality <= 1
        assert "history" not in runtime.stats()["apps"]["q"]


def test_models_that_a_request_was_answered_without_run_when_the_lane_idles(tmp_path: Path) -> None:
    """One model makes every answer, so that the others of each record were probes."""
    place = tmp_path / "q.npz"
    one = {"kind": "ensemble_static", "pick": "static", "models": list(NODES[:1])}
    with Runtime(config(place, one)) as runtime:
        for number in range(20):
            assert len(runtime.infer("q", {"x": asked(number)}).branches) == 1
            wait_for(runtime, number + 1)
        assert runtime.stats()["lanes"]["cpu0"]["probes"] == 40
        world = runtime._core.world  # type: ignore[union-attr]
        assert (len(world.retained), world.retained.bytes) == (0, 0)
        runtime.check()
    again = RecordedHistory(str(place), NODES, 15)
    assert (again.load(), len(again)) == ("", 15)  # the latest


def test_a_disk_that_cannot_be_written_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: RecordedHistory) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordedHistory, "write", full)
    monkeypatch.setattr(history_recorder, "WRITE_ROWS", 2)
    with Runtime(config(tmp_path / "q.npz")) as runtime:
        serve(runtime, 2)
        wait_until(lambda: "No space left" in recorded(runtime)["stopped"])
        assert "serving goes on" in caplog.text
        assert [runtime.infer("q", {"x": asked(number)}).outcome for number in range(5)] == ["completed"] * 5
        assert recorded(runtime)["records"] == 2
        runtime.check()
    assert not (tmp_path / "q.npz").exists()


def test_another_configuration_goes_on_with_the_file_of_the_first(tmp_path: Path) -> None:
    place = tmp_path / "q.npz"
    with Runtime(config(place)) as runtime:
        serve(runtime, 3)
        runtime.reload(config(place, value=2.0))
        wait_for(runtime, 3)
        runtime.infer("q", {"x": asked(3)})
        wait_for(runtime, 4)
        runtime.infer("q", {"x": asked(4)})
        runtime.check()
    again = RecordedHistory(str(place), NODES, 100)
    assert (again.load(), len(again)) == ("", 5)
