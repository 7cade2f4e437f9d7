"""Write the golden traces' actions and the soak digests anew from what the scheduler decides now. Review the diff.

Only what a recording's events lead to is replaced; the events and the configuration stay as stored.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import sys

from edgeserve.config.loading import parse_config
from edgeserve.errors import PolicyError
from edgeserve.sched.core.build import build_scheduler
from edgeserve.taps.trace import Recorder, build_inputs, read_recording
from edgeserve.testing.soak.run import EXACT_KINDS, soak

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "golden")
DIGEST_SEEDS = (1, 2, 3, 5, 8, 13, 21, 34)
SOAK_RUNS = 100
"""As many as ``tests/sim/test_soak.py`` runs."""


def main() -> int:
    for path in sorted(glob.glob(os.path.join(GOLDEN, "*.jsonl"))):
        recording = read_recording(path)
        scheduler = build_scheduler(parse_config(recording.start["config"]), (), **build_inputs(recording.start))
        part = f"{path}.part"
        recorder = Recorder(part, recording.start)
        changed = 0
        try:
            for step in recording.steps:
                actions = scheduler.step(step.now_ns, step.events)
                changed += tuple(actions) != step.actions
                recorder.tap(step.now_ns, step.events, actions)
        except PolicyError as error:
            recorder.close()
            os.remove(part)
            name = os.path.splitext(os.path.basename(path))[0]
            print(f"{name}: the recording no longer follows ({error}); delete and redraw it (draw_golden.py)")
            continue
        recorder.close()
        os.replace(part, path)
        print(f"{os.path.basename(path)}: {changed} of {len(recording.steps)} steps decided otherwise")
    path = os.path.join(GOLDEN, "digests.json")
    with open(path, "w", encoding="utf-8") as file:
        exact = {str(seed): soak(seed, policies=EXACT_KINDS).digest for seed in DIGEST_SEEDS}
        json.dump(
            {"exact": exact, "machine": platform.machine(), "all": [soak(seed).digest for seed in range(SOAK_RUNS)]},
            file,
            indent=1,
        )
        file.write("\n")
    print(f"{os.path.basename(path)}: {len(DIGEST_SEEDS) + SOAK_RUNS} seeds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
