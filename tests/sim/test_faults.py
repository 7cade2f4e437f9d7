"""A device that is reset takes all its lanes with it at once, the copy lane too; those of other devices go on."""

from __future__ import annotations

from scenarios import scenario_of

from edgeserve.sched.protocol.events import LaneChanged
from edgeserve.sim.run import simulate


def test_all_lanes_of_a_device_are_lost_together_and_everybody_has_an_end():
    scenario = scenario_of(
        {"m": {1: 3, "lanes": ["a", "b"]}, "n": {1: 3, "lanes": ["c"]}},
        {"one": {"model": "m", "slo": "30ms"}, "other": {"model": "n", "slo": "30ms"}},
        {"w": {"app": "one", "rate": 500.0}, "v": {"app": "other", "rate": 200.0}},
        {"p": {"kind": "edf"}},
        device={"d0": {}, "d1": {}},
        lane={"a": {"device": "d0"}, "b": {"device": "d0"}, "c": {"device": "d1"}},
        faults={"reset_every": "150ms", "lane_loss": "20ms"},
    )
    together = []

    def on_step(now_ns, events, actions):
        lost = {event.lane for event in events if isinstance(event, LaneChanged) and not event.up}
        if lost:
            together.append(lost)

    run = simulate(scenario, 1, settle=True, on_step=on_step)
    assert {"a", "b", "copy:d0"} in together and {"c", "copy:d1"} in together
    assert set(map(frozenset, together)) <= {frozenset(("a", "b", "copy:d0")), frozenset(("c", "copy:d1"))}
    assert run.world.reference_model.open_count == 0 and not run.scheduler.open_count
    outcomes = {item.outcome for item in run.world.ended}
    assert {"completed", "failed"} <= outcomes
