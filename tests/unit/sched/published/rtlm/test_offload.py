"""Which tasks go to a side lane, and the sliding quantile that counts as long."""

from __future__ import annotations

import random

from edgeserve.sched.published.rtlm.offload import MainLane, RankWindow, goes_off, slowed_ns

MAIN = MainLane(begins_ns=1000.0, step_ns=10.0, prefill_ns=20.0, waiting=4, batch=8, mean_steps=20.0)


def test_a_long_task_goes_off_when_it_ends_earlier_there_with_what_others_are_spared():
    assert goes_off(50.0, 40.0, 1669.0, MAIN)
    assert not goes_off(50.0, 40.0, 1670.0, MAIN)


def test_a_task_that_is_not_long_stays_however_idle_the_side_lane():
    assert not goes_off(40.0, 40.0, 0.0, MAIN)


def test_a_busier_processor_than_when_it_was_measured_takes_longer_and_nothing_shorter():
    assert slowed_ns(100.0, 0.5, 1.0) == 200.0
    assert slowed_ns(100.0, 0.5, 0.5) == 100.0  # the times hold that load already
    assert slowed_ns(100.0, 1.0, 0.5) == 100.0


def test_the_quantile_of_the_last_numbers_is_that_of_a_sorted_list():
    draw, window, kept = random.Random(3), RankWindow(50), []
    assert window.quantile(0.9) == 0.0 and window.mean() == 0.0
    for _ in range(300):
        value = draw.lognormvariate(3, 1)
        window.add(value)
        kept = [*kept, value][-50:]
        assert window.quantile(0.9) == sorted(kept)[min(len(kept) - 1, int(0.9 * len(kept)))]
        assert abs(window.mean() - sum(kept) / len(kept)) < 1e-9
    assert len(window) == 50
