"""Which readings of a device are news: quantised, with hysteresis, and what is missing is never zero."""

from __future__ import annotations

import random

import pytest

from edgeserve.device.filter import DeviceFilter, DeviceLimits, Readings
from edgeserve.sched.protocol.events import DeviceChanged, LaneChanged

S, MB = 10**9, 10**6
BUSY_READINGS, MEMORY_READINGS = 3, 4


class Watched:
    """A filter that is read every half second."""

    def __init__(self, *lanes, **limits):
        self.filter = DeviceFilter("gpu", lanes or ("gpu0",), DeviceLimits(**limits))
        self.now_ns = 0

    def read(self, **readings):
        self.now_ns += S // 2
        return self.filter.events(self.now_ns, Readings(**readings))

    def news(self, **readings):
        """The news of the device as a table of what is not None."""
        found = {}
        for event in self.read(**readings):
            assert isinstance(event, DeviceChanged)
            found.update(
                {name: getattr(event, name) for name in event.__dataclass_fields__ if getattr(event, name) is not None}
            )
        found.pop("device", None)
        return found


def test_what_no_sensor_tells_is_no_news_and_never_zero():
    watched = Watched(clock_mhz=1300.0, power_cap_w=10.0)
    assert [watched.read() for _ in range(20)] == [[]] * 20


@pytest.mark.parametrize("level", [1.0, 0.6, 0.31])
def test_a_clock_that_jitters_by_five_percent_is_told_once_at_most(level):
    watched, draw = Watched(clock_mhz=1300.0), random.Random(7)
    told = [
        event
        for _ in range(400)
        for event in watched.read(clock_max_mhz=1300.0 * level * (1 + draw.uniform(-0.05, 0.05)))
    ]
    assert len(told) == (0 if level == 1.0 else 1)


def test_a_clock_that_falls_is_told_at_once_to_every_lane_with_its_cause_and_since_when():
    watched = Watched("gpu0", "gpu1", clock_mhz=1300.0)
    assert watched.read(clock_max_mhz=1300.0) == []
    assert watched.read(clock_max_mhz=1290.0) == []
    first, second, heat = watched.read(clock_max_mhz=780.0, throttled="thermal")
    assert first == LaneChanged("gpu0", None, 0.6, "clock at 60% of the profile's, throttled: thermal", S)
    assert second.lane == "gpu1"
    assert heat == DeviceChanged("gpu", thermal="soft")
    assert watched.read(clock_max_mhz=800.0) == []
    back = watched.read(clock_max_mhz=1300.0)
    assert [(event.lane, event.speed) for event in back] == [("gpu0", 1.0), ("gpu1", 1.0)]


def test_without_a_profiles_clock_the_highest_that_was_seen_counts():
    watched = Watched()
    assert watched.read(clock_max_mhz=600.0) == []
    assert watched.read(clock_max_mhz=1200.0) == []
    assert [event.speed for event in watched.read(clock_max_mhz=600.0)] == [0.5]


def test_the_low_clock_of_an_idle_device_is_no_slow_device():
    watched = Watched(clock_mhz=1300.0)
    for _ in range(10):
        assert watched.read(clock_mhz=115.0, clock_max_mhz=1300.0, load=0.1) == []
    assert watched.read(clock_mhz=115.0, load=0.1) == []  # nothing tells what would be allowed


def test_a_clock_that_stays_low_while_busy_is_a_slow_device():
    watched = Watched(clock_mhz=1300.0)
    for _ in range(BUSY_READINGS - 1):
        assert watched.read(clock_mhz=650.0, clock_max_mhz=1300.0, load=1.0) == []
    assert [event.speed for event in watched.read(clock_mhz=650.0, clock_max_mhz=1300.0, load=0.95)] == [0.5]


def test_a_device_that_was_not_busy_meanwhile_must_be_busy_as_often_again():
    watched = Watched(clock_mhz=1300.0)
    for load in (1.0, 0.9, 0.89, 0.9, 0.95):
        assert watched.read(clock_mhz=650.0, clock_max_mhz=1300.0, load=load) == []
    assert [event.speed for event in watched.read(clock_mhz=650.0, clock_max_mhz=1300.0, load=0.9)] == [0.5]


@pytest.mark.parametrize(("power_w", "level"), [(9.5, None), (9.6, "soft"), (11.5, "soft"), (11.6, "hard")])
def test_power_presses_above_95_percent_of_the_cap_and_hard_above_115(power_w, level):
    assert Watched(power_cap_w=10.0).news(power_w=power_w).get("power") == level


def test_heat_has_levels_with_hysteresis_by_the_trip_points():
    limits = {"heat_soft_c": 88.0, "heat_hard_c": 93.0}
    watched = Watched()
    levels = []
    for heat_c in (60.0, 87.9, 88.0, 86.0, 85.1, 84.9, 94.0, 90.5, 89.9, 70.0):
        watched.news(heat_c=heat_c, **limits)
        levels.append(watched.filter._told.thermal or "none")
    assert levels == ["none", "none", "soft", "soft", "soft", "none", "hard", "hard", "soft", "none"]
    assert Watched().news(heat_c=95.0)["thermal"] == "hard"  # nothing gives limits: 85 and 95


def test_what_throttles_counts_for_a_while_after_it_was_seen():
    watched = Watched()
    assert watched.news(throttled="power") == {"power": "hard"}
    assert [watched.news() for _ in range(8)] == [*[{}] * 7, {"power": "none"}]


def test_memory_is_told_in_steps_and_again_after_a_few_readings():
    watched = Watched()
    told = [
        watched.news(memory_free_bytes=free * MB).get("memory_free_bytes")
        for free in (900, 899, 880, 881, 879, 880, 880)
    ]
    assert told == [900 * MB, None, 880 * MB, None, None, None, 880 * MB]
    assert MEMORY_READINGS == 4
    blocks = [watched.news(memory_block_bytes=size * MB).get("memory_block_bytes") for size in (4, 4, 2, 1)]
    assert blocks == [4 * MB, None, 2 * MB, 1 * MB]


def test_over_current_alone_is_no_pressure_and_hard_with_a_mean_power_above_the_cap():
    watched = Watched(power_cap_w=10.0)
    told = [watched.news(power_w=watts, throttled="over_current").get("power") for watts in [5.0] * 20 + [10.8] * 8]
    assert [level for level in told if level] == ["hard"]
    assert told.index("hard") >= 20
    without = Watched(power_cap_w=10.0)
    assert [level for level in (without.news(power_w=10.8).get("power") for _ in range(8)) if level] == ["soft"]


def test_what_throttled_before_still_counts_while_over_current_goes_on():
    watched = Watched()
    assert watched.news(throttled="power")["power"] == "hard"
    left = [watched.news(throttled="over_current").get("power") for _ in range(12)]
    assert left.index("none") >= 6
