"""Engines of one's own, served: sessions on the lanes' threads, several batches launched, a lost device, loads at run
time, and the other commands that meet them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List

import live_engines
import numpy as np
import pytest

from edgeserve.cli import main
from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.errors import Failed, Rejected
from edgeserve.live.world import LostDevice
from edgeserve.runtime import Runtime

HERE = str(Path(live_engines.__file__).parent)
X = np.arange(4, dtype=np.float32)
LOSE = np.array([1, 0, 0, 0], np.float32)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    live_engines.forget()


def device(**more: Any) -> Dict[str, Any]:
    return {"engine": "live_engines:Device", **more}


def config_of(models: Dict[str, Any], **sections: Any) -> Config:
    apps = {name: {"model": name, "slo": "20s"} for name in models}
    return parse_config({"model": models, "app": apps, **sections}, directory=HERE)


def threads(what: str, model: str) -> Any:
    return [thread for done, name, thread in live_engines.calls if (done, name) == (what, model)]


def test_every_lane_opens_its_own_session_on_its_own_thread() -> None:
    with Runtime(config_of({"m": device()}, lane={"a": {}, "b": {}})) as runtime:
        assert np.array_equal(runtime.infer("m", {"x": X})["y"], X * 2)
    assert threads("load", "m") == ["edgeserve-copy:cpu"]
    assert threads("open", "m") == ["edgeserve-a", "edgeserve-b"]
    assert set(threads("launch", "m")) == {"edgeserve-a", "edgeserve-b"}


def test_a_start_opens_one_session_of_a_model_on_a_gpu_where_each_may_reserve_memory() -> None:
    own = {"device": {"gpu": {"kind": "cuda"}}, "lane": {"gpu0": {"device": "gpu"}}}
    with Runtime(config_of({"m": device(batch=[1, 2])}, **own)) as runtime:
        assert np.array_equal(runtime.infer("m", {"x": X})["y"], X * 2)
    assert threads("open", "m") == ["edgeserve-gpu0"]


def test_a_lost_device_takes_its_lane_down_and_what_waited_goes_elsewhere() -> None:
    models = {"m": device(options={"lost": "a"})}
    with Runtime(config_of(models, lane={"a": {"depth": 2}, "b": {}}, policy={"fifo": {}})) as runtime:
        futures = [runtime.submit("m", {"x": LOSE}) for _ in range(6)]
        ends = []
        for future in futures:
            try:
                ends.append(bool(np.array_equal(future.result(10)["y"], LOSE * 2)))
            except Failed as error:
                ends.append(str(error))
        lost = [end for end in ends if end is not True]
        assert len(lost) == 1 and "fell off the bus" in str(lost[0])
        assert runtime.stats()["lanes"]["a"]["state"] == "down"
        assert runtime.stats()["lanes"]["b"]["state"] == "up"
        assert np.array_equal(runtime.infer("m", {"x": X})["y"], X * 2)
        runtime.check()


def test_an_application_is_told_of_a_lost_device_once_and_goes_on() -> None:
    told: List[LostDevice] = []

    def take(lost: LostDevice) -> None:
        told.append(lost)
        raise ValueError("a fault of the application's own")

    runtime = Runtime(config_of({"m": device(options={"lost": "a"})}, lane={"a": {}}))
    runtime.on_device_lost = take
    with runtime:
        for _ in range(2):
            with pytest.raises((Failed, Rejected)):
                runtime.infer("m", {"x": LOSE})
        assert [(lost.device, lost.lane) for lost in told] == [("cpu", "a")]
        assert "fell off the bus" in told[0].reason
        assert "a" in runtime.stats()["lanes"]  # the loop lives


def test_a_model_that_is_loaded_at_run_time_warms_up_on_the_lane_that_will_run_it() -> None:
    models = {name: device(memory="10MiB", batch=[1, 2]) for name in ("one", "two")}
    with Runtime(config_of(models, device={"cpu": {"memory": "10MiB"}})) as runtime:
        assert np.array_equal(runtime.infer("one", {"x": X})["y"], X * 2)
        live_engines.calls.clear()
        assert np.array_equal(runtime.infer("two", {"x": X})["y"], X * 2)
        assert runtime.stats()["devices"]["cpu"]["models"] == ["two"]
        runtime.check()
    assert [call for call in live_engines.calls if call[1] == "two"][:4] == [
        ("load", "two", "edgeserve-copy:cpu"),
        ("open", "two", "edgeserve-cpu0"),
        ("launch", "two", "edgeserve-cpu0"),
        ("launch", "two", "edgeserve-cpu0"),
    ]
    assert ("unload", "one", "edgeserve-copy:cpu") in live_engines.calls


EDGE = """
[policy.edf]
[app.a]
model = "m"
slo = "100ms"
[model.m]
engine = "own_device:Device"
"""


@pytest.fixture
def edge(tmp_path: Path) -> str:
    (tmp_path / "own_device.py").write_text(Path(live_engines.__file__).read_text(encoding="utf-8"))
    (tmp_path / "edge.toml").write_text(EDGE)
    return str(tmp_path / "edge.toml")


def test_doctor_profile_and_simulate_know_an_engine_of_ones_own(edge: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", edge]) in (0, 1)
    assert "own_device" not in capsys.readouterr().out  # nothing is wrong with it
    assert main(["profile", edge, "--seconds", "0.1", "--json"]) == 0
    (profile,) = Path(os.path.dirname(edge), "profiles").rglob("m.json")
    assert f'"median_ns": {live_engines.BATCH_NS}' in profile.read_text(encoding="utf-8")
    scenario = Path(os.path.dirname(edge), "scenario.toml")
    scenario.write_text('config = "edge.toml"\n[run]\nduration = "1s"\nseeds = 1\n[workload.w]\napp = "a"\nrate = 50\n')
    assert main(["simulate", str(scenario)]) == 0
    capsys.readouterr()


def test_an_engine_that_cannot_be_found_is_said_with_its_key(edge: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(edge)
    path.write_text(path.read_text(encoding="utf-8").replace(":Device", ":Devise"))
    assert main(["doctor", edge]) == 1
    assert "[model.m] engine = 'own_device:Devise'" in capsys.readouterr().out


def test_a_deep_lane_counts_as_idle_until_it_is_full() -> None:
    """While no lane is idle, messages wait to be read together: what a deep lane could launch must not."""
    with Runtime(config_of({"m": device()}, lane={"cpu0": {"depth": 2}})) as runtime:
        seen = set()
        futures = [runtime.submit("m", {"x": X}) for _ in range(30)]
        while not all(future.done() for future in futures):
            seen.add(runtime._ask(lambda core: (len(core.world.works.counts["cpu0"].in_flight), core.world.works.idle)))
        assert seen <= {(0, 1), (1, 1), (2, 0)} and (2, 0) in seen
        assert runtime._ask(lambda core: core.world.works.idle) == 1
