"""Which quantity of a device's state stands for what, per device of the configuration."""

from __future__ import annotations

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.config.schema import DeviceConfig
from edgeserve.device.events import DeviceEvents, readings_of
from edgeserve.device.filter import Readings
from edgeserve.device.state import DeviceState
from edgeserve.sched.protocol.events import DeviceChanged, LaneChanged

S, MIB = 10**9, 1 << 20
GPU = DeviceConfig("gpu", "cuda")

CONFIG = parse_config(
    {
        "device": {"host": {}, "gpu": {"kind": "cuda", "power_cap": 15.0}},
        "lane": {"cpu0": {"device": "host"}, "gpu0": {"device": "gpu"}, "gpu1": {"device": "gpu"}},
        "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}},
        "app": {"a": {"model": "m"}},
    }
)

BUSY = DeviceState(at_ns=S, cpu_load=0.75, cpu_cores_online=6, cpu_cores=8)


def devices(on_card=False):
    return DeviceEvents(CONFIG, list(CONFIG.devices.values()), on_card)


def test_nothing_known_is_nothing_told():
    assert readings_of(DeviceState(), GPU, on_card=False) == Readings()
    assert devices().events(DeviceState(at_ns=S)) == []


def test_a_gpus_state_as_readings():
    state = DeviceState(
        gpu_load=0.5,
        gpu_clock_hz=612_000_000,
        gpu_clock_min_hz=306_000_000,
        gpu_clock_max_hz=1_300_500_000,
        temperature_c=61.5,
        temperature_soft_c=92.0,
        temperature_hard_c=97.0,
        power_w=11.5,
        memory_available_bytes=900 * MIB,
        largest_free_block_bytes=4 * MIB,
        gpu_memory_free_bytes=77 * MIB,
    )
    assert readings_of(state, GPU, on_card=False) == Readings(
        612.0, 1300.5, 0.5, 61.5, 92.0, 97.0, 11.5, 900 * MIB, 4 * MIB, "", False
    )
    card = readings_of(state, GPU, on_card=True, has_power=False)
    assert (card.memory_free_bytes, card.memory_block_bytes, card.power_w) == (77 * MIB, None, None)


def test_the_hosts_clock_is_not_told():
    state = DeviceState(cpu_clocks_hz={"cpu0": 800_000_000, "cpu1": 2_000_000_000}, cpu_load=1.0)
    assert readings_of(state, DeviceConfig("cpu"), on_card=False).clock_mhz is None


@pytest.mark.parametrize(
    ("throttles", "cause"),
    [
        (None, ""),
        ((), ""),
        (("gpu_clock:capped",), ""),
        (("clocks:power_cap",), ""),
        (("cooling:gpu-devfreq",), "thermal"),
        (("clocks:hw_thermal_slowdown",), "thermal"),
        (("over_current:oc3",), "over_current"),
        (("cooling:cpu", "over_current:oc3"), "thermal"),
        (("gpu_clock:capped", "over_current:oc3"), "power"),
        (("gpu_clock:held", "over_current:oc2"), "power"),
        (("over_current:oc1",), "power"),
        (("clocks:hw_power_brake",), "power"),
        (("power_alarm:VDD_GPU_SOC",), "power"),
    ],
)
def test_what_throttles_in_the_schedulers_words(throttles, cause):
    assert readings_of(DeviceState(throttles=throttles), GPU, on_card=False).throttled == cause


def test_the_load_of_the_processor_is_told_where_a_model_may_run_on_a_lane_of_it_and_on_another():
    assert devices().events(BUSY) == [DeviceChanged("host", cpu_load=0.75, cpu_cores=6)]
    table = {
        "lane": {"cpu0": {}},
        "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}},
        "app": {"a": {"model": "m"}},
    }
    alone = parse_config(table)
    assert DeviceEvents(alone, list(alone.devices.values()), False).events(BUSY) == []


def test_lanes_of_the_gpu_are_told_its_speed_and_the_power_counts_once():
    watched = devices()
    watched.events(DeviceState(at_ns=S, gpu_clock_max_hz=1_300_000_000))
    found = watched.events(
        DeviceState(at_ns=2 * S, gpu_clock_max_hz=650_000_000, power_w=12.0, memory_available_bytes=500 * MIB)
    )
    assert found == [
        *[LaneChanged(lane, None, 0.5, "clock at 50% of the profile's", S) for lane in ("gpu0", "gpu1")],
        DeviceChanged("gpu", 500 * MIB, power_w=12.0),
        DeviceChanged("host", 500 * MIB),
    ]
