"""Golden traces: one behaviour each, named after it. Replay feeds the stored events and compares every action.

After a change that is meant: ``python scripts/dev/update_golden.py``, and read the diff. ``drawn_*.jsonl`` are small
worlds of each policy in each situation, and of the soak (``scripts/dev/draw_golden.py``).
"""

from __future__ import annotations

import glob
import os
import platform

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.sched.core.build import build_scheduler
from edgeserve.taps.replay import replay
from edgeserve.taps.trace import build_inputs, read_recording
from edgeserve.testing.invariants import check_invariants

HERE = os.path.dirname(os.path.abspath(__file__))
PATHS = sorted(glob.glob(os.path.join(HERE, "*.jsonl")))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: os.path.basename(path)[:-6])
def test_decides_as_recorded(path):
    recording = read_recording(path)
    if recording.start.get("machine", platform.machine()) != platform.machine():
        pytest.skip("numpy may round otherwise on another processor than the one that the trace is of")
    assert recording.start["behaviour"]
    assert any(step.actions for step in recording.steps)
    scheduler = build_scheduler(parse_config(recording.start["config"]), (), **build_inputs(recording.start))
    difference = replay(scheduler, recording.steps)
    assert difference is None, f"{recording.start['behaviour']}\n{difference}"
    check_invariants(scheduler.state)


def test_there_are_golden_traces():
    assert len(PATHS) >= 100
