"""The rule and the bound on the arrivals of ``scripts/bench/arbiter.py``, on cases that can be counted by hand."""

from __future__ import annotations

import random

import pytest
from lib.three_apps import App, Bid, at_most, by_rule, chosen, least_ms, most_work

FRAMES = App({size: 3 + 2 * size for size in range(1, 9)}, 40.0, 2.5)
QUERIES = App({size: 12 + 4 * size for size in range(1, 17)}, 150.0, 5.0)
TURNS = App({1: 8.0}, 1500.0, 160.0, steps=20)
APPS = {"frames": FRAMES, "queries": QUERIES, "turns": TURNS}


def test_a_lone_request_of_each_app_is_in_time_and_nobody_waits_for_more():
    for name, app in APPS.items():
        assert by_rule({name: app}, {name: [0.0]}) == {name: 1}
        assert at_most({name: app}, {name: [0.0]}) == pytest.approx(app.worth)


def test_the_bid_that_bears_to_wait_goes_second():
    urgent = Bid("a", [0], [10.0], 1.0, 5.0, 5.0)
    patient = Bid("b", [0], [100.0], 9.0, 8.0, 8.0)
    assert chosen([patient, urgent], 0.0) is urgent
    assert chosen([patient, urgent], 6.0) is patient  # the urgent one is late whatever is done


def test_a_turn_that_can_no_longer_end_in_time_is_dropped_for_the_next():
    turns = App({1: 10.0}, 35.0, 1.0, steps=3)
    assert by_rule({"t": turns}, {"t": [0.0, 1.0]}) == {"t": 1}  # 30 ms each, the second would end at 60
    assert by_rule({"t": turns}, {"t": [0.0, 30.0]}) == {"t": 2}


def test_a_request_costs_the_least_share_of_a_batch_that_its_neighbours_allow():
    assert least_ms(FRAMES, [0.0]) == [5.0]
    assert least_ms(FRAMES, [0.0, 33.0, 100.0]) == [3.5, 3.5, 5.0]  # 7 ms, begun at 33, end when the first is due
    assert least_ms(FRAMES, [0.0, 33.5]) == [5.0, 5.0]
    assert least_ms(TURNS, [0.0, 0.0]) == [160.0, 160.0]


def test_divisible_work_is_cut_where_it_is_due_and_idle_time_is_lost():
    assert most_work([(0.0, 10.0, 4.0), (0.0, 10.0, 4.0)]) == pytest.approx(8.0)
    assert most_work([(0.0, 10.0, 8.0), (0.0, 10.0, 8.0)]) == pytest.approx(10.0)
    assert most_work([(0.0, 10.0, 2.0), (20.0, 25.0, 9.0)]) == pytest.approx(7.0)
    assert most_work([(0.0, 100.0, 50.0), (10.0, 15.0, 5.0)]) == pytest.approx(55.0)


@pytest.mark.parametrize("seed", range(4))
def test_the_rule_stays_below_the_bound_and_the_bound_below_what_was_offered(seed):
    draw = random.Random(seed)
    arrivals = {
        name: sorted([draw.uniform(0.0, 3000.0) for _ in range(count)])
        for name, count in (("frames", 600), ("queries", 300), ("turns", 8))
    }
    value = sum([APPS[name].worth * count for name, count in by_rule(APPS, arrivals).items()])
    offered = sum([APPS[name].worth * len(every) for name, every in arrivals.items()])
    assert 0.5 * offered < value < at_most(APPS, arrivals) < offered
