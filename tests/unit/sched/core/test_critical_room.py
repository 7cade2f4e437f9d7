"""The learnt room for critical requests, from their ends."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver


def remembered(slo, at):
    """Late critical requests that are remembered after one with this deadline came while a long batch ran."""
    world = Driver(
        {"loop": {1: 10}, "long": {1: 200}},
        {
            "loop": {"model": "loop", "slo": "500ms", "class": "critical"},
            "long": {"model": "long", "slo": "9s"},
        },
        policy="plan",
        lane={"l": {}},
    )
    world.arrive("loop", at=0)
    world.finish("l", at=10)
    world.arrive("long", at=11)
    before = over(world)
    world.arrive("loop", at=at, slo=slo)
    return over(world) - before


def over(world):
    state = world.scheduler.state
    return state.critical.rooms(state.board.apps_on["l"], round(world.now_ms * MS)).over


@pytest.mark.parametrize(("slo", "late"), [(5, 0), (9, 0), (30, 1), (100, 1)])
def test_a_deadline_that_no_lane_could_keep_says_nothing(slo, late):
    assert remembered(slo, at=20) == late
