"""Recordings that the simulator made, for tests: what the truth is, is known."""

from __future__ import annotations

from edgeserve.config.toml_files import parse_toml
from edgeserve.sim.run import setting_of, simulate
from edgeserve.sim.scenario import parse_scenario
from edgeserve.taps.trace import RecordedStep, Recording, start_of


def recording_of(scenario, seed=0):
    """A scenario (as text) and the recording of one run of it."""
    parsed = parse_scenario(parse_toml(scenario))
    steps = []

    def on_step(now_ns, events, actions):
        steps.append(RecordedStep(now_ns, tuple(events), tuple(actions)))

    simulate(parsed, seed, (), on_step=on_step)
    setting = setting_of(parsed.config)
    return parsed, Recording({"config": parsed.edge, **start_of(setting.footprints, setting.resident)}, steps)
