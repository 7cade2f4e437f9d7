"""The changes that are reported: quantised, debounced, and worse news at once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edgeserve.device.changes import HOLD_NS, MIB, STEPS, ChangeFilter
from edgeserve.device.state import DeviceState
from edgeserve.units import NS_PER_S

BASE = DeviceState(
    gpu_clock_hz=1_300_000_000,
    gpu_clock_max_hz=1_300_000_000,
    memory_available_bytes=8 << 30,
    temperature_c=50.0,
    power_w=20.0,
    throttles=(),
    power_mode="MAXN",
)


def told(filter_, at_s, **values):
    report = filter_.update(replace(BASE, at_ns=round(at_s * NS_PER_S), **values))
    return report.changed if report is not None else ()


@pytest.fixture
def changes():
    made = ChangeFilter()
    report = made.update(BASE)
    assert report is not None
    assert set(report.changed) == {
        "gpu_clock_hz",
        "gpu_clock_max_hz",
        "memory_available_bytes",
        "temperature_c",
        "power_w",
        "throttles",
        "power_mode",
    }
    return made


def test_nothing_new_is_never_told(changes):
    assert [told(changes, second) for second in range(20)] == [()] * 20


def test_a_clock_that_jitters_by_five_percent_is_never_told(changes):
    draw = random.Random("0/jitter")
    for second in range(600):
        clock = round(1_300_000_000 * draw.uniform(0.95, 1.05))
        assert (
            told(
                changes,
                second,
                gpu_clock_hz=clock,
                power_w=draw.uniform(18.5, 21.5),
                temperature_c=draw.uniform(49, 51),
            )
            == ()
        )


def test_a_clock_must_stay_low_and_a_cap_is_told_at_once(changes):
    assert told(changes, 1, gpu_clock_hz=800_000_000) == ()
    assert told(changes, 1.5) == ()  # back again: forgotten
    assert told(changes, 2, gpu_clock_hz=800_000_000) == ()
    assert told(changes, 3, gpu_clock_hz=800_000_000) == ("gpu_clock_hz",)
    assert told(changes, 4, gpu_clock_hz=800_000_000, gpu_clock_max_hz=800_000_000) == ("gpu_clock_max_hz",)
    assert told(changes, 5) == ()  # good news waits
    assert set(told(changes, 5 + HOLD_NS / NS_PER_S)) == {"gpu_clock_hz", "gpu_clock_max_hz"}


def test_less_memory_is_told_at_once_and_never_as_more_than_there_is(changes):
    report = changes.update(replace(BASE, at_ns=NS_PER_S, memory_available_bytes=(7 << 30) + 5 * MIB))
    assert report is not None
    assert report.changed == ("memory_available_bytes",)
    assert report.state.memory_available_bytes == 7 << 30
    assert report.state.gpu_clock_hz == BASE.gpu_clock_hz


def test_heat_is_rounded_up_and_power_to_the_nearest(changes):
    report = changes.update(replace(BASE, at_ns=NS_PER_S, temperature_c=60.2))
    assert report is not None
    assert (report.state.temperature_c, report.state.power_w) == (61.0, 20.0)
    changes.update(replace(BASE, at_ns=2 * NS_PER_S, temperature_c=61.0, power_w=30.26))
    report = changes.update(replace(BASE, at_ns=4 * NS_PER_S, temperature_c=61.0, power_w=30.26))
    assert report is not None
    assert report.state.power_w == 30.3


def test_throttling_is_told_at_once_and_its_end_when_it_lasts(changes):
    assert told(changes, 1, throttles=("cooling:gpu",)) == ("throttles",)
    assert told(changes, 2, throttles=()) == ()
    assert told(changes, 2.5, throttles=("cooling:gpu",)) == ()  # it flickers: one piece of news
    assert told(changes, 3, throttles=()) == ()
    assert told(changes, 4, throttles=()) == ("throttles",)


def test_what_is_no_longer_known_is_told_when_it_lasts_and_is_none(changes):
    assert told(changes, 1, power_w=None) == ()
    report = changes.update(replace(BASE, at_ns=2 * NS_PER_S, power_w=None))
    assert report is not None
    assert (report.changed, report.state.power_w, report.before) == (("power_w",), None, {"power_w": 20.0})


def test_another_power_mode_is_told_when_it_lasts(changes):
    assert [told(changes, second, power_mode="MODE_30W") for second in (1, 2)] == [(), ("power_mode",)]


def test_news_of_one_quantity_repeats_the_others_as_they_were_told(changes):
    report = changes.update(replace(BASE, at_ns=NS_PER_S, gpu_clock_hz=1_250_000_000, temperature_c=70.0))
    assert report is not None
    assert report.state.gpu_clock_hz == BASE.gpu_clock_hz


def test_every_step_leaves_room_for_its_grid():
    """A value that is rounded must not be a step away from itself."""
    for name, step in STEPS.items():
        assert step.grid <= max(step.absolute, 1e-9) or step.grid == 0, name
