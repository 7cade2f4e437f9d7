"""The device's clocks that ``edgeserve profile`` stores: in the measurement, after a rest, and the part of the memory's
clock where two power modes were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeserve.cli import main
from edgeserve.commands import measure_lane
from edgeserve.commands.measure import StopRule, measure_rested
from edgeserve.commands.profile_modes import share_modes
from edgeserve.config.profile_record import Clocks
from edgeserve.config.profiles import LaneProfile, Profile, Timing, profile_path, read_profile, write_profile
from edgeserve.engines.base import BlockingSession, Result

S, MS = 10**9, 10**6


class Sleepy:
    """A model that takes 20 ms, and 65 ms after it stood still for a second."""

    def __init__(self):
        self.now_ns, self.ran_ns = 0, 0

    def sleep(self, seconds):
        self.now_ns += round(seconds * S)

    def run(self, batch):
        self.now_ns += 65 * MS if self.now_ns - self.ran_ns >= S else 20 * MS
        self.ran_ns = self.now_ns
        return [Result({})]


@pytest.mark.parametrize(("seconds", "rested_ms"), [(3.0, 65), (1.0, 65), (0.5, 0)])
def test_a_batch_after_a_second_of_rest_is_measured_where_there_is_time_for_one(seconds, rested_ms):
    model = Sleepy()
    rule = StopRule(time_ns_max=round(seconds * S))
    found = measure_rested(BlockingSession(model), {"x": 1}, 1, lambda: model.now_ns, rule, rest=model.sleep)
    assert found == rested_ms * MS


def lay(
    folder: Path, mode: str, clock_mhz: float, time_ms: float, same: str = "this", memory_mhz: float = 3200.0
) -> str:
    path = profile_path(str(folder), "orin", "m", mode)
    times = {size: Timing(100, round(time_ms * size * MS), round(time_ms * size * MS), 1, 0) for size in (1, 4)}
    lane = LaneProfile(times, clock_mhz=clock_mhz, memory_clock_mhz=memory_mhz)
    write_profile(path, Profile("m", "orin", {"gpu0": lane}, circumstances={"same": {"file": same}, "lanes": {}}))
    return path


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_two_power_modes_tell_the_memorys_part_to_both_profiles(tmp_path: Path, share: float) -> None:
    full = lay(tmp_path, "MAXN", 1300.0, 20.0)
    less = lay(tmp_path, "MODE_30W", 650.0, 20.0 * ((1 - share) * 2 + share))
    share_modes(less, "gpu0")
    assert read_profile(full).lanes["gpu0"].memory_share == pytest.approx(share, abs=0.002)
    there = share / ((1 - share) * 2 + share)
    assert read_profile(less).lanes["gpu0"].memory_share == pytest.approx(there, abs=0.002)


@pytest.mark.parametrize(
    "other",
    [
        {"clock_mhz": 1290.0, "time_ms": 25.0},
        {"clock_mhz": 0.0, "time_ms": 25.0},
        {"clock_mhz": 650.0, "time_ms": 25.0, "same": "another"},
    ],
)
def test_modes_that_cannot_tell_leave_the_compute_clock_alone(tmp_path: Path, other: dict) -> None:
    full = lay(tmp_path, "MAXN", 1300.0, 20.0)
    share_modes(lay(tmp_path, "MODE_30W", **other), "gpu0")
    Path(profile_path(str(tmp_path), "orin", "m", "MODE_15W")).parent.mkdir()
    Path(profile_path(str(tmp_path), "orin", "m", "MODE_15W")).write_text("no profile")
    share_modes(full, "gpu0")
    assert read_profile(full).lanes["gpu0"].memory_share == 0.0


def test_the_command_stores_the_clocks_of_a_gpu_lane_alone(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(measure_lane, "clocks_of", lambda index: Clocks(918.0, 2133.0))
    (tmp_path / "edge.toml").write_text(
        '[device.gpu]\nkind = "cuda"\n[lane.gpu0]\ndevice = "gpu"\n[device.cpu]\n[lane.cpu0]\ndevice = "cpu"\n'
        '[model.m]\nengine = "synthetic"\nexpected = { 1 = "1ms" }\n[app.a]\nmodel = "m"\n'
    )
    words = ["profile", str(tmp_path / "edge.toml"), "--device", "orin", "--seconds", "0.02", "--no-machine", "--json"]
    assert main(words) == 0
    (row, _) = json.loads(capsys.readouterr().out)["models"]
    lanes = read_profile(row["file"]).lanes
    assert lanes["gpu0"].clocks == Clocks(918.0, 2133.0) and lanes["cpu0"].clocks == Clocks()
