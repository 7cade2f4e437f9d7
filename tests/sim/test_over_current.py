"""Over-current events that come several times a second while no clock falls, as on an Orin Nano in MAXN_SUPER, change
nothing; beside clocks that fall they are power pressure."""

from __future__ import annotations

import pytest
from nano import nano, ticking

from edgeserve.sched.protocol.events import DeviceChanged
from edgeserve.sim.hardware import SimHardware
from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate


def rates(setting, seed):
    world = simulate(setting, seed, ()).world
    report = report_of([world], 0, setting.run.duration_ns)
    return {name: app.finish_rate for name, app in report.apps.items()}, world


def test_ticks_alone_cost_no_request_and_no_background_work(monkeypatch):
    setting = nano(60.0, 40.0)
    without, world = rates(setting, 1)
    assert 40.0 <= world.hardware["gpu"].heat_c_max <= 80.0
    monkeypatch.setattr(SimHardware, "readings", ticking)
    with_ticks, _ = rates(setting, 1)
    for app, rate in without.items():
        assert rate > 0.9
        assert with_ticks[app] == pytest.approx(rate, abs=0.005), app


def power_levels(setting, monkeypatch):
    """The levels of power that reach the scheduler, in order."""
    levels = []

    def note(now_ns, events, actions):
        levels.extend(event.power for event in events if isinstance(event, DeviceChanged) and event.power)

    with monkeypatch.context() as patch:
        patch.setattr(SimHardware, "readings", ticking)
        simulate(setting, 1, (), on_step=note)
    return levels


def test_beside_clocks_that_fall_they_are_hard_pressure_until_the_clock_is_back(monkeypatch):
    levels = power_levels(nano(60.0, 80.0), monkeypatch)
    assert levels[0] == "hard", "at 100 C the clock falls"
