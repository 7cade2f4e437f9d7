"""The simulated device: clocks, heat, power and memory against closed forms, and what the scheduler makes of them."""

from __future__ import annotations

import math

import pytest
from scenarios import NO_STEP_COSTS, scenario_of

from edgeserve.config.schema import DeviceConfig, LaneConfig
from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.events import DeviceChanged, LaneChanged
from edgeserve.sim.hardware import POLL_NS, LaneThreads, SimHardware, shared_cores
from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate

S, MS, MB = 10**9, 10**6, 10**6
CLOCKS = [400.0, 800.0, 1000.0]


def scenario(seconds=4.0, rate=20.0, device=None, times=None, slo="200ms", run=None, **keys):
    return scenario_of(
        {"m": times or {1: 20, 4: 40}},
        {"a": {"model": "m", "slo": slo}},
        {"w": {"app": "a", "kind": "periodic", "rate": rate}},
        seconds=seconds,
        run={**NO_STEP_COSTS, **(run or {})},
        device={"gpu": device or {}},
        lane={"gpu0": {"device": "gpu"}},
        hardware={"gpu": {"clocks": CLOCKS, **keys}},
    )


def hardware(**keys):
    return SimHardware(scenario(**keys).hardware["gpu"], DeviceConfig("gpu"), [LaneConfig("gpu0", "gpu")], 1)


# --- the device alone -------------------------------------------------------------------------------------------------


def test_a_batch_takes_longer_by_the_part_that_the_clock_changes():
    device = hardware(compute=0.7, caps=[{"at": "1s", "for": "1s", "clock": 0.5}])
    paces = []
    for second in range(4):
        device.poll(second * S)
        paces.append(device.pace)
    assert paces == [1.0, pytest.approx(0.7 * 1000 / 400 + 0.3), 1.0, 1.0], "800 MHz is above half: the step below"


def test_power_and_energy_are_what_the_formula_says():
    device = hardware(
        power={"static": 5.0, "dynamic": 20.0, "exponent": 2.0, "load_min": 0.5}, caps=[{"at": "3s", "clock": 0.8}]
    )
    device.runs(1 * S, [(1, 1)])
    assert device.power_w() == 25.0
    device.runs(2 * S, [(2, 8)])
    assert device.power_w() == pytest.approx(5 + 20 * 0.625)
    device.poll(3 * S)
    assert device.energy_j == pytest.approx(5 + 25 + 17.5)
    assert device.power_w() == pytest.approx(5 + 20 * 0.8**2 * 0.625)


def test_heat_follows_its_time_constant_for_any_steps():
    for step_ns in (POLL_NS, 3 * S):
        device = hardware(
            power={"static": 0.0, "dynamic": 10.0},
            thermal={"ambient": 20.0, "resistance": 4.0, "time": "10s", "trip": 90.0},
        )
        device.runs(0, [(1, 1)])
        for now_ns in range(0, 12 * S + 1, step_ns):
            device.poll(now_ns)
        assert device.heat_c == pytest.approx(60.0 - 40.0 * math.exp(-1.2))


def test_a_hot_device_steps_down_until_it_is_cool_and_not_before():
    device = hardware(
        power={"static": 0.0, "dynamic": 20.0},
        thermal={"ambient": 20.0, "resistance": 4.0, "time": "4s", "trip": 80.0, "release": 70.0},
    )
    device.runs(0, [(1, 1)])
    heats, clocks = [], []
    for turn in range(1, 200):
        device.poll(turn * POLL_NS)
        heats.append(device.heat_c)
        clocks.append(device.clock_mhz())
    first = clocks.index(800.0)
    assert heats[first] >= 80.0 > heats[first - 1]
    assert 400.0 in clocks
    for before, after, heat_c in zip(clocks, clocks[1:], heats[1:]):
        assert after <= before or heat_c < 70.0, "it rises only below the release"


def test_a_power_limit_holds_and_does_not_swing():
    device = hardware(power={"static": 5.0, "dynamic": 20.0, "exponent": 2.0, "limit": 20.0})
    device.runs(0, [(1, 1)])
    clocks = []
    for turn in range(1, 20):
        device.poll(turn * POLL_NS)
        clocks.append(device.clock_mhz())
    assert set(clocks[1:]) == {800.0}
    assert device.readings(0).throttled == "power"


