"""The speed of a model is by the clock at which its own profile was measured, from the first reading on."""

from __future__ import annotations

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.config.profile_record import Clocks
from edgeserve.config.profiles import LaneProfile, Profile, Timing
from edgeserve.device.events import DeviceEvents
from edgeserve.device.filter import DeviceFilter, DeviceLimits, Readings
from edgeserve.device.power_mode import parse_conf
from edgeserve.device.state import DeviceState
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.events import LaneChanged

S, MS, MHZ = 10**9, 10**6, 10**6

MODELS = {"fast": 1300.0, "slow": 650.0, "unknown": 0.0}
"""The GPU's clock in each model's profile."""


def served(states, device=None):
    """The typical milliseconds of each model after these states of the device."""
    config = parse_config(
        {
            "device": {"gpu": {"kind": "cuda", **(device or {})}},
            "lane": {"gpu0": {"device": "gpu"}},
            "model": {name: {"engine": "synthetic"} for name in MODELS},
            "app": {name: {"model": name} for name in MODELS},
        }
    )
    timing = Timing(100, 20 * MS, 20 * MS, 20 * MS, 0)
    profiles = [
        Profile(
            name, "here", {"gpu0": LaneProfile({1: timing}, clock_mhz=mhz, memory_clock_mhz=3200.0 if mhz else 0.0)}
        )
        for name, mhz in MODELS.items()
    ]
    scheduler = build_scheduler(config, profiles)
    events = DeviceEvents(config, list(config.devices.values()), False, profiles)
    for turn, state in enumerate(states):
        told = events.events(DeviceState(at_ns=turn * S // 2, **state))
        scheduler.step(turn * S // 2, [event for event in told if isinstance(event, LaneChanged)])
    return {name: scheduler.state.latency[name, "gpu0"].typical_ns[1] / MS for name in MODELS}


@pytest.mark.parametrize("allowed_mhz", [1300, 780, 650, 318])
def test_a_server_that_starts_throttled_knows_it(allowed_mhz):
    found = served([{"gpu_clock_max_hz": allowed_mhz * MHZ}])
    assert found["fast"] == pytest.approx(20 * 1300 / allowed_mhz, rel=0.01)
    assert found["slow"] == pytest.approx(20 * 650 / allowed_mhz, rel=0.01)
    assert found["unknown"] == pytest.approx(20 * 1300 / allowed_mhz, rel=0.01), "as the highest of the profiles"


@pytest.mark.parametrize(
    "state", [{}, {"gpu_clock_max_hz": 0}, {"gpu_clock_hz": 306 * MHZ, "gpu_load": 0.1}, {"emc_clock_hz": 204 * MHZ}]
)
def test_what_says_nothing_of_a_working_clock_changes_no_time(state):
    assert served([state] * 4) == {"fast": 20.0, "slow": 20.0, "unknown": 20.0}


def test_a_clock_that_was_low_for_one_reading_is_told_and_taken_back():
    full, low = {"gpu_clock_max_hz": 1300 * MHZ}, {"gpu_clock_max_hz": 400 * MHZ}
    assert served([full, low])["fast"] == pytest.approx(65.0)
    assert served([full, low, full])["fast"] == pytest.approx(20.0)


def test_a_power_mode_bounds_the_memorys_clock_too():
    text = "< POWER_MODEL ID={} NAME={} >\nGPU MAX_FREQ {}\nEMC MAX_FREQ {}\n"
    modes = parse_conf(text.format(0, "MAXN", -1, 0) + text.format(1, "MODE_15W", 408_000_000, 2_133_000_000))
    assert [mode.emc_clock_hz for mode in modes.modes] == [None, 2_133_000_000]


def test_a_memory_clock_that_is_known_only_later_is_told():
    """An idle device tells no clock of its memory where nothing says which one is allowed."""
    known = DeviceFilter("d", ["l"], DeviceLimits(profiled=(Clocks(1000.0, 2000.0),)))
    first = known.events(0, Readings(clock_mhz=500.0, clock_max_mhz=500.0))
    later = known.events(10**9, Readings(clock_mhz=500.0, clock_max_mhz=500.0, memory_clock_max_mhz=1000.0))
    again = known.events(2 * 10**9, Readings(clock_mhz=500.0, clock_max_mhz=500.0))
    assert [[event.memory_clock_mhz for event in events] for events in (first, later, again)] == [[None], [1000.0], []]
