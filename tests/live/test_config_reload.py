"""Another configuration while the server runs: apps, policies and models change, no accepted request is lost."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from edgeserve.client import Client
from edgeserve.config.loading import load_config, parse_config
from edgeserve.engines.synthetic import SyntheticEngine
from edgeserve.errors import ConfigError, EdgeServeError, EngineError, Rejected, UnknownApp
from edgeserve.policy import POLICIES
from edgeserve.runtime import Runtime

LIB = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib")
X = {"x": np.zeros(2, np.float32)}
NAP = {"engine": "synthetic", "expected": {"1": "10ms"}, "shapes": {"x": [2]}}


def config(apps=("a",), models=None, **sections):
    return parse_config(
        {"model": models or {"m": NAP}, "app": {name: {"model": "m", "slo": "20s"} for name in apps}, **sections}
    )


def test_apps_come_and_go_and_counts_and_request_numbers_go_on():
    with Runtime(config()) as runtime:
        first = runtime.infer("a", X)
        runtime.reload(config(("a", "b")))
        second = runtime.infer("b", X)
        assert second.id > first.id
        assert runtime.infer("a", X).id > second.id
        assert runtime.stats()["apps"]["a"]["outcomes"]["completed"] == 2
        assert runtime.stats()["lanes"]["cpu0"]["works"] == 3 + 0
        runtime.check()
        runtime.reload(config(("b",)))
        with pytest.raises(UnknownApp):
            runtime.infer("a", X)
        assert runtime.infer("b", X)


def test_accepted_requests_end_and_those_that_arrive_meanwhile_are_served():
    with Runtime(config()) as runtime:
        futures = [runtime.submit("a", X) for _ in range(12)]
        changing = threading.Thread(target=runtime.reload, args=(config(policy={"fifo": {}}),))
        changing.start()
        futures += [runtime.submit("a", X) for _ in range(12)]
        changing.join(60)
        assert not changing.is_alive()
        assert all(future.result(60).outcome == "completed" for future in futures)
        assert len({future.id for future in futures}) == 24
        assert "fifo" in runtime.stats()["policies"]
        runtime.check()


def test_a_new_model_is_loaded_and_a_changed_one_replaced():
    with Runtime(config()) as runtime:
        changed = config(
            models={
                "m": {**NAP, "batch": [1, 2], "expected": {"1": "1ms", "2": "2ms"}},
                "n": {"engine": "synthetic", "options": {"c0": "1ms"}, "shapes": {"x": [2]}},
            }
        )
        runtime.reload(changed)
        assert runtime.infer("a", X)
        assert sorted(runtime.stats()["devices"]["cpu"]["models"]) == ["m", "n"]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"lane": {"cpu1": {}}}, r"\[lane.cpu0\], \[lane.cpu1\] changed; a reload changes apps, policies and models"),
        ({"server": {"pending_max": 5}}, r"\[server\] pending_max changed"),
        ({"policy": {"edff": {}}}, "there is no policy 'edff'; did you mean 'edf'"),
        ({"models": {"m": {"engine": "onx"}}}, "is no engine; did you mean 'onnx'"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(sections, words):
    with Runtime(config()) as runtime:
        with pytest.raises(ConfigError, match=words):
            runtime.reload(config(**sections))
        assert runtime.infer("a", X)


def test_what_was_loaded_for_nothing_is_unloaded(monkeypatch):
    unloaded = threading.Event()
    unload = SyntheticEngine.unload

    def noted(engine):
        unload(engine)
        unloaded.set()

    monkeypatch.setattr(SyntheticEngine, "unload", noted)
    bad = {"engine": "python", "function": "live_functions:double", "options": {"example": "live_functions:no_x"}}
    with Runtime(replace(config(), directory=LIB)) as runtime:
        changed = config(models={"m": {**NAP, "expected": {"1": "1ms"}}, "n": bad})
        with pytest.raises(EngineError, match="'x' is not among its inputs"):
            runtime.reload(replace(changed, directory=LIB))
        assert unloaded.wait(30)
        assert runtime.infer("a", X)


def test_what_is_wrong_at_the_change_alone_is_told_and_the_old_configuration_serves_on(monkeypatch):
    class Moody(POLICIES["edf"]):
        made = 0

        def __init__(self, *given):
            super().__init__(*given)
            Moody.made += 1
            if Moody.made > 1:  # the first is for a look before anything is loaded
                raise EdgeServeError("not in the mood")

    monkeypatch.setitem(POLICIES, "moody", Moody)
    with Runtime(config()) as runtime:
        for _ in range(2):
            Moody.made = 0
            with pytest.raises(EdgeServeError, match="not in the mood"):
                runtime.reload(config(("a", "b"), policy={"moody": {}}))
            assert Moody.made == 2
            assert runtime.infer("a", X)
        runtime.reload(config(("a", "b")))
        assert runtime.infer("b", X)


def test_accepted_requests_that_do_not_end_call_it_off_and_all_are_served():
    slow = {"server": {"drain": "100ms"}}
    with Runtime(config(models={"m": {**NAP, "expected": {"1": "600ms"}}}, **slow)) as runtime:
        first = runtime.submit("a", X)
        with pytest.raises(EdgeServeError, match="the configuration has not changed: accepted requests had not ended"):
            runtime.reload(config(("a", "b"), models={"m": {**NAP, "expected": {"1": "600ms"}}}, **slow))
        assert first.result(60).outcome == "completed"
        assert runtime.infer("a", X)
        with pytest.raises(UnknownApp):
            runtime.infer("b", X)


def test_a_file_is_read_again_and_a_client_can_ask_for_it(tmp_path):
    path = tmp_path / "edge.toml"
    text = (
        f'[server]\nendpoint = "ipc://{tmp_path}/bus"\n[model.m]\nengine = "synthetic"\n'
        'expected = { 1 = "1ms" }\nshapes = { x = [2] }\n[app.a]\nmodel = "m"\n'
    )
    path.write_text(text, encoding="utf-8")
    with Runtime(load_config(str(path)), serve=True) as runtime, Client(runtime.endpoints[0]) as client:
        path.write_text(text + '[app.b]\nmodel = "m"\n', encoding="utf-8")
        assert client.reload(timeout_ms=30_000)["apps"] == ["a", "b"]
        assert client.infer("b", X, slo_ms=20_000)
        path.write_text(text + '[app.c]\nmodel = "n"\n', encoding="utf-8")
        assert "[app.c] model = 'n' does not exist" in client.reload(timeout_ms=30_000)["failed"]["configuration"]
        assert client.infer("b", X, slo_ms=20_000)


def test_a_runtime_that_was_stopped_or_made_from_no_file_says_so():
    runtime = Runtime(config()).start()
    with pytest.raises(EdgeServeError, match="made from no file"):
        runtime.reload()
    runtime.stop()
    with pytest.raises((EdgeServeError, Rejected), match="nothing to reload"):
        runtime.reload(config())
