"""The embedded runtime, whole: real lanes, real threads, the real scheduler, host functions as models."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import live_functions
import numpy as np
import pytest
from serving import function, wait_until

from edgeserve.config.loading import load_config, parse_config
from edgeserve.config.schema import Config
from edgeserve.errors import (
    BadInput,
    ConfigError,
    EngineError,
    Failed,
    Rejected,
)
from edgeserve.runtime import Runtime

HERE = str(Path(live_functions.__file__).parent)

X = np.arange(4, dtype=np.float32)
ZERO = np.zeros(4, np.float32)
HOLD = np.array([1, 0, 0, 0], np.float32)


@pytest.fixture(autouse=True)
def _gates() -> Iterator[None]:
    live_functions.close_gate()
    yield
    live_functions.gate.set()


def config_of(models: Dict[str, Any], apps: Dict[str, Any] | None = None, **sections: Any) -> Config:
    apps = apps or {name: {"model": name, "slo": "20s"} for name in models}
    return parse_config({"model": models, "app": apps, **sections}, directory=HERE)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_infer_gives_arrays_in_and_out_without_a_copy() -> None:
    with Runtime(config_of({"echo": function("echo")})) as runtime:
        answer = runtime.infer("echo", {"x": X})
        assert answer["x"] is X
        assert (answer.outcome, answer.late, answer.reason) == ("completed", False, "")
        assert set(answer.breakdown_ms) == {"queue", "load", "batch", "execute", "other"}
        assert sum(answer.breakdown_ms.values()) == pytest.approx(answer.total_ms)
        runtime.check()


class Tensor:
    """Another library's: it offers its memory, and is no array."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **how: Any) -> Any:
        if self._array is None:
            raise BufferError("it lies on a GPU")
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return X.__dlpack_device__()


@pytest.mark.skipif(not hasattr(np, "from_dlpack"), reason="numpy before 1.22")
def test_tensors_of_other_libraries_are_read_where_they_lie() -> None:
    apps = {"echo": {"model": "echo", "slo": "20s", "inputs": {"x": {"dtype": "float32", "shape": [4]}}}}
    with Runtime(config_of({"echo": function("echo")}, apps)) as runtime:
        assert np.shares_memory(runtime.infer("echo", {"x": Tensor(X)})["x"], X)
        with pytest.raises(BadInput, match="'x' is float64"):
            runtime.infer("echo", {"x": Tensor(np.zeros(4))})
        with pytest.raises(BadInput, match=r"a Tensor that numpy cannot read in place .*GPU.*x.detach\(\).cpu\(\)"):
            runtime.infer("echo", {"x": Tensor(None)})


