"""Cameras whose newest frame counts, beside other apps: a frame begins before the next one takes its place."""

from __future__ import annotations

import pytest
from scenarios import scenario_of

from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate

SECONDS = 8


def shares(policy, stream="newest_wins", **arrivals):
    """Finish rates of a camera (a frame every 66 ms, due in 300) and of another app (10 ms, due in 60) that together
    need 78 % of the lane."""
    scenario = scenario_of(
        {"camera": {1: 10, 2: 14, 4: 20, 8: 32}, "other": {1: 10}},
        {"camera": {"model": "camera", "slo": "300ms", "stream": stream}, "other": {"model": "other", "slo": "60ms"}},
        {"camera": {"kind": "periodic", "rate": 15, "streams": 1, **arrivals}, "other": {"rate": 63}},
        policy,
        seconds=SECONDS,
        run={"noise": 0.03},
        lane={"gpu": {}},
    )
    worlds = [simulate(scenario, seed).world for seed in range(3)]
    return {name: app.finish_rate for name, app in report_of(worlds, 0, SECONDS * 10**9).apps.items()}


@pytest.mark.worlds
@pytest.mark.parametrize("jitter", ["0ms", "20ms"])
@pytest.mark.parametrize("policy", ["edf", "plan"])
def test_a_frame_begins_before_the_next_one_comes(policy, jitter):
    found = shares(policy, jitter=jitter)
    assert found["camera"] >= 0.95  # what is left: another app's requests that are worth more and cannot wait either
    assert found["other"] >= 0.98


def test_frames_that_replace_each_other_are_not_counted_as_a_queue():
    """Three cameras send more than the lane can do. Whichever batch runs, each has one frame waiting when it ends: two
    at a time and then a full batch of four looked best as long as every arrival counted."""
    scenario = scenario_of(
        {"m": {1: 67, 2: 95, 4: 126}},
        {"camera": {"model": "m", "slo": "345ms", "stream": "newest_wins"}},
        {"camera": {"kind": "periodic", "rate": 36, "streams": 3}},
        "edf",
        seconds=SECONDS,
        lane={"gpu": {}},
    )
    app = report_of([simulate(scenario, 1).world], 0, 20 * 10**9).apps["camera"]
    assert app.finish_rate >= 0.64  # three per batch of 126 ms; two per 95 ms are 0.58
