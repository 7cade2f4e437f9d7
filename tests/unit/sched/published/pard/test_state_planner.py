"""PARD's state planner: quantiles of waits, windows, the load factor and its delayed turns, sums over graphs."""

from __future__ import annotations

import pytest

from edgeserve.sched.published.pard.state_planner import (
    LoadFactor,
)
from edgeserve.sched.published.pard.waits import Waits
from edgeserve.units import PPM

MS = 10**6


# --- waits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "quantile"), [(1, 0.10), (2, 0.447), (3, 0.843), (4, 1.245)])
def test_the_tenth_of_sums_of_uniform_waits_is_the_papers_example(count, quantile):
    waits = Waits("uniform", 0.1, 10_000, 4, seed=1)
    assert waits.quantile_ns(["m"] * count, [PPM] * count) / PPM == pytest.approx(quantile, abs=0.02)


def test_the_quantile_lies_between_nothing_and_everything():
    times = [3 * MS, 5 * MS, 7 * MS]
    found = [Waits("uniform", lam, 2000, 3, seed=1).quantile_ns("abc", times) for lam in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert found[0] == 0 and found[-1] == sum(times)
    assert found == sorted(found)
    assert found[2] == pytest.approx(sum(times) / 2, rel=0.05)
    assert Waits("uniform", 0.1, 100, 3, seed=1).quantile_ns([], []) == 0


def test_observed_waits_are_drawn_again():
    waits = Waits("empirical", 0.5, 4000, 2, seed=1)
    assert waits.quantile_ns("ab", [9, 9]) == 0  # nothing seen: nothing to wait for
    for value in range(1000):
        waits.observe(value, "a", value * 1000)
        waits.observe(value, "b", 5 * MS)
    assert waits.quantile_ns("a", [9]) == pytest.approx(500_000, rel=0.05)
    assert waits.quantile_ns("ab", [9, 9]) == pytest.approx(5_500_000, rel=0.02)


def test_joint_sums_are_of_those_that_passed_the_whole_path():
    waits = Waits("joint", 0.5, 100, 2, seed=1)
    assert waits.quantile_ns("ab", [9, 9]) == 0  # no request passed it yet
    for number in range(9):
        waits.observe(number, "a", number)
        if number < 5:
            waits.observe(number, "b", 100)
    assert waits.quantile_ns("ab", [9, 9]) == 102
    assert waits.quantile_ns("a", [9]) == 4


# --- load factor ------------------------------------------------------------------------------------------------------


def test_the_order_turns_late_both_ways():
    load = LoadFactor()
    turns = []
    for rate in (90, 90, 90, 90, 90, 110, 104, 104, 104, 104, 101, 99, 99, 99, 99, 99, 85):
        load.observe(rate * 1000, 100 * 1000)
        turns.append(load.high)
    #        steady below: no    jumps: 1.10 is not above 1 + eps at once; 0.99 is above 1 - eps: it stays
    assert turns[:5] == [False] * 5
    assert turns[5] is True  # eps is 16 of 560, so 0.029
    assert turns[6:16] == [True] * 10
    assert turns[16] is False


def test_what_jumps_much_turns_late_and_instant_at_once():
    jumpy, instant = LoadFactor(), LoadFactor(instant=True)
    for rate in (50, 150, 50, 150, 50, 110):
        for load in (jumpy, instant):
            load.observe(rate * 1000, 100 * 1000)
    assert jumpy.eps_ppm() > 300_000 and jumpy.high is False
    assert instant.eps_ppm() == 0 and instant.high is True