def test_many_threads_submit_at_once_and_each_gets_its_own_answer() -> None:
    with Runtime(config_of({"double": function("double", batch=[1, 2, 4, 8])})) as runtime:
        wrong: List[int] = []

        def ask(first: int) -> None:
            futures = [(k, runtime.submit("double", {"x": X + k})) for k in range(first, first + 100)]
            wrong.extend(k for k, future in futures if not np.array_equal(future.result(20)["y"], 2 * (X + k)))

        threads = [threading.Thread(target=ask, args=(1000 * index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert wrong == []
        stats = runtime.stats()
        assert stats["apps"]["double"]["outcomes"]["completed"] == 400
        assert stats["open"] == 0 and stats["lanes"]["cpu0"]["jobs"] == 400
        assert stats["apps"]["double"]["latency_ms"]["p99"] > 0
        sizes = stats["models"]["double"]["latency"]["cpu0"]["sizes"]
        times = max(sizes.values(), key=lambda item: item["measured"] * (item["source"] == "live"))
        assert (times["source"], times["measured"]) == ("live", 10)  # of at least 50 batches in four sizes
        assert times["age_ms"] >= 0 and 0 < times["typical_ms"] <= times["likely_ms"]
        runtime.check()


def test_a_pipeline_fans_out_over_lanes_and_gathers_in_order() -> None:
    config = config_of(
        {
            "cut": function("cut", lanes=["host"]),
            "times": function("times", "example_piece", batch=[1, 2, 4]),
            "join": function("join", "example_join", lanes=["host"]),
        },
        {
            "pieces": {
                "slo": "20s",
                "node": [
                    {"name": "cut", "fan_out": True},
                    {"name": "times"},
                    {"name": "join", "gather": True, "inputs": {"values": "times.value", "indexes": "cut.index"}},
                ],
            }
        },
        lane={"host": {}, "cpu0": {}},
    )
    with Runtime(config) as runtime:
        answer = runtime.infer("pieces", {"x": X})
        assert (answer["sum"], answer["order"]) == (60.0, [0, 1, 2, 3])
        assert runtime.infer("pieces", {"x": X[:0]})["order"] == []


def test_streams_keep_their_state_apart_and_in_order() -> None:
    models = {"sum": function("sum_up", options={"stateful": True})}
    apps = {"sum": {"model": "sum", "slo": "20s", "stream": "in_order"}}
    with Runtime(config_of(models, apps)) as runtime:
        ones = [runtime.submit("sum", {"x": np.full(4, 1, np.float32)}, stream="a") for _ in range(5)]
        tens = [runtime.submit("sum", {"x": np.full(4, 10, np.float32)}, stream="b") for _ in range(5)]
        assert [float(future.result(10)["total"]) for future in ones] == [1, 2, 3, 4, 5]
        assert [float(future.result(10)["total"]) for future in tens] == [10, 20, 30, 40, 50]
        assert runtime.stats()["streams_with_state"] == 2


def test_late_answers_come_when_they_are_wanted() -> None:
    with Runtime(config_of({"request": function("request")})) as runtime:
        future = runtime.submit("request", {"x": HOLD}, slo_ms=1, on_late="answer")
        assert live_functions.entered.wait(10)
        time.sleep(0.002)
        live_functions.gate.set()
        answer = future.result(10)
        assert answer.late and answer["x"] is HOLD


# --- what is refused --------------------------------------------------------------------------------------------------


# --- cancelling -------------------------------------------------------------------------------------------------------


# --- trouble ----------------------------------------------------------------------------------------------------------


def test_an_engine_that_raises_fails_only_its_batch() -> None:
    with Runtime(config_of({"double": function("double")})) as runtime:
        bad = runtime.submit("double", {"x": -1 - X})
        good = [runtime.submit("double", {"x": X + k}) for k in range(5)]
        with pytest.raises(Failed, match="negative input"):
            bad.result(10)
        assert [float(future.result(10)["y"][0]) for future in good] == [0, 2, 4, 6, 8]
        assert runtime.stats()["lanes"]["cpu0"]["failed"] == 1


def test_a_bad_request_fails_alone_in_its_batch_and_leaves_its_streams_state() -> None:
    def ask(stream: str, x: float) -> Any:
        return runtime.submit("sum", {"x": np.full(4, x, np.float32)}, stream=stream)

    model = function("sum_up_held", batch=[1, 4], options={"stateful": True})
    apps = {"sum": {"model": "sum", "slo": "20s", "stream": "in_order"}}
    with Runtime(config_of({"sum": model}, apps, policy={"fifo": {}})) as runtime:  # what waits runs together
        assert [ask(stream, 5).result(10)["total"] for stream in "abc"] == [5, 5, 5]
        holding = runtime.submit("sum", {"x": HOLD}, stream="z")
        assert live_functions.entered.wait(10)
        together = [ask("a", 2), ask("b", -2), ask("c", 3)]
        wait_until(lambda: runtime.stats()["apps"]["sum"]["accepted"] == 7)
        live_functions.gate.set()
        with pytest.raises(Failed, match="sum_up_held raised ValueError on item 1: negative input"):
            together[1].result(10)
        assert [float(together[index].result(10)["total"]) for index in (0, 2)] == [7, 8]
        assert holding.result(10)["total"] == 1
        assert ask("b", 4).result(10)["total"] == 9  # b's state is what its last good request left
        lane = runtime.stats()["lanes"]["cpu0"]
        assert (lane["works"], lane["jobs"], lane["failed"]) == (6, 8, 0)
        runtime.check()


def test_a_lane_that_hangs_is_reported_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(
        {"request": function("request", lanes=["slow"]), "double": function("double", lanes=["cpu0"])},
        lane={"slow": {"hang": "100ms"}, "cpu0": {}},
    )
    runtime = Runtime(config).start()
    stuck = runtime.submit("request", {"x": HOLD})
    with pytest.raises(Failed, match="slow"):
        stuck.result(10)
    assert runtime.infer("double", {"x": X})["y"][1] == 2
    assert runtime.stats()["lanes"]["slow"]["state"] == "hangs"
    runtime.stop()
    assert any("slow" in record.message and "abandoned" in record.message for record in caplog.records)
    live_functions.gate.set()


def test_a_lane_comes_back_when_its_work_returns_after_all() -> None:
    config = config_of({"request": function("request")}, lane={"cpu0": {"hang": "100ms"}})
    with Runtime(config) as runtime:
        stuck = runtime.submit("request", {"x": HOLD})
        with pytest.raises(Failed):
            stuck.result(10)
        live_functions.gate.set()
        wait_until(lambda: runtime.stats()["lanes"]["cpu0"]["state"] == "up")
        assert runtime.infer("request", {"x": ZERO})["x"] is ZERO
        runtime.check()


def test_system_exit_in_an_engine_fails_its_request_and_nothing_else() -> None:
    config = config_of(
        {"leave": function("leave", lanes=["a"]), "double": function("double", lanes=["b"])}, lane={"a": {}, "b": {}}
    )
    with Runtime(config) as runtime:
        with pytest.raises(Failed, match="SystemExit"):
            runtime.infer("leave", {"x": HOLD})
        assert runtime.infer("leave", {"x": ZERO})["x"] is ZERO, "the lane goes on"
        assert runtime.stats()["lanes"]["a"]["state"] == "up"
        assert runtime.infer("double", {"x": X})["y"][1] == 2


def test_a_fault_in_the_loop_ends_every_request_and_is_raised_at_stop() -> None:
    runtime = Runtime(config_of({"request": function("request")})).start()
    waiting = runtime.submit("request", {"x": HOLD})
    assert live_functions.entered.wait(10)
    assert runtime._core is not None

    def broken(action: Any) -> Any:
        raise AssertionError("a planted bug")

    runtime._core.world.perform = broken  # type: ignore[method-assign]
    other = runtime.submit("request", {"x": ZERO})
    live_functions.gate.set()
    for future in (waiting, other):
        with pytest.raises(Failed, match="planted bug"):
            future.result(10)
    with pytest.raises(Failed, match="planted bug"):
        runtime.submit("request", {"x": ZERO}).result(10)
    with pytest.raises(AssertionError, match="planted bug"):
        runtime.stop()


# --- starting and stopping --------------------------------------------------------------------------------------------


def test_stop_lets_accepted_requests_end_and_accepts_no_others() -> None:
    runtime = Runtime(config_of({"request": function("request")})).start()
    futures = [runtime.submit("request", {"x": HOLD}), runtime.submit("request", {"x": ZERO})]
    assert live_functions.entered.wait(10)
    runtime.ask_to_stop()
    with pytest.raises(Rejected) as caught:
        runtime.infer("request", {"x": ZERO})
    assert caught.value.reason == "draining"
    live_functions.gate.set()
    assert [len(future.result(10)["x"]) for future in futures] == [4, 4]
    runtime.stop()
    with pytest.raises(Rejected) as caught:
        runtime.submit("request", {"x": ZERO}).result(10)
    assert caught.value.reason == "stopped"
    assert runtime.stats()["open"] == 0


def test_an_engine_that_cannot_load_is_said_at_start_and_no_thread_stays() -> None:
    before = set(threading.enumerate())
    with pytest.raises(EngineError, match="no function or class 'nothing'"):
        Runtime(config_of({"echo": {"engine": "python", "function": "live_functions:nothing"}})).start()
    wait_until(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(ConfigError, match=r"inputs.x = 'request.y'"):
        Runtime(
            config_of(
                {"echo": function("echo")},
                {"a": {"node": [{"name": "echo", "inputs": {"x": "request.y"}}], "inputs": {"x": {}}}},
            )
        )


def test_models_beyond_the_budget_are_loaded_on_demand_and_others_make_room() -> None:
    models = {name: function("echo", memory="10MiB") for name in ("one", "two", "three")}
    with Runtime(config_of(models, device={"cpu": {"memory": "20MiB"}})) as runtime:
        assert runtime.stats()["devices"]["cpu"]["models"] == ["one", "two"]
        assert runtime.infer("three", {"x": X})["x"] is X
        resident = runtime.stats()["devices"]["cpu"]["models"]
        assert "three" in resident and len(resident) == 2
        for name in models:
            assert runtime.infer(name, {"x": X})["x"] is X
        assert runtime.stats()["lanes"]["copy:cpu"]["works"] >= 2
        runtime.check()


def test_an_idle_runtime_costs_nothing_and_opens_no_socket(tmp_path: Path) -> None:
    (tmp_path / "edge.toml").write_text(
        '[model.echo]\nengine = "python"\nfunction = "live_functions:echo"\n'
        'options = { example = "live_functions:example" }\n'
        '[app.echo]\nmodel = "echo"\n'
    )
    (tmp_path / "live_functions.py").write_text(Path(HERE, "live_functions.py").read_text())
    assert load_config(str(tmp_path / "edge.toml")).apps
    code = (
        "import sys, time, numpy as np, edgeserve\n"
        "with edgeserve.Runtime(sys.argv[1]) as runtime:\n"
        "    runtime.infer('echo', {'x': np.ones(4)})\n"
        "    began = time.process_time(); time.sleep(1.0)\n"
        "    print(time.process_time() - began, 'zmq' in sys.modules, 'onnxruntime' in sys.modules)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "edge.toml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.split()
    assert float(said[0]) < 0.01, "idle CPU must stay under 1 % of a core"
    assert said[1:] == ["False", "False"]
