"""``scripts/profile_device.py``: the rounds, the power modes and what the checks say; models of stated times."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, Dict, List, Tuple

import profile_device
import pytest

from edgeserve.config.profiles import LaneProfile, Profile, Timing, read_profile

EDGE = """
[model.m]
engine = "synthetic"
batch = [1, 2]
expected = { 1 = "50us", 2 = "60us" }
[app.a]
model = "m"
slo = "100ms"
"""


def profile_of(*medians_ns: int) -> Profile:
    timings = {2**number: Timing(10, time_ns, time_ns, time_ns, 0) for number, time_ns in enumerate(medians_ns)}
    return Profile("m", "here", {"cpu0": LaneProfile(timings)})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "edge.toml").write_text(EDGE)
    return tmp_path / "edge.toml"


def test_the_round_in_the_middle_becomes_the_profile() -> None:
    slow, usual, fast = profile_of(130, 260), profile_of(100, 200), profile_of(90, 180)
    assert profile_device.middle([slow, usual, fast]) == 1
    assert profile_device.middle([fast, slow]) == 0  # of two the faster: disturbances only add
    assert profile_device.medians_of([slow, fast]) == {("cpu0", 1): [130, 90], ("cpu0", 2): [260, 180]}


@pytest.mark.nightly
def test_rounds_are_measured_compared_and_written_down(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = config.parent / "checks.json"
    profile_device.main(
        [str(config), "--rounds", "2", "--seconds", "0.01", "--no-machine", "--device", "here", "--json", str(out)]
    )
    names = [check["name"] for check in json.loads(out.read_text())]
    assert "m: sizes x lanes" in names and "m on cpu0: rounds differ by" in names
    assert "round by round" in capfd.readouterr().out
    profile = read_profile(str(config.parent / "profiles" / "here" / "m.json"))
    rounds: Dict[str, List[int]] = profile.circumstances["rounds_median_ns"]
    assert {key: len(times) for key, times in rounds.items()} == {"cpu0 1": 2, "cpu0 2": 2}
    kept = [timing.median_ns for timing in profile.lanes["cpu0"].timings.values()]
    assert kept in [[times[number] for times in rounds.values()] for number in (0, 1)]


def test_each_power_mode_is_set_measured_into_its_own_profile_and_set_back(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    power = tmp_path / "power"
    power.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    power.chmod(power.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(profile_device, "power_mode", lambda: log.read_text().splitlines()[-1].split()[1])
    measured = []

    def rounds(path: str, name: str, out: str, device: str, mode: str, *_: Any, **__: Any) -> Tuple[int, Any]:
        measured.append(mode)
        return 0, {}

    monkeypatch.setattr(profile_device, "rounds", rounds)
    profile_device.main([str(config), "--modes", "MAXN,MODE_30W", "--power-script", str(power)])
    assert measured == ["MAXN", "MODE_30W"]
    assert log.read_text().splitlines() == ["--mode MAXN --clocks", "--undo", "--mode MODE_30W --clocks", "--undo"]


def test_a_power_mode_that_cannot_be_set_ends_it_with_a_word(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile_device.main([str(config), "--modes", "TURBO", "--power-script", "false"]) == 2
    assert "power mode TURBO could not be set" in capsys.readouterr().err
