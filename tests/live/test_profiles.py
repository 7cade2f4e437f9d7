"""The batch times that a server begins with: the configured profile, else its own measurements, and the log says
which."""

from __future__ import annotations

import logging
import os
import time

import pytest

from edgeserve.config.loading import load_config, parse_config
from edgeserve.config.machine import device_slug
from edgeserve.config.profile_match import identity, lane_settings
from edgeserve.config.profiles import LaneProfile, Profile, Timing, profile_path, write_profile
from edgeserve.engines.versions import engine_versions
from edgeserve.live.profiles import usable_profiles
from edgeserve.runtime import Runtime
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.latency.contradiction import SERVED_EVERY_NS
from edgeserve.taps import trace
from edgeserve.taps.replay import replay
from edgeserve.units import NS_PER_MS

CONFIG = """
[server]
record = "run.jsonl"
[lane.cpu0]
[model.m]
engine = "synthetic"
batch = [1, 2]
options = { c0 = "2ms", c1 = "0ms" }
[app.a]
model = "m"
slo = "500ms"
"""


@pytest.fixture
def edge(tmp_path):
    """A configuration and its profile, which says 90 ms; ``write(text)`` replaces the configuration. The path."""
    path = str(tmp_path / "edge.toml")

    def write(text=CONFIG):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    config = load_config(write())
    about = {
        "same": identity(config.models["m"], config.directory, engine_versions(config.models["m"])),
        "lanes": {"cpu0": {"settings": lane_settings(config, "cpu0")}},
    }
    timing = Timing(100, 90 * NS_PER_MS, 90 * NS_PER_MS, 90 * NS_PER_MS, 0)
    write_profile(
        profile_path(str(tmp_path / "profiles"), device_slug(), "m"),
        Profile("m", device_slug(), {"cpu0": LaneProfile({1: timing, 2: timing})}, circumstances=about),
    )
    return write


def begun_with(config):
    """The sources and typical times that a runtime begins with; it serves one request too."""
    with Runtime(config) as runtime:
        sizes = runtime.stats()["models"]["m"]["latency"]["cpu0"]["sizes"]
        runtime.infer("a", {"x": 1})
    return {size: (known["source"], known["typical_ms"]) for size, known in sizes.items()}


def test_a_profile_that_matches_is_what_the_estimates_begin_with(edge, caplog):
    caplog.set_level(logging.WARNING, "edgeserve")
    assert begun_with(load_config(edge())) == {"1": ("profile", 90.0), "2": ("profile", 90.0)}
    assert caplog.records == []


def test_a_profile_of_other_options_is_said_and_the_model_is_measured_at_start(edge, caplog):
    caplog.set_level(logging.WARNING, "edgeserve")
    path = edge(CONFIG.replace('"2ms"', '"3ms"'))
    begun = begun_with(load_config(path))
    assert {source for source, _ in begun.values()} == {"start-up"}
    assert all(3 <= typical_ms < 60 for _, typical_ms in begun.values())
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "the profile of model m does not hold: options.c0 is 3ms now, it was 2ms when measured" in warning
    assert "it is measured a few times at start instead" in warning
    assert f"edgeserve profile {path} --model m" in warning


@pytest.mark.parametrize("text", [CONFIG, CONFIG.replace('"2ms"', '"3ms"')])
def test_a_recording_is_replayed_with_the_profiles_that_it_used(edge, text):
    """After any change: here the configuration goes back to what the profile was measured with."""
    path = edge(text)
    config = load_config(path)
    begun_with(config)
    recording = trace.read_recording(os.path.join(config.directory, "run.jsonl"))
    config = load_config(edge())
    used = trace.used_profiles(recording.start, usable_profiles(config))
    assert [profile.model for profile in used] == (["m"] if text == CONFIG else [])
    assert replay(build_scheduler(config, used, **trace.build_inputs(recording.start)), recording.steps) is None


def test_served_batches_that_contradict_an_expectation_are_warned_of_once(tmp_path, caplog, monkeypatch):
    """A function takes 2 ms and ``expected`` says 60: eleven requests, each in a tenth of a second of its own."""
    monkeypatch.setattr("edgeserve.live.world.LOOK_NS", 1)
    caplog.set_level(logging.WARNING, "edgeserve")
    (tmp_path / "slow_steps.py").write_text("import time\ndef f(item):\n    time.sleep(0.002)\n    return item\n")
    config = parse_config(
        {
            "model": {"m": {"engine": "python", "function": "slow_steps:f", "expected": {"1": "60ms"}}},
            "app": {"a": {"model": "m", "slo": "1s"}},
        },
        str(tmp_path),
        "edge.toml",
    )
    with Runtime(config) as runtime:
        for _ in range(13):
            runtime.infer("a", {"x": 1})
            time.sleep(SERVED_EVERY_NS / 1e9)
        told = runtime.stats()["models"]["m"]["latency"]["cpu0"]["contradiction"]
    assert (told["source"], told["size"], told["began_ms"]) == ("expected", 1, 60.0)
    assert 2 <= told["served_ms"] < 40
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "model m on lane cpu0: batches of 1 take" in warning
    assert "[model.m.expected] says 60ms" in warning
