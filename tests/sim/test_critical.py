"""Critical requests are a reservation: what is long on a lane, or holds them up together, does not make them late."""

from __future__ import annotations

import pytest
from bench import heldout
from common.heldout_worlds import draw_any
from cores import run_interpreted

SECONDS = 20.0
LOADS = (0.7, 1.0, 1.3)
SEEDS = {"long_beside_short": 11, "mixed_slo_critical": 14}  # to develop on
CRITICAL = {"long_beside_short": "pipe", "mixed_slo_critical": "ctl"}


def in_time(name, load, policy="plan"):
    """Percent in time of the critical app, and what the others have at least."""
    apps = heldout.run(draw_any(name, SEEDS[name], load, SECONDS), policy, SECONDS).apps
    return apps[CRITICAL[name]], sum([share for app, share in apps.items() if app != CRITICAL[name]])


@pytest.mark.worlds
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", sorted(SEEDS))
def test_critical_requests_are_in_time_beside_long_batches_and_full_lanes(name, load):
    critical, others = in_time(name, load)
    assert critical >= 99.0
    assert others > 0.0, "the lane is theirs where no critical request needs it"
    assert in_time(name, load, "edf")[0] < 95.0


UNLEARNT = """
from bench import heldout
from common.heldout_worlds import draw_any
from edgeserve.sched.requests.critical import CriticalArrivals
CriticalArrivals.ended = lambda self, app, in_time: None
print(heldout.run(draw_any("{name}", {seed}, 1.0, {seconds}), "plan", {seconds}).apps["{app}"])
"""


@pytest.mark.worlds
@pytest.mark.parametrize("name", sorted(SEEDS))
def test_how_much_room_they_need_is_learnt_from_those_that_are_late(name):
    code = UNLEARNT.format(name=name, seed=SEEDS[name], seconds=SECONDS, app=CRITICAL[name])
    assert float(run_interpreted(code)) < 99.0
