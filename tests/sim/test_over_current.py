"""Over-current events that come several times a second while no clock falls, as on an Orin Nano in MAXN_SUPER, change
nothing; beside clocks that fall they are power pressure."""

from __future__ import annotations

import pytest
from scenarios import scenario_of

from edgeserve.config.schema import DeviceConfig
from edgeserve.device.events import readings_of
from edgeserve.device.state import DeviceState
from edgeserve.sched.protocol.events import DeviceChanged
from edgeserve.sim.hardware import SimHardware
from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate

GPU = DeviceConfig("gpu", kind="cuda")


def nano(seconds, ambient_c, **device):
    """An Orin Nano at its clocks of MAXN_SUPER: a camera, somebody's questions and background work."""
    return scenario_of(
        {"detect": {1: 12, 2: 20}, "read": {1: 20, 2: 30, 4: 48}},
        {
            "camera": {"model": "detect", "slo": "50ms", "class": "critical"},
            "ask": {"model": "read", "slo": "250ms"},
            "index": {"model": "read", "slo": "5s", "class": "background"},
        },
        {"camera": {"kind": "periodic", "rate": 15}, "ask": {"rate": 12}, "index": {"rate": 6}},
        seconds=seconds,
        run={"noise": 0.02},
        device={"gpu": {"kind": "cuda", **device}},
        lane={"gpu0": {"device": "gpu"}},
        hardware={
            "gpu": {
                "clocks": [306.0, 612.0, 918.0, 1020.0],
                "power": {"static": 6.0, "dynamic": 14.0},
                "thermal": {"ambient": ambient_c, "resistance": 2.0, "time": "20s", "trip": 99.0, "release": 95.0},
            }
        },
    )


def ticking(hardware, used_bytes, *, readings=SimHardware.readings):
    """The device's readings with five events of over-current a second, as the monitor would tell them."""
    base = readings(hardware, used_bytes)
    flags = ["over_current:oc3"]
    if base.clock_max_mhz < 0.98 * hardware.top_mhz:
        flags += ["gpu_clock:capped", "cooling:gpu-devfreq"]
    told = readings_of(DeviceState(throttles=tuple(flags)), GPU, on_card=False)
    return base._replace(throttled=told.throttled)


def rates(setting, seed):
    world = simulate(setting, seed, ()).world
    report = report_of([world], 0, setting.run.duration_ns)
    return {name: app.finish_rate for name, app in report.apps.items()}, world


@pytest.mark.parametrize("seconds", [60, pytest.param(900, marks=pytest.mark.nightly)])
def test_ticks_alone_cost_no_request_and_no_background_work(seconds, monkeypatch):
    setting = nano(seconds, 40.0)
    without, world = rates(setting, 1)
    assert 40.0 <= world.hardware["gpu"].heat_c_max <= 80.0
    monkeypatch.setattr(SimHardware, "readings", ticking)
    with_ticks, _ = rates(setting, 1)
    for app, rate in without.items():
        assert rate > 0.9
        assert with_ticks[app] == pytest.approx(rate, abs=0.005), app


def power_levels(setting, monkeypatch):
    """The levels of power that the scheduler is told, in order."""
    levels = []

    def note(now_ns, events, actions):
        levels.extend(event.power for event in events if isinstance(event, DeviceChanged) and event.power)

    with monkeypatch.context() as patch:
        patch.setattr(SimHardware, "readings", ticking)
        simulate(setting, 1, (), on_step=note)
    return levels


def test_beside_clocks_that_fall_they_are_hard_pressure_until_the_clock_is_back(monkeypatch):
    levels = power_levels(nano(60, 80.0), monkeypatch)
    assert levels[0] == "hard", "at 100 C the clock falls"
