"""Batch times by the clocks of their lane: what holds at two settings holds at a third, and what is not known is not
made up."""

from __future__ import annotations

import random

import pytest

from edgeserve.config.profile_record import Clocks
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.clock_speed import ClockSpeed, Setting, memory_share
from edgeserve.sched.latency.timings import timing_constant
from edgeserve.units import NS_PER_MS as MS

PROFILED = Clocks(1300.0, 3200.0)


def drawn(seed):
    draw = random.Random(f"clocks/{seed}")
    return draw, draw.random(), lambda: Clocks(draw.uniform(300.0, 1300.0), draw.choice([3200.0, 2133.0]))


def true_ms(share, clocks):
    return 20 * ((1 - share) * PROFILED.compute_mhz / clocks.compute_mhz + share * 3200.0 / clocks.memory_mhz)


def model(share=0.0, base=PROFILED):
    return BatchTime(
        "m", "gpu0", {1: timing_constant(20 * MS)}, (1,), clocks=ClockSpeed(base, share) if base.compute_mhz else None
    )


def serve(latency, begins_ms, share, clocks, batches=15, every_ms=120):
    for place in range(batches):
        latency.observe((begins_ms + place * every_ms) * MS, 1, round(true_ms(share, clocks) * MS))
    return begins_ms + batches * every_ms


@pytest.mark.parametrize("seed", range(20))
def test_two_settings_tell_the_share_of_the_memory(seed):
    _, share, clocks = drawn(seed)
    settings = []
    for now in (PROFILED, clocks()._replace(compute_mhz=500.0)):
        at = true_ms(share, now) / 20
        settings.append(Setting(PROFILED.compute_mhz / now.compute_mhz, 3200.0 / now.memory_mhz, at))
    assert memory_share(*settings) == pytest.approx(share)
    assert memory_share(settings[0], settings[0]) is None, "one setting tells nothing"


@pytest.mark.parametrize("seed", range(20))
def test_after_two_settings_in_service_the_time_at_a_third_is_known_before_it_ran(seed):
    _, share, clocks = drawn(seed)
    latency = model()
    at_ms = serve(latency, 0, share, PROFILED)
    latency.set_clocks(Clocks(500.0, 3200.0), 0.38, at_ms * MS)
    serve(latency, at_ms, share, Clocks(500.0, 3200.0))
    third = clocks()
    latency.forget(30_000 * MS)  # what was measured is too old to count
    latency.set_clocks(third, 1.0)
    assert latency.typical_ns[1] / MS == pytest.approx(true_ms(share, third), rel=0.06)


def test_one_setting_leaves_the_compute_clock_alone_and_a_second_of_another_says_nothing():
    latency = model()
    at_ms = serve(latency, 0, 0.8, PROFILED)
    latency.set_clocks(Clocks(650.0, 3200.0), 0.5)
    assert latency.typical_ns[1] == 40 * MS
    serve(latency, at_ms, 0.8, Clocks(650.0, 3200.0), batches=8)
    latency.set_clocks(PROFILED, 1.0)
    latency.forget(30_000 * MS)
    latency.set_clocks(Clocks(650.0, 3200.0), 0.5)
    assert latency.typical_ns[1] == 40 * MS


@pytest.mark.parametrize(
    ("base", "now", "speed"),
    [
        (Clocks(), Clocks(650.0, 3200.0), 0.6),
        (Clocks(0.0, 3200.0), Clocks(650.0, 3200.0), 0.6),
        (PROFILED, Clocks(), 0.6),
        (PROFILED, Clocks(0.0, 1600.0), 0.6),
        (PROFILED, Clocks(650.0, 0.0), 1 / (0.5 * 2 + 0.5)),
        (Clocks(1300.0), Clocks(650.0, 1600.0), 1 / (0.5 * 2 + 0.5)),
        (PROFILED, Clocks(650.0, 1600.0), 0.5),
        (PROFILED, Clocks(1.0, 3200.0), 1 / (0.5 * 20 + 0.5)),
    ],
)
def test_a_clock_that_is_not_known_counts_as_the_profiles_and_without_any_the_lanes_speed_counts(base, now, speed):
    latency = model(0.5, base)
    latency.set_clocks(now, 0.6)
    assert latency.speed == pytest.approx(speed)
