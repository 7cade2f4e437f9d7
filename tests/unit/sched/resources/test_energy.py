"""The charges for a device's energy."""

from __future__ import annotations

import pytest

from edgeserve.sched.resources.energy import EnergyMeter

S = 10**9


def test_energy_goes_to_the_apps_by_lane_time_and_all_of_it_is_somewhere():
    meter = EnergyMeter()
    assert not meter.is_on
    meter.reported(0, 10.0)
    meter.ran("a", 3e8)
    meter.ran("b", 1e8)
    meter.reported(1 * S, 20.0)  # 10 J so far
    meter.ran("a", 1e8)
    meter.reported(3 * S, 5.0)  # 40 J
    figures = meter.figures(5 * S)  # 10 J in which nothing ran
    assert figures == {"power_w": 5.0, "energy_j": 60.0, "idle_j": 10.0, "energy_j_by_app": {"a": 47.5, "b": 2.5}}
    assert figures["energy_j"] == pytest.approx(figures["idle_j"] + sum(figures["energy_j_by_app"].values()))


def test_what_ran_before_the_first_report_is_nobodys_energy():
    meter = EnergyMeter()
    meter.ran("a", 5e8)
    meter.reported(9 * S, 10.0)
    assert meter.figures(9 * S)["energy_j"] == 0.0
    assert meter.figures(8 * S)["energy_j"] == 0.0, "an earlier time charges nothing"
