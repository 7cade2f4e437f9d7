"""Hints that an app predicts reach the policy before it decides: embedded, and over the bus."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import live_functions
import numpy as np
import pytest
from serving import LIB, function, served, wait_until

from edgeserve.client import Client, TimedOut
from edgeserve.config.loading import parse_config
from edgeserve.errors import Rejected
from edgeserve.runtime import Runtime

SHORT, LONG = np.array([1, 1], np.float32), np.array([1e9, 2e9], np.float32)
NEGATIVE = np.array([-1, 0], np.float32)


def tables_of(**server: Any) -> Dict[str, Any]:
    """A request has a second, and its ``x`` says how many steps it will need."""
    app = {
        "model": "echo",
        "slo": "1s",
        "inputs": {"x": {"shape": [2]}},
        "predict": {"steps": "live_functions:total_of_x"},
    }
    return {
        "policy": {"plan": {}},
        "model": {"echo": function("echo")},
        "app": {"echo": app},
        "server": server,
    }


def arrivals(path: Path) -> List[Dict[str, float]]:
    """The hints of the requests in a recording, in their order."""
    events = [event for line in path.read_text().splitlines() for event in json.loads(line).get("events", ())]
    return [event["request"].get("hints", {}) for event in events if "request" in event]


def test_a_predicted_hint_decides_as_a_declared_one_does(tmp_path: Path) -> None:
    """The most steps cannot be done in a second: it is refused at arrival, on the prediction alone."""
    live_functions.predicted_on.clear()
    with Runtime(parse_config(tables_of(record=str(tmp_path / "record.jsonl")), directory=LIB)) as runtime:
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


def test_over_the_bus_a_thread_of_its_own_predicts() -> None:
    live_functions.predicted_on.clear()
    with served(tables_of()) as (_, bus):
        assert bus.infer("echo", {"x": SHORT}).outcome == "completed"
        with pytest.raises(Rejected) as refused:
            bus.infer("echo", {"x": LONG})
        assert refused.value.reason == "cannot_make_deadline"
        assert bus.infer("echo", {"x": NEGATIVE}).outcome == "completed"
        assert bus.stats()["apps"]["echo"]["failed_predictions"] == {"steps": 1}
        loops = {thread.ident for thread in threading.enumerate() if thread.name == "edgeserve-loop"}  # of others, too
    assert loops
    assert len(set(live_functions.predicted_on)) == 1
    assert not {threading.get_ident(), *loops} & set(live_functions.predicted_on)


@contextlib.contextmanager
def predicting(slo: str = "20s", **server: Any) -> Iterator[Tuple[Runtime, Client]]:
    """A server with an app whose predictor waits at the gate for x[0] = 1 (and takes x[1] seconds), and one without."""
    live_functions.close_gate()
    apps = {
        "guessed": {"model": "echo", "slo": slo, "predict": {"steps": "live_functions:hold_and_count"}},
        "plain": {"model": "echo", "slo": slo},
    }
    tables = {"server": server, "policy": {"plan": {}}, "model": {"echo": function("echo")}, "app": apps}
    with served(tables) as pair:
        yield pair
        live_functions.gate.set()


HOLD = np.array([1, 0], np.float32)


def held(bus: Client, x: Any = HOLD) -> Any:
    """A request whose predictor is at the gate."""
    future = bus.submit("guessed", {"x": x})
    assert live_functions.entered.wait(10)
    return future


def test_the_loop_serves_others_while_a_predictor_runs() -> None:
    with predicting() as (runtime, bus):
        future = held(bus)
        assert bus.infer("plain", {"x": SHORT}).outcome == "completed"
        assert bus.health()["open"] == 1 and bus.stats()["apps"]["guessed"]["accepted"] == 0
        live_functions.gate.set()
        assert future.result(10).outcome == "completed"
        assert bus.stats()["apps"]["guessed"]["predictions"]["count"] == 1
        runtime.check()


def test_a_request_is_cancelled_while_its_predictor_runs() -> None:
    with predicting() as (runtime, bus):
        assert held(bus).cancel()
        with pytest.raises(TimedOut):
            bus.infer("guessed", {"x": SHORT}, timeout_ms=50)  # it waits behind the one at the gate
        wait_until(lambda: bus.stats()["apps"]["guessed"]["outcomes"]["cancelled"] == 2)
        live_functions.gate.set()
        assert bus.infer("guessed", {"x": SHORT}).outcome == "completed"
        assert bus.stats()["apps"]["guessed"]["reasons"] == {"cancelled": {"by_client": 2}}
        runtime.check()


def test_a_client_that_goes_takes_along_what_waits_for_a_prediction() -> None:
    with predicting() as (runtime, bus):
        with Client(runtime.endpoints[0]) as other:
            held(other)
        wait_until(lambda: bus.stats()["apps"]["guessed"]["outcomes"]["cancelled"] == 1)
        assert bus.health()["open"] == 0
        runtime.check()


@pytest.mark.parametrize("embedded", [True, False])
def test_what_a_prediction_takes_counts_as_waiting(embedded: bool) -> None:
    with predicting() as (runtime, bus):
        answer = (runtime if embedded else bus).infer("guessed", {"x": np.array([0, 0.05], np.float32)})
        assert 50 <= answer.breakdown_ms["queue"] <= answer.total_ms
        table = bus.stats()["apps"]["guessed"]["predictions"]
        assert (table["count"], table["went_without"]) == (1, 0) and 50 <= table["mean_ms"] <= answer.total_ms
        assert bus.stats()["apps"]["plain"]["predictions"] == {"count": 0, "mean_ms": 0.0, "went_without": 0}
