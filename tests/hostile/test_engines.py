"""Engines that fail come back, and until they do the server says that it is not ready, and why."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, Dict

import numpy as np
import psutil
import pytest
from serving import wait_until

from edgeserve.client import Client
from edgeserve.config.loading import parse_config
from edgeserve.errors import BadInput, Failed, Quarantined, Rejected
from edgeserve.live.lane_works import LATE_NS_MAX, LOOK_NS, LaneWorks
from edgeserve.offload import remote
from edgeserve.offload.lane_thread import LaneThread
from edgeserve.runtime import Runtime
from edgeserve.sched.protocol.actions import RunBatch

FUNCTIONS = """
import os, sys, threading
import numpy as np

gate = threading.Event()

def example():
    return {"x": np.zeros(1, np.float32)}

def act(item):
    what = int(item["x"][0])
    if what < 0:
        os.kill(os.getpid(), 9)
    if what == 7:
        sys.exit(3)
    if what == 8:
        gate.wait(60)
    return {"y": np.float32(item["x"][0] * VERSION), "pid": np.int64(os.getpid())}

VERSION = 2
"""


def number(value: float) -> Dict[str, Any]:
    return {"x": np.full(1, value, np.float32)}


def config_of(folder: Path, module: str, hang: str = "30s", **options: Any) -> Any:
    (folder / f"{module}.py").write_text(FUNCTIONS)
    return parse_config(
        {
            "server": {"endpoint": f"ipc://{folder}/bus/socket"},
            "lane": {"cpu0": {"hang": hang}},
            "model": {
                "act": {
                    "engine": "python",
                    "function": f"{module}:act",
                    "options": {"example": f"{module}:example", **options},
                }
            },
            "app": {"act": {"model": "act", "slo": "20s"}},
        },
        directory=str(folder),
    )


def test_a_process_that_poison_ended_comes_back_and_refuses_the_poison(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PAUSE_S", 2.5)
    config = config_of(folder, "poisoned", process=True, process_restarts_max=1)
    with Runtime(config, serve=True) as runtime, Client(runtime.endpoints[0]) as client:
        assert client.health()["ready"]
        for _ in range(2):
            with pytest.raises(Failed, match="killed by SIGKILL"):
                client.infer("act", number(-1))
        health = client.health()
        assert not health["ready"] and not health["stopping"]
        assert "its process ended" in health["blocked"]["act"]
        wait_until(lambda: client.health()["ready"])
        assert float(client.infer("act", number(3))["y"]) == 6, "it came back by itself"
        child = int(client.infer("act", number(3))["pid"])
        for _ in range(3):
            with pytest.raises(Quarantined, match="does not run this input again"):
                client.infer("act", number(-1))
        assert int(client.infer("act", number(3))["pid"]) == child, "the poison did not reach it"
        assert runtime.stats()["apps"]["act"]["reasons"]["failed"] == {"model_failed": 2, "quarantined": 3}
    assert not psutil.pid_exists(child)


def test_an_input_that_makes_a_function_exit_fails_alone(folder: Path) -> None:
    with Runtime(config_of(folder, "leaving")) as runtime:
        for _ in range(3):
            with pytest.raises(Failed, match="SystemExit"):
                runtime.infer("act", number(7))
            assert float(runtime.infer("act", number(3))["y"]) == 6
        assert runtime.stats()["lanes"]["cpu0"]["state"] == "up"


def test_a_lane_that_hangs_for_good_gets_another_thread(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edgeserve")
    with Runtime(config_of(folder, "hanging", "1500ms"), serve=True) as runtime, Client(runtime.endpoints[0]) as client:
        import hanging  # type: ignore[import-not-found]  # the functions of this server, in this process

        with pytest.raises(Failed, match="hangs"):
            client.infer("act", number(8))
        health = client.health()
        assert not health["ready"] and "lane cpu0" in health["blocked"]["act"]
        wait_until(lambda: client.health()["ready"])
        assert float(client.infer("act", number(3))["y"]) == 6
        assert runtime.stats()["lanes"]["cpu0"]["replaced"] == 1
        hanging.gate.set()  # the call returns after all: without effect
        time.sleep(0.1)
        assert float(client.infer("act", number(3))["y"]) == 6
        assert runtime.stats()["open"] == 0
        runtime.check()
    assert "lane cpu0 hangs in model act: another thread takes its place" in caplog.text


def test_a_lane_whose_other_thread_is_lost_too_does_not_come_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_cores() -> None:
        raise OSError("no such cores")

    caplog.set_level(logging.INFO, "edgeserve")
    with Runtime(config_of(folder, "hanging_twice", "1500ms")) as runtime:
        monkeypatch.setattr("edgeserve.live.startup._pinning", lambda config, lane: no_cores)
        with pytest.raises(Failed, match="hangs"):
            runtime.infer("act", number(8))
        wait_until(lambda: "no such cores" in caplog.text)
        time.sleep(1.0)  # the model is made anew meanwhile
        assert runtime.stats()["lanes"]["cpu0"]["state"] == "down"
        with pytest.raises(Rejected, match="no_lane"):
            runtime.infer("act", number(3), slo_ms=20_000)


def test_a_server_that_was_stopped_for_a_while_does_not_blame_its_lanes() -> None:
    action = RunBatch(1, "a", "m", (), 1, 0, 2**62, 10**6)
    config = parse_config({"lane": {"a": {"hang": "100ms"}}, "model": {"m": {"engine": "synthetic", "batch": [1]}}})
    works = LaneWorks(
        config, {"a": LaneThread("a", print, time.monotonic_ns)}, lambda name: LaneThread(name, print, lambda: 0)
    )
    works.gave(action, 0)
    pause_ns = 3600 * 10**9
    assert works.look(LOOK_NS) == []
    assert works.look(pause_ns) == [], "overdue, but not looked at in time"
    assert works.look(pause_ns + LATE_NS_MAX + 1) == [], "nor now"
    assert works.look(pause_ns + LATE_NS_MAX + 1 + LOOK_NS) == ["a"]
    assert works.replace("a") == [action]
    assert works.answered(action) is None, "what it says later is ignored"
    works.lanes["a"].stop()


@pytest.mark.parametrize("options", [{}, {"process": True}])
def test_a_model_is_reloaded_while_it_serves(folder: Path, options: Dict[str, Any]) -> None:
    module = "reloaded_there" if options else "reloaded_here"
    with Runtime(config_of(folder, module, **options), serve=True) as runtime, Client(runtime.endpoints[0]) as client:
        before = client.infer("act", number(3))
        # Of another length: Python takes the bytecode of a source that has the same second and the same length.
        (folder / f"{module}.py").write_text(FUNCTIONS.replace("VERSION = 2", "VERSION = 5  # mended"))
        futures = [client.submit("act", number(3)) for _ in range(50)]
        assert client.reload("act") == {"model": "act", "devices": ["cpu"], "failed": {}}
        assert {float(future.result(20)["y"]) for future in futures} <= {6.0, 15.0}, "no call was lost on the way"
        after = client.infer("act", number(3))
        if options:  # a process of its own reads its functions anew
            assert float(after["y"]) == 15 and int(after["pid"]) != int(before["pid"])
            wait_until(lambda: not psutil.pid_exists(int(before["pid"])))
        with pytest.raises(BadInput, match="did you mean 'act'"):
            client.reload("acd")
        runtime.check()


def test_a_reload_that_fails_leaves_the_old_one_in_its_place(folder: Path) -> None:
    with Runtime(config_of(folder, "mended", process=True), serve=True) as runtime, Client(
        runtime.endpoints[0]
    ) as client:
        (folder / "mended.py").write_text("raise ValueError('half written')")
        told = client.reload("act")
        assert "half written" in told["failed"]["cpu"]
        assert float(client.infer("act", number(3))["y"]) == 6
        assert "configuration" in client.reload()["failed"]  # it was not read from a file
