"""A device that lowers its clock while it idles: what is promised after a rest is kept."""

from __future__ import annotations

import pytest
from scenarios import NO_STEP_COSTS, scenario_of

from edgeserve.config.profiles import LaneProfile, Profile, Timing
from edgeserve.sched.protocol.actions import FinishRequest
from edgeserve.sim.run import simulate

S, MS = 10**9, 10**6


def ends(slo_ms, rested_ms, every_s=12.0, seconds=60.0):
    """The ends of requests that come when nothing ran for a while, each with its time; a batch takes 20 ms, and 65 ms
    at the clock of an idle device, which rises after 80 ms of work."""
    setting = scenario_of(
        {"m": {1: 20}},
        {"a": {"model": "m", "slo": f"{slo_ms}ms"}},
        {"w": {"app": "a", "kind": "periodic", "rate": 1 / every_s}},
        seconds=seconds,
        run=NO_STEP_COSTS,
        policy={"plan": {"trials": False}},
        device={"gpu": {}},
        lane={"gpu0": {"device": "gpu"}},
        hardware={"gpu": {"clocks": [306.0, 1000.0], "governor": "ondemand", "ramp": "80ms"}},
    )
    timing = Timing(100, 20 * MS, 20 * MS, 20 * MS, 0, (20 * MS,) * 15)
    profile = Profile("m", "here", {"gpu0": LaneProfile({1: timing}, rested_ns=round(rested_ms * MS))})
    found = []

    def note(now_ns, events, actions):
        found.extend(action for action in actions if isinstance(action, FinishRequest))

    simulate(setting, 1, [profile], on_step=note)
    assert len(found) >= seconds / every_s - 2
    return found


def test_a_deadline_that_is_too_short_after_a_rest_is_refused_and_the_one_that_is_named_holds():
    unaware = ends(40, 0)
    assert {(end.outcome, end.breakdown.execute_ns > 40 * MS) for end in unaware} == {("completed", True)}, "all late"
    refused = ends(40, 65.4)
    assert {end.outcome for end in refused} == {"rejected"}
    named_ms = max(end.shortfall.slo_ns_min for end in refused) / MS
    assert named_ms == pytest.approx(65.4, abs=0.5)
    kept = ends(named_ms, 65.4)
    assert {(end.outcome, end.breakdown.execute_ns <= named_ms * MS) for end in kept} == {("completed", True)}


def test_what_a_rest_costs_follows_what_batches_after_rests_took():
    """A profile of clocks that were not locked, served with locked ones, and the other way round."""
    too_long = ends(100, 95.0)
    assert {end.outcome for end in too_long} == {"completed"}
    assert {end.outcome for end in ends(80, 66.0, every_s=3.0)} == {"completed"}
    assert [end.outcome for end in ends(66, 20.5)] == ["completed"] * len(too_long)


@pytest.mark.parametrize(("kind", "refused"), [("cuda", set()), ("cpu", {"rejected"})])
def test_a_lane_whose_gpu_works_for_another_lane_has_not_rested(kind, refused):
    setting = scenario_of(
        {"m": {1: 20, "lanes": ["one"]}, "busy": {1: 20, "lanes": ["two"]}},
        {"a": {"model": "m", "slo": "40ms"}, "b": {"model": "busy", "slo": "200ms"}},
        {
            "w": {"app": "a", "kind": "periodic", "rate": 0.2},
            "v": {"app": "b", "kind": "periodic", "rate": 2.0},
        },
        seconds=20.0,
        run=NO_STEP_COSTS,
        policy={"plan": {"trials": False}},
        device={"d": {"kind": kind}},
        lane={"one": {"device": "d"}, "two": {"device": "d"}},
    )
    timing = Timing(100, 20 * MS, 20 * MS, 20 * MS, 0, (20 * MS,) * 15)
    profiles = [
        Profile("m", "here", {"one": LaneProfile({1: timing}, rested_ns=65 * MS)}),
        Profile("busy", "here", {"two": LaneProfile({1: timing})}),
    ]
    found = []

    def note(now_ns, events, actions):
        found.extend(action for action in actions if isinstance(action, FinishRequest))

    simulate(setting, 1, profiles, on_step=note)
    assert {end.outcome for end in found} == {"completed", *refused}
