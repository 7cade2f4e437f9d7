"""The decisions of the plan in drawn mixes are the stored ones: a change that is meant to move code alone, or to be
faster, decides nothing otherwise where companies, members, steps and lengths compete for a lane.

After a change that is meant: ``python tests/golden/test_mixes.py``, and measure what it brings
(``research/bench/heldout.py``).
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "research"))

import pytest
from common.heldout_worlds import draw_any

from edgeserve.loop.drive import drive
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sim.run import make_world, sequences_of, setting_of, told_times
from edgeserve.taps.trace import step_line

STORED = Path(__file__).with_name("mixes.json")
SECONDS = 8.0
RUNS = [
    *(
        (mix, seed, load)
        for mix in ("home", "robot", "workstation")
        for seed, load in ((900, 0.7), (901, 1.0), (902, 1.3))
    ),
    *(("shapes", seed, load) for seed, load in enumerate((0.7, 1.0, 1.3, 1.0, 1.3, 2.0), 900)),
    *((world, 900, 1.3) for world in ("cameras", "dynamic_told", "dynamic_untold", "eight_values", "fan_tail")),
    *((world, 900, 1.3) for world in ("long_beside_short", "rare_models")),
]


def digest_of(mix, seed, load):
    """The sha256 of every step of the plan in a mix."""
    scenario = draw_any(mix, seed, load, SECONDS).scenario
    setting = setting_of(scenario.config, (), scenario.run.cold)
    scheduler = build_scheduler(
        scenario.config,
        (),
        footprints=setting.footprints,
        measured=told_times(scenario),
        resident=setting.resident,
        sequences=sequences_of(scenario),
    )
    found = hashlib.sha256()
    world = make_world(scenario, f"{mix}/{seed}", (), setting=setting)
    drive(scheduler, world, (lambda *step: found.update(step_line(*step).encode()),))
    return found.hexdigest()


def name_of(run):
    return "/".join(map(str, run))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before 3.12 Python rounds sums otherwise")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="another processor may round otherwise")
@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_decides_as_stored(run):
    assert digest_of(*run) == json.loads(STORED.read_text(encoding="utf-8"))[name_of(run)]


if __name__ == "__main__":
    STORED.write_text(json.dumps({name_of(run): digest_of(*run) for run in RUNS}, indent=1) + "\n", encoding="utf-8")
