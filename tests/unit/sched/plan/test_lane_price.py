"""The lane's price: work of short deadlines does not crowd out what brings more for the time and can wait."""

from __future__ import annotations

import pytest
from bench import heldout
from lib.heldout_mixes import draw_mix

from edgeserve.sched.plan.lane_price import LanePrices

SECONDS = 15.0


def free(prices, lane):
    """A lane whose time costs nothing."""
    return 0.0


@pytest.mark.worlds
@pytest.mark.parametrize("seed", [11, 14])  # seeds to develop on
def test_a_robots_map_is_in_time_more_often_and_its_camera_is_not_given_up(seed, monkeypatch):
    priced = heldout.run(draw_mix("robot", seed, 1.0, SECONDS), "plan", SECONDS)
    monkeypatch.setattr(LanePrices, "of", free)
    unpriced = heldout.run(draw_mix("robot", seed, 1.0, SECONDS), "plan", SECONDS)
    print(priced.apps, unpriced.apps)
    assert priced.apps["map"] > unpriced.apps["map"] + 3
    assert priced.apps["camera"] > 0.8 * unpriced.apps["camera"]
    assert priced.value > unpriced.value


def test_without_overload_nothing_costs(monkeypatch):
    priced = heldout.run(draw_mix("robot", 11, 0.3, 6.0), "plan", 6.0)
    monkeypatch.setattr(LanePrices, "of", free)
    assert heldout.run(draw_mix("robot", 11, 0.3, 6.0), "plan", 6.0).digest == priced.digest
