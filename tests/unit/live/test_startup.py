"""Estimates that start-up makes of its few measurements."""

from __future__ import annotations

import threading
from typing import Any, List

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.config.profiles import LaneProfile, Profile, Timing
from edgeserve.engines.base import CONTEXT_BYTES_MIN, Footprint
from edgeserve.engines.synthetic import NOMINAL_BYTES, SyntheticEngine
from edgeserve.errors import ConfigError
from edgeserve.live import preflight, runtime_core, startup
from edgeserve.live import profiles as live_profiles
from edgeserve.live.preflight import check_models
from edgeserve.live.startup import steadied
from edgeserve.runtime import Runtime


def test_undisturbed_times_that_rise_stay_as_they_are():
    times = {1: [10, 10], 2: [12, 12], 4: [14, 14], 8: [30]}
    assert steadied(times) == times


def test_a_size_that_was_disturbed_more_than_the_others_is_judged_by_its_fastest_run():
    times = {1: [1000, 1100, 1200], 2: [1500, 3300, 3400], 4: [2000, 2200, 2400]}
    assert steadied(times)[2][1] == round(1500 * 1.1)  # 10 % over the fastest is typical here
    assert steadied(times)[4] == times[4]


def test_fewer_jobs_take_no_longer_than_more():
    assert steadied({1: [50], 2: [20], 4: [25], 8: [40]}) == {1: [20], 2: [20], 4: [25], 8: [40]}


def test_a_clock_that_did_not_move_is_no_division_by_zero():
    assert steadied({1: [0, 0], 2: [0, 7]}) == {1: [1, 1], 2: [1, 1]}


def with_sequences(app, **options):
    return parse_config(
        {
            "lane": {"cpu0": {}},
            "app": {"a": {"model": "m", "slo": "1s", **app}},
            "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}, "options": {"sequence": {}, **options}}},
        }
    )


@pytest.mark.parametrize(
    ("app", "options", "said"),
    [
        ({"stream": "in_order"}, {}, r"\[app.a\] stream = 'in_order': model 'm' makes sequences"),
        ({}, {"process": True}, r"\[model.m\] options.process = true: the model makes sequences"),
    ],
)
def test_what_a_model_of_sequences_cannot_do_is_refused_by_check_and_at_start(app, options, said):
    config = with_sequences(app, **options)
    with pytest.raises(ConfigError, match=said):
        Runtime(config).start()
    [problem] = check_models(config, {})
    assert isinstance(problem.error, ConfigError)
    assert check_models(with_sequences({}), {}) == []


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"image": {"dtype": "float32", "shape": [4]}}, r"input 'x' is missing; 'image' was sent, which nothing takes"),
        ({"x": {"dtype": "uint8", "shape": [4]}}, "input 'x' is uint8; expected float32"),
        ({"x": {"dtype": "float32", "shape": [1, 4]}}, r"input 'x' has 2 axes, shape \(1, 4\); expected 1 axis"),
        ({"x": {"dtype": "float32", "shape": [5]}}, r"input 'x' has shape \(5,\); expected \[4\] per item"),
    ],
)
def test_inputs_with_which_no_request_could_run_are_refused_at_start(tmp_path, declared, said):
    with pytest.raises(ConfigError, match=r"\[app.a.inputs\] declares what its model does not take: .*" + said):
        Runtime(linear_app(tmp_path, declared)).start()


@pytest.mark.parametrize(
    "declared",
    [
        {"x": {"dtype": "float32", "shape": [4]}},
        {"x": {"dtype": "float16", "shape": [-1]}},
        {"x": {"dtype": "any"}},
        {"x": {"dtype": "float32", "shape": [4]}, "room": {"dtype": "text"}},
        {},
    ],
)
def test_inputs_with_which_a_request_could_run_are_not(tmp_path, declared):
    with Runtime(linear_app(tmp_path, declared)):
        pass


def linear_app(folder, declared):
    pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
    pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
    import onnx_models

    return parse_config(
        {
            "lane": {"cpu0": {}},
            "app": {"a": {"model": "m", "slo": "1s", "inputs": declared}},
            "model": {"m": {"engine": "onnx", "file": str(folder / onnx_models.linear(str(folder)))}},
        }
    )


class SlowEngine(SyntheticEngine):
    """Its load ends when it was asked three times how far it is."""

    def __init__(self, model: Any, lanes: Any, directory: str) -> None:
        super().__init__(model)
        self._asked = 0
        self._enough = threading.Event()

    def progress(self) -> str:
        self._asked += 1
        if self._asked >= 3:
            self._enough.set()
        return f"built to {min(self._asked, 2) * 10} %"

    def load(self) -> Footprint:
        assert self._enough.wait(20)
        return super().load()


def test_a_start_tells_each_step_and_how_far_a_long_load_is_while_it_goes_on(monkeypatch):
    monkeypatch.setattr(startup, "LOOK_NS", 10_000_000)
    monkeypatch.setattr(startup, "make_engine", SlowEngine)
    monkeypatch.setattr(preflight, "make_engine", SlowEngine)
    told: List[str] = []
    config = parse_config(
        {
            "lane": {"cpu0": {}},
            "app": {"a": {"model": "m"}},
            "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}},
        }
    )
    runtime = Runtime(config)
    runtime.start(told.append).stop()
    assert told == [
        "model m is being loaded",
        "model m: built to 10 %",
        "model m: built to 20 %",  # and no word where nothing changes
        "model m is being warmed up on lane cpu0",
    ]


