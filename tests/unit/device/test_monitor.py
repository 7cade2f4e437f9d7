"""The monitor's turns and its thread: sources at their own pace, stale readings, a source that breaks, the end."""

from __future__ import annotations

import threading

from edgeserve.device.monitor import Monitor
from edgeserve.device.source import FAST_NS, SLOW_NS
from edgeserve.device.state import DeviceState
from edgeserve.units import NS_PER_MS, NS_PER_S


class Scripted:
    """A source with given readings, which counts its calls."""

    def __init__(self, name, every_ns=FAST_NS, **values):
        self.name, self.every_ns, self.values = name, every_ns, values
        self.reads, self.closed, self.error = [], 0, None
        self.threads = set()

    def read(self, now_ns):
        self.reads.append(now_ns)
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        return DeviceState(**self.values)

    def close(self):
        self.closed += 1
        self.threads.add(threading.current_thread().name)


class Clock:
    def __init__(self):
        self.now_ns = 0
        self.spent_ns = 0

    def __call__(self):
        return self.now_ns

    def cpu(self):
        self.spent_ns += 1000  # each look at the processor's time is so much later
        return self.spent_ns


def made(*sources, interval_ns=100 * NS_PER_MS):
    clock, told = Clock(), []
    return Monitor("gpu0", sources, told.append, clock, clock.cpu, interval_ns), clock, told


def test_each_source_is_read_at_its_own_pace_and_keeps_its_last_reading():
    fast, slow = Scripted("fast", gpu_load=0.5), Scripted("slow", SLOW_NS, power_w=9.0)
    monitor, clock, told = made(fast, slow)
    for turn in range(31):
        clock.now_ns = turn * 100 * NS_PER_MS
        state = monitor.turn()
        assert (state.gpu_load, state.power_w) == (0.5, 9.0)
    assert len(fast.reads) == 31
    assert slow.reads == [0, NS_PER_S, 2 * NS_PER_S, 3 * NS_PER_S]
    assert told[-1] is monitor.state


def test_a_turn_that_comes_early_by_less_than_half_an_interval_counts():
    slow = Scripted("slow", SLOW_NS)
    monitor, clock, _ = made(slow, interval_ns=NS_PER_S)
    for at_ms in (0, 999, 1998, 2997):
        clock.now_ns = at_ms * NS_PER_MS
        monitor.turn()
    assert len(slow.reads) == 4


def test_a_broken_source_is_asked_no_more_and_the_others_go_on(caplog):
    good, broken = Scripted("good", gpu_load=0.5), Scripted("broken", power_w=9.0)
    monitor, clock, _ = made(good, broken)
    assert monitor.turn().power_w == 9.0
    broken.error = KeyError("a bug")
    for turn in range(1, 4):
        clock.now_ns = turn * NS_PER_S
        state = monitor.turn()
    assert (state.gpu_load, state.power_w) == (0.5, None)
    assert len(broken.reads) == 2
    assert "KeyError" in monitor.costs()["sources"]["broken"]["failed"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_the_cap_of_the_power_mode_is_compared_with_the_governors():
    clock_source = Scripted("clock", gpu_clock_max_hz=600, throttles=())
    mode = Scripted("mode", power_mode_gpu_clock_hz=1000)
    monitor, _, _ = made(clock_source, mode)
    assert monitor.turn().throttles == ("gpu_clock:capped",)
    clock_source.values["gpu_clock_max_hz"] = 990  # rounding, no throttling
    assert monitor.turn().throttles == ()


def test_costs_are_counted_by_source():
    monitor, clock, _ = made(Scripted("a"), Scripted("b"))
    monitor.turn()
    clock.now_ns = NS_PER_S
    costs = monitor.costs()
    assert costs["sources"]["a"] == {"reads": 1, "ms": 0.001}
    assert 0 < costs["core_share"] < 1e-4


def test_a_monitor_that_was_never_started_gives_its_sources_back():
    source = Scripted("a")
    monitor, _, _ = made(source)
    monitor.stop()
    assert source.closed == 1
