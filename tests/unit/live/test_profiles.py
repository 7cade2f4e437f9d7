"""Which profiles a server begins with on a board that has power modes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edgeserve.commands.doctor.configuration import check_profiles
from edgeserve.config.loading import parse_config
from edgeserve.config.machine import device_slug
from edgeserve.config.profile_match import identity, lane_settings
from edgeserve.config.profiles import LaneProfile, Profile, Timing, profile_path, write_profile
from edgeserve.live import profiles

EDGE = {"model": {"m": {"engine": "synthetic", "expected": {"1": "5ms"}}}, "app": {"a": {"model": "m", "slo": "1s"}}}


@pytest.mark.parametrize(
    ("mode", "median_ns", "says"),
    [("MAXN", 1_000, ""), ("MODE_30W", 3_000, ""), ("MODE_15W", None, "is in power mode MODE_15W"), ("", None, "")],
)
def test_the_profile_of_the_present_power_mode_is_used_and_no_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    median_ns: object,
    says: str,
) -> None:
    caplog.set_level(logging.INFO)
    config = parse_config(EDGE, directory=str(tmp_path))
    model = config.models["m"]
    lane = next(iter(config.lanes))
    for name, time_ns in (("MAXN", 1_000), ("MODE_30W", 3_000)):
        known = {
            "same": identity(model, config.directory, {}),
            "power_mode": name,
            "lanes": {lane: {"settings": lane_settings(config, lane)}},
        }
        write_profile(
            profile_path(config.profiles_path, device_slug(), "m", name),
            Profile("m", device_slug(), {lane: LaneProfile({1: Timing(9, time_ns, time_ns, time_ns, 0)})}, 0, 0, known),
        )
    monkeypatch.setattr(profiles, "power_mode", lambda: mode)
    found = profiles.usable_profiles(config)
    assert [profile.lanes[lane].timings[1].median_ns for profile in found] == ([] if median_ns is None else [median_ns])
    assert says in caplog.text and ("maxn, mode-30w" in caplog.text) == bool(says)
    told = [finding.text for finding in check_profiles(config) if says and says in finding.text]
    assert told == [text.partition(". Run '")[0] for text in caplog.messages if says and says in text]