def test_the_first_model_on_a_card_has_the_context_of_cuda_in_its_footprint(monkeypatch):
    free = iter([10 << 30, 9 << 30, 1 << 30])  # before the first load, after it was warmed up; no more is asked
    monkeypatch.setattr(runtime_core, "card_free_bytes", lambda index: next(free) if index == 0 else None)
    models = {name: {"engine": "synthetic", "expected": {"1": "1ms"}} for name in ("first", "second")}
    config = parse_config(
        {
            "device": {"gpu": {"kind": "cuda", "memory": "8GiB"}},
            "lane": {"gpu0": {"device": "gpu"}},
            "app": {name: {"model": name} for name in models},
            "model": models,
        }
    )
    with Runtime(config) as runtime:
        device = runtime.stats()["devices"]["gpu"]
    assert device["used_bytes"] == (1 << 30) + NOMINAL_BYTES, "what is gone, the first model in it, and the second"


def test_the_first_model_on_a_lane_with_multiprocessors_of_its_own_has_their_context_too(monkeypatch):
    free = iter([10 << 30, 9 << 30, 9 << 30, (9 << 30) - (80 << 20)])  # by the card's first model, and by the lane's
    monkeypatch.setattr(runtime_core, "card_free_bytes", lambda index: next(free))
    lanes = {"first": "gpu0", "second": "gpu1", "third": "gpu1"}
    config = parse_config(
        {
            "device": {"gpu": {"kind": "cuda", "memory": "8GiB"}},
            "lane": {"gpu0": {"device": "gpu"}, "gpu1": {"device": "gpu", "sms": 4}},
            "app": {name: {"model": name} for name in lanes},
            "model": {
                name: {"engine": "synthetic", "expected": {"1": "1ms"}, "lanes": [lane]} for name, lane in lanes.items()
            },
        }
    )
    with Runtime(config) as runtime:
        used = runtime.stats()["devices"]["gpu"]["used_bytes"]
    assert used == (1 << 30) + (80 << 20) + NOMINAL_BYTES


@pytest.mark.parametrize("tells", [True, False], ids=["NVML", "nothing tells"])
@pytest.mark.parametrize("in_turn", [True, False])
def test_a_model_in_a_process_of_its_own_has_its_context_of_cuda_in_its_footprint(monkeypatch, caplog, tells, in_turn):
    caplog.set_level("INFO")
    free = iter([10 << 30, 9 << 30, 9 << 30, 8 << 30])  # before and after each of the two
    monkeypatch.setattr(runtime_core, "card_free_bytes", lambda index: next(free) if tells else None)
    model = {"engine": "synthetic", "expected": {"1": "1ms"}}
    config = parse_config(
        {
            "device": {"gpu": {"kind": "cuda", "memory": "8GiB", "in_turn": in_turn}},
            "lane": {"gpu0": {"device": "gpu"}},
            "app": {name: {"model": name} for name in ("here", "there")},
            "model": {"here": model, "there": {**model, "options": {"process": True}}},
        }
    )
    with Runtime(config) as runtime:
        used = runtime.stats()["devices"]["gpu"]["used_bytes"]
    assert used == (2 << 30 if tells else 2 * NOMINAL_BYTES + CONTEXT_BYTES_MIN)
    assert "model there runs in a process of its own" in caplog.text
    assert ("run in turn" in caplog.text) == in_turn


class Sharing(SyntheticEngine):
    """Uses 4 MiB that all models of its lane use in turn."""

    def load(self) -> Footprint:
        return super().load()._replace(shared_bytes=4 << 20)


@pytest.mark.parametrize(("memory", "resident"), [("7MiB", 3), ("6MiB", 2)])
def test_what_a_lanes_models_share_counts_once_before_they_are_loaded(monkeypatch, memory, resident):
    """Three of 1 MiB each, and 4 MiB of their lane's."""
    monkeypatch.setattr(startup, "make_engine", lambda model, lanes, directory: Sharing(model))
    monkeypatch.setattr(preflight, "make_engine", lambda model, lanes, directory: Sharing(model))
    timings = {1: Timing(10, *[1_000_000] * 3, 0, (1_000_000,) * 15)}
    profiles = [
        Profile(name, "x", {"gpu0": LaneProfile(timings)}, NOMINAL_BYTES, shared_bytes=4 << 20) for name in "abc"
    ]
    monkeypatch.setattr(live_profiles, "usable_profiles", lambda config: profiles)
    config = parse_config(
        {
            "device": {"gpu": {"memory": memory}},
            "lane": {"gpu0": {"device": "gpu"}},
            "app": {name: {"model": name} for name in "abc"},
            "model": {name: {"engine": "synthetic", "options": {"c0": "1ms"}} for name in "abc"},
        }
    )
    with Runtime(config) as runtime:
        told = runtime.stats()["devices"]["gpu"]
    assert told["used_bytes"] == resident * NOMINAL_BYTES
