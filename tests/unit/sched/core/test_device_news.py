"""Reactions of the scheduler to news of its devices: fuller batches and patient background work near a limit, memory
that is kept free, energy."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, like, ran

from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import EvictModel, LoadModel
from edgeserve.sched.protocol.events import DeviceChanged, DrainRequested, LaneChanged
from edgeserve.sched.published.common.edf import Edf

MB = 10**6
MODELS = {"m": {1: 10, 2: 12, 4: 16}}
APPS = {
    "app": "m",
    "bg": {"model": "m", "class": "background", "slo": "1000ms"},
    "patient": {"model": "m", "class": "background", "slo": "1000ms", "background_wait": "200ms"},
    "critical": {"model": "m", "class": "critical"},
}


def pressed(models=MODELS, apps=APPS, level="soft", **sections):
    world = Driver(models, apps, **sections)
    world.step(DeviceChanged("cpu", thermal=level))
    return world


# --- near a limit -----------------------------------------------------------------------------------------------------


def test_near_a_limit_a_lane_waits_for_a_fuller_batch_for_half_of_the_time_to_spare():
    world = pressed()
    assert world.arrive("app", at=0) == []
    assert world.wake_ms == 42  # half of 100 - 16, the slowest largest batch
    assert world.arrive("app", at=10) == []
    assert world.wake_ms == 42, "the oldest decides"
    assert world.pass_time(41) == []
    assert world.pass_time(42) == [ran("m", 1, 2)]


@pytest.mark.parametrize(
    ("world", "asked", "starts"),
    [
        ({"level": "none"}, {}, 1),
        ({}, {"count": 4}, 4),  # the batch is full
        ({}, {"slo": 16}, 1),  # a tight deadline is not risked
        ({"models": {"m": {1: 10, 2: 20, 4: 40}}}, {}, 1),  # a fuller batch gains nothing
    ],
)
def test_nobody_waits_without_pressure_nor_where_a_wait_gains_nothing_or_costs_the_deadline(world, asked, starts):
    assert pressed(**world).arrive("app", **asked) == [ran("m", *range(1, starts + 1))]


def test_when_the_pressure_ends_what_waited_starts():
    world = pressed()
    assert world.arrive("app", at=0) == []
    assert world.step(DeviceChanged("cpu", thermal="none"), at=5) == [ran("m", 1)]


def test_power_presses_as_heat_does_and_either_is_enough():
    world = Driver(MODELS, APPS)
    world.step(DeviceChanged("cpu", power="soft"))
    assert world.arrive("app", at=0) == []
    assert world.step(DeviceChanged("cpu", thermal="soft"), at=1) == []
    assert world.step(DeviceChanged("cpu", power="none"), at=2) == []
    assert world.step(DeviceChanged("cpu", thermal="none"), at=3) == [ran("m", 1)]


def test_critical_requests_never_wait_nor_do_others_while_one_does():
    world = pressed()
    assert world.arrive("critical", at=0) == [ran("m", 1)]
    world.arrive("critical", at=1)
    assert world.finish("cpu0", at=10)[-1] == ran("m", 2)


def test_what_waits_for_the_lane_in_other_models_shortens_the_wait():
    models = {"m": {1: 10, 4: 16}, "n": {1: 20, 4: 40}}
    world = pressed(models, {"am": "m", "an": {"model": "n", "slo": "90ms"}})
    assert world.arrive("am", at=0) == []
    assert world.wake_ms == 42
    assert world.arrive("an", at=2) == []
    assert world.wake_ms == 19  # due at 92, 16 + 40 for both, so 34 to spare since 2: half of it


def test_background_work_waits_until_the_pressure_ends():
    world = pressed()
    assert world.arrive("bg", at=0) == []
    assert world.pass_time(500) == []
    assert world.step(DeviceChanged("cpu", thermal="none"), at=500) == [ran("m", 1)]


def test_background_work_that_has_waited_for_its_apps_bound_runs():
    world = pressed()
    assert world.arrive("patient", at=0) == []
    assert world.pass_time(199) == []
    assert world.pass_time(200) == [ran("m", 1)]


def test_a_drain_waits_for_nothing():
    world = pressed()
    assert world.arrive("bg", at=0) == []
    assert world.step(DrainRequested(), at=1) == [ran("m", 1)]


def test_policies_are_told_of_the_pressure_once_per_change_and_can_ask(monkeypatch):
    told = []

    class Listening(Edf):
        def on_device(self, change, board):
            told.append(change.pressure)

    monkeypatch.setitem(POLICIES, "listening", Listening)
    world = Driver(MODELS, APPS, "listening")
    for event in (
        DeviceChanged("cpu", thermal="soft"),
        DeviceChanged("cpu", power="soft"),
        DeviceChanged("cpu", power="hard"),
        DeviceChanged("cpu", thermal="none"),
    ):
        world.step(event)
    assert told == [1, 2]
    assert world.scheduler.devices["cpu"].pressure == 2


# --- memory -----------------------------------------------------------------------------------------------------------

LARGE = {name: {1: 10, "memory": "60MB", "load": "5ms"} for name in "abc"}


def roomy(resident=("a", "b"), **device):
    device = {"headroom": "100MB", **device}
    return Driver(
        LARGE,
        {name: {"model": name, "slo": "5000ms"} for name in LARGE},
        resident={"cpu": resident},
        device={"cpu": device},
    )


def test_a_load_waits_while_others_have_the_memory_and_comes_by_itself():
    world = roomy()
    assert world.device("cpu", free=159 * MB, at=0) == []
    for name in "ab":  # both at work
        world.arrive(name)
        world.finish("cpu0", at=world.now_ms + 10)
    assert world.arrive("c", at=30) == []
    assert world.device("cpu", free=150 * MB, at=500) == []
    assert world.device("cpu", free=160 * MB, at=1000) == [like(LoadModel, model="c")]
    assert world.finish("copy:cpu", at=1005) == [ran("c", 3)]


def test_idle_models_go_until_the_headroom_is_free_and_those_at_work_stay():
    world = roomy(resident=("a", "b", "c"))
    world.arrive("b", at=0)
    world.finish("cpu0", at=10)
    assert world.device("cpu", free=20 * MB, at=900) == [like(EvictModel, model="a"), like(EvictModel, model="c")]
    for _ in range(2):
        world.finish("copy:cpu", at=901)
    assert world.device("cpu", free=30 * MB, at=950) == [], "b ran within the last second"


def test_in_an_emergency_a_model_at_work_goes_but_none_with_work_in_flight():
    world = roomy(resident=("a", "b"))
    world.arrive("a", at=0)
    world.finish("cpu0", at=10)
    world.arrive("b", at=20)
    assert world.device("cpu", free=20 * MB, at=25) == [like(EvictModel, model="a")]
    world.finish("copy:cpu", at=26)
    assert world.device("cpu", free=1 * MB, at=27) == []


def test_memory_that_falls_fast_is_freed_before_it_is_gone():
    world = roomy(resident=("a",))
    assert world.device("cpu", free=400 * MB, at=0) == []
    assert world.device("cpu", free=230 * MB, at=500) == [like(EvictModel, model="a")], "60 MB are left at this rate"


def test_what_a_load_has_not_taken_yet_is_not_free():
    world = roomy(resident=())
    world.device("cpu", free=215 * MB)
    assert world.arrive("a", at=1) == [like(LoadModel, model="a")]
    world.arrive("b", at=2)
    assert world.device("cpu", free=215 * MB, at=3) == [], "the load of a has only begun"
    assert world.finish("copy:cpu", at=7) == [ran("a", 1)], "155 MB are left, and b would leave less than the headroom"
    assert world.device("cpu", free=160 * MB, at=8) == [like(LoadModel, model="b")]


def test_loads_wait_while_memory_is_in_small_pieces():
    world = roomy(resident=())
    world.step(DeviceChanged("cpu", 399 * MB, memory_block_bytes=512 * 1024), at=0)
    assert world.arrive("b", at=2000) == []
    assert world.step(DeviceChanged("cpu", memory_block_bytes=4 * 1024**2), at=2500) == [like(LoadModel, model="b")]
    plenty = roomy(resident=())
    plenty.step(DeviceChanged("cpu", 400 * MB, memory_block_bytes=512 * 1024), at=0)
    assert plenty.arrive("b", at=2000) == [like(LoadModel, model="b")], "most of it is a cache"


# --- speed, energy ----------------------------------------------------------------------------------------------------


def test_a_speed_that_is_told_late_does_not_count_twice():
    world = Driver({"m": {1: 10}}, {"app": {"model": "m", "slo": "1000ms"}})
    for at in range(0, 500, 100):
        world.arrive("app", at=at)
        world.finish("cpu0", at=at + 20)  # twice as slow since 0, and not reported
    latency = world.scheduler.state.latency["m", "cpu0"]
    assert latency.likely_ns[1] == 20 * MS
    world.step(LaneChanged("cpu0", speed=0.5, since_ns=0), at=500)
    assert latency.likely_ns[1] == 20 * MS
    assert latency.slowdown_ppm == 10**6
