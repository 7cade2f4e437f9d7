"""Lanes of the simulated world: packing beside execution, launched works and their windows, contention of a device's
lanes."""

from __future__ import annotations

import pytest
from scenarios import NO_STEP_COSTS, scenario_of

from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.events import WorkFinished
from edgeserve.sim.run import simulate
from edgeserve.units import NS_PER_MS, NS_PER_US


def run_of(depth=1, pack="0us", lanes=1, contention=1.0, clients=8, **truth):
    """A run in which enough clients wait all the time: its executions per lane, and their starts and ends."""
    names = [f"gpu{index}" for index in range(lanes)]
    scenario = scenario_of(
        {"m": {1: 2}},
        {"a": {"model": "m", "slo": "1s"}},
        {"w": {"app": "a", "kind": "closed", "clients": clients}},
        "fifo",
        seconds=0.1,
        run={**NO_STEP_COSTS, "contention": {"gpu": contention}},
        device={"gpu": {}},
        lane={name: {"device": "gpu", "depth": depth} for name in names},
        truth={"m": {"pack": pack, **truth}},
    )
    spans = {name: [] for name in names}
    lane_of = {}

    def on_step(now_ns, events, actions):
        for event in events:
            if isinstance(event, WorkFinished):
                spans[lane_of[event.work_id]].append((event.started_ns, event.finished_ns))
        lane_of.update({action.work_id: action.lane for action in actions if hasattr(action, "jobs")})

    run = simulate(scenario, 1, on_step=on_step)
    return run, spans


def gaps_us(spans):
    return {(second[0] - first[1]) // NS_PER_US for first, second in zip(spans, spans[1:])}


def durations_ms(spans):
    return {(end_ns - start_ns) / NS_PER_MS for start_ns, end_ns in spans}


def test_packing_stands_between_the_batches_of_a_lane_of_depth_one():
    _, spans = run_of(pack="300us")
    assert gaps_us(spans["gpu0"]) == {300}
    assert durations_ms(spans["gpu0"]) == {2.0}


def test_at_depth_two_the_next_batch_is_packed_while_one_runs():
    run, spans = run_of(depth=2, pack="300us")
    assert gaps_us(spans["gpu0"]) == {0}
    assert durations_ms(spans["gpu0"]) == {2.0}  # and what is learnt is the device's time
    assert run.scheduler.state.latency["m", "gpu0"].typical_ns[1] == 2 * NS_PER_MS


def test_packing_that_takes_longer_than_execution_is_what_bounds_the_lane():
    _, spans = run_of(depth=2, pack="3ms")
    assert gaps_us(spans["gpu0"]) == {1000}


def test_lanes_of_a_device_slow_each_other_as_long_as_they_run_together():
    _, alone = run_of(contention=1.5)
    assert durations_ms(alone["gpu0"]) == {2.0}
    _, both = run_of(lanes=2, contention=1.5)
    assert durations_ms(both["gpu0"][2:-2]) == durations_ms(both["gpu1"][2:-2]) == {3.0}
    _, three = run_of(lanes=3, contention=1.5)
    assert durations_ms(three["gpu2"][2:-2]) == {4.0}
    _, apart = run_of(lanes=2)
    assert durations_ms(apart["gpu0"]) == {2.0}


def test_a_work_that_runs_beside_another_for_half_its_time_is_slowed_for_half():
    scenario = scenario_of(
        {"m": {1: 4, "lanes": ["x"]}, "n": {1: 1, "lanes": ["y"]}},
        {"a": {"model": "m", "slo": "1s"}, "b": {"model": "n", "slo": "1s"}},
        {
            "w": {"app": "a", "kind": "periodic", "rate": 2000, "stop": "500us"},
            "v": {"app": "b", "kind": "periodic", "rate": 2000, "start": "1ms", "stop": "1500us"},
        },
        "fifo",
        seconds=0.02,
        run={**NO_STEP_COSTS, "contention": {"gpu": 2.0}},
        device={"gpu": {}},
        lane={"x": {"device": "gpu"}, "y": {"device": "gpu"}},
    )
    spans = []
    simulate(
        scenario,
        1,
        on_step=lambda now_ns, events, actions: spans.extend(
            (event.finished_ns - event.started_ns) / NS_PER_MS for event in events if isinstance(event, WorkFinished)
        ),
    )
    assert spans == [2.0, 5.0]  # the short one beside the long one all the time; the long one for two of its five


def test_contention_below_one_is_refused():
    with pytest.raises(ConfigError, match=r"\[run\] contention.gpu = 0.5: expected a number from 1.0"):
        run_of(contention=0.5)