def test_an_idle_device_has_its_lowest_clock_under_a_governor():
    device = hardware(governor="ondemand")
    assert device.clock_mhz() == 400.0
    device.runs(1 * MS, [(1, 1)])
    assert device.clock_mhz() == 400.0
    device.govern(20 * MS)
    assert device.clock_mhz() == 1000.0
    device.runs(30 * MS, [])
    device.govern(60 * MS)
    assert device.clock_mhz() == 400.0
    assert device.readings(0).clock_max_mhz == 1000.0, "what is allowed is not lower"


def test_memory_that_is_not_there_kills_once_until_there_is_some_again():
    device = hardware(
        memory={
            "total": "1GB",
            "others": "200MB",
            "changes": [{"at": "1s", "others": "700MB", "over": "1s"}, {"at": "4s", "others": "100MB"}],
        }
    )
    free, kills = [], []
    for half in range(0, 10):
        device.poll(half * S // 2)
        free.append(device.readings(400 * MB).memory_free_bytes // MB)
        device.takes(half * S // 2, 400 * MB)
        kills.append(device.oom_kills)
    assert free == [400, 400, 400, 150, 0, 0, 0, 0, 500, 500]
    assert kills == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]


def test_what_cannot_be_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"\[hardware.gpu\] clocks = \[800.0, 400.0\]: expected MHz in rising order"):
        hardware(clocks=[800.0, 400.0])
    with pytest.raises(ConfigError, match=r"\[hardware.gpu.thermal\] release = 95: expected less than trip = 90"):
        hardware(thermal={"trip": 90.0, "release": 95.0})
    with pytest.raises(ConfigError, match=r"\[hardware.gpu\] every"):
        hardware(every="0ms")
    with pytest.raises(ConfigError, match=r"\[hardware.gpu\] caps\[0\] has no key 'clok'"):
        hardware(caps=[{"at": "1s", "clok": 0.5}])
    with pytest.raises(ConfigError, match=r"\[hardware.gpux\]: there is no such device"):
        scenario_of({"m": {1: 1}}, {"a": "m"}, {}, device={"gpu": {}}, hardware={"gpux": {}})


# --- in a world -------------------------------------------------------------------------------------------------------


def events_of(told, seed=1):
    found = []
    run = simulate(
        told,
        seed,
        [],
        on_step=lambda now_ns, events, actions: found.extend(
            (now_ns, event) for event in events if isinstance(event, (LaneChanged, DeviceChanged))
        ),
    )
    return run, found


def test_a_clock_that_falls_slows_what_runs_at_that_moment_too():
    """The hardware looks at its caps every 100 ms."""

    def took(cap_ns):
        told = scenario(1.0, 1.0, times={1: 200}, slo="2s", caps=[{"at": f"{cap_ns}ns", "clock": 0.4}])
        (ended,) = simulate(told, 1, []).world.ended
        return ended.request.arrival_ns, ended.end_ns - ended.request.arrival_ns

    begins_ns, whole_ns = took(10 * S)
    assert whole_ns == 200 * MS
    falls_ns = -(-(begins_ns + 1) // POLL_NS) * POLL_NS
    alone_ns = falls_ns - begins_ns
    assert took(begins_ns + 1)[1] == pytest.approx(alone_ns + (200 * MS - alone_ns) * 2.5, abs=2)
    assert took(0)[1] == 500 * MS


def test_the_scheduler_is_told_what_is_news_and_that_all_is_well_at_the_end():
    told = scenario(
        4.0,
        caps=[{"at": "1s", "for": "1s", "clock": 0.4, "why": "thermal"}],
        device={"power_cap": 8.0},
        power={"static": 5.0, "dynamic": 20.0},
    )
    run, found = events_of(told)
    speeds = [(now_ns // MS, event.speed) for now_ns, event in found if isinstance(event, LaneChanged)]
    assert speeds == [(1000, 0.4), (2000, 1.0), (4000, 1.0)]
    assert {event.power for _, event in found if isinstance(event, DeviceChanged)} & {"soft", "hard"}
    assert run.scheduler.devices["gpu"].pressure == 0
    assert run.scheduler.energy(4 * S)["gpu"]["energy_j_by_app"]["a"] > 0


def test_without_a_monitor_nothing_is_told():
    run, found = events_of(scenario(1.0, monitor=False, jitter=0.3, caps=[{"at": "0s", "clock": 0.4}]))
    assert found == []


def test_the_report_tells_joules_per_answer_and_all_of_the_energy():
    told = scenario(
        2.0, power={"static": 5.0, "dynamic": 20.0}, memory={"total": "1GB"}, thermal={"ambient": 30.0, "trip": 90.0}
    )
    world = simulate(told, 1, []).world
    report = report_of([world], 0, 2 * S)
    assert report.apps["a"].energy_j == pytest.approx(world.hardware["gpu"].energy_j, abs=0.01)
    assert report.total.joules_per_answer == pytest.approx(report.total.energy_j / report.total.in_time)
    table = report.as_table()
    assert table["devices"]["gpu"]["oom_kills"] == 0
    assert table["devices"]["gpu"]["power_w"] == pytest.approx(report.total.energy_j / 2, abs=0.01)
    assert table["total"]["joules_per_answer"] == report.total.joules_per_answer
    assert (
        "devices"
        not in report_of(
            [simulate(scenario_of({"m": {1: 5}}, {"a": "m"}, {"w": {"app": "a", "rate": 5.0}}), 1, []).world], 0, S
        ).as_table()
    )


def test_a_power_cap_saves_energy_per_answer_and_no_answers_are_lost():
    found = []
    for cap in (0.0, 6.0):
        world = simulate(
            scenario(10.0, rate=40.0, device={"power_cap": cap}, power={"static": 5.0, "dynamic": 20.0}), 1, []
        ).world
        report = report_of([world], 0, 10 * S)
        found.append((report.total.finish_rate, report.total.joules_per_answer))
    (free_rate, free_j), (capped_rate, capped_j) = found
    assert capped_rate >= free_rate - 0.02
    assert capped_j < 0.9 * free_j


# --- a processor that others use --------------------------------------------------------------------------------------


def test_cores_are_shared_by_weight_and_none_gets_more_than_it_wants():
    assert shared_cores({"a": LaneThreads(2, 2), "b": LaneThreads(1, 1)}, 4) == {"a": 2.0, "b": 1.0}
    assert shared_cores({"a": LaneThreads(4, 4), "b": LaneThreads(12, 12)}, 4) == {"a": 1.0, "b": 3.0}
    got = shared_cores({"nice": LaneThreads(4, 0.4), "hosts": LaneThreads(1, 1), "others": LaneThreads(12, 12)}, 4)
    assert got["hosts"] == pytest.approx(4 / 13.4) and sum(got.values()) == pytest.approx(4.0)
    assert shared_cores({}, 4) == {}


def processor(**keys):
    made = scenario_of(
        {"m": {1: 10}},
        {"a": "m"},
        {},
        lane={"cpu0": {"threads": 2}, "cpu1": {"threads": 2, "nice": 10}},
        hardware={"cpu": {"processor": {"cores": 4, **keys}}},
    )
    return SimHardware(made.hardware["cpu"], DeviceConfig("cpu"), list(made.config.lanes.values()), 1)


def test_a_lane_is_slower_while_others_use_the_cores_and_the_monitor_tells_how_many():
    device = processor(changes=[{"at": "2s", "others": 6.0}, {"at": "3s", "others": 0.0}])
    device.runs(0, [(1, 1)], ["cpu0"])
    assert device.pace_of("cpu0") == 1.0 and device.pace_of("cpu1") == 1.0
    device.read(0, 0)
    assert [event.cpu_load for event in device.read(1 * S, 0)] == [0.5]
    device.poll(2 * S)
    assert device.pace_of("cpu0") == 2.0  # two of eight threads on four cores
    device.read(2 * S, 0)
    (busy,) = device.read(2 * S + 500 * MS, 0)
    assert (busy.cpu_load, busy.cpu_cores) == (1.0, 4)
    device.poll(3 * S)
    assert device.pace_of("cpu0") == 1.0


def test_a_lane_that_yields_is_slowed_and_slows_others_little():
    device = processor(others=4.0)
    device.runs(0, [(1, 1), (1, 1)], ["cpu0", "cpu1"])
    assert device.pace_of("cpu1") > 8 * device.pace_of("cpu0") > 8.0
