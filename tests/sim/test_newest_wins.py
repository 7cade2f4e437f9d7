"""Cameras whose newest frame counts, beside other apps: a frame begins before the next one takes its place."""

from __future__ import annotations

import pytest

from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

SECONDS = 20
CAMERA = {"1": "10ms", "2": "14ms", "4": "20ms", "8": "32ms"}


def shares(policy, stream="newest_wins", **arrivals):
    """Finish rates of a camera (a frame every 66 ms, due in 300) and of another app (10 ms, due in 60) that together
    need 78 % of the lane."""
    scenario = parse_scenario(
        {
            "lane": {"gpu": {}},
            "policy": {policy: {}},
            "model": {
                "camera": {"engine": "synthetic", "batch": [1, 2, 4, 8], "expected": CAMERA},
                "other": {"engine": "synthetic", "batch": [1], "expected": {"1": "10ms"}},
            },
            "app": {
                "camera": {"model": "camera", "slo": "300ms", "stream": stream},
                "other": {"model": "other", "slo": "60ms"},
            },
            "workload": {
                "camera": {"app": "camera", "kind": "periodic", "rate": 15, "streams": 1, **arrivals},
                "other": {"app": "other", "kind": "poisson", "rate": 63},
            },
            "run": {"duration": f"{SECONDS}s", "noise": 0.03},
        }
    )
    worlds = [simulate(scenario, seed).world for seed in range(3)]
    return {name: app.finish_rate for name, app in report_of(worlds, 0, SECONDS * 10**9).apps.items()}


@pytest.mark.worlds
@pytest.mark.parametrize("jitter", ["0ms", "20ms"])
@pytest.mark.parametrize("policy", ["edf", "orloj+"])
def test_a_frame_begins_before_the_next_one_comes(policy, jitter):
    found = shares(policy, jitter=jitter)
    assert found["camera"] >= 0.95  # what is left: another app's requests that are worth more and cannot wait either
    assert found["other"] >= 0.98


@pytest.mark.worlds
def test_irregular_frames_are_served_as_by_their_deadlines_alone(monkeypatch):
    with_periods = shares("edf", kind="poisson")
    monkeypatch.setattr("edgeserve.sched.requests.arrivals.GAPS_MIN", 10**9)
    assert shares("edf", kind="poisson") == with_periods


def test_frames_that_replace_each_other_are_not_counted_as_a_queue():
    """Three cameras send more than the lane can do. Whichever batch runs, each has one frame waiting when it ends: two
    at a time and then a full batch of four looked best as long as every arrival counted."""
    scenario = parse_scenario(
        {
            "lane": {"gpu": {}},
            "policy": {"edf": {}},
            "model": {
                "m": {"engine": "synthetic", "batch": [1, 2, 4], "expected": {"1": "67ms", "2": "95ms", "4": "126ms"}}
            },
            "app": {"camera": {"model": "m", "slo": "345ms", "stream": "newest_wins"}},
            "workload": {"camera": {"app": "camera", "kind": "periodic", "rate": 36, "streams": 3}},
            "run": {"duration": "20s", "noise": 0.0},
        }
    )
    app = report_of([simulate(scenario, 1).world], 0, 20 * 10**9).apps["camera"]
    assert app.finish_rate >= 0.64  # three per batch of 126 ms; two per 95 ms are 0.58
