"""Stated quantiles: corrected by what happened, and counted with and without the correction."""

from __future__ import annotations

import random

import pytest

from edgeserve.sched.published.orloj.calibration import Calibration


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_quantile_that_is_wrong_by_a_factor_holds_once_it_is_corrected(factor: float) -> None:
    draw = random.Random(1)
    calibration, by_itself = Calibration(), 0
    own_ns = round(factor * 100_000)
    for work in range(2000):
        took_ns = round(100_000 * draw.lognormvariate(-1.2816 * 0.3, 0.3))  # its 0.9-quantile is 100 us
        assert calibration.state(work, own_ns) > 0
        calibration.ended(work, took_ns)
        by_itself += took_ns <= own_ns
    assert calibration.stated == 2000
    assert calibration.covered == pytest.approx(1800, abs=40)
    assert calibration.uncorrected == by_itself
    assert calibration.recent() == pytest.approx(0.9, abs=0.05)


def test_a_batch_that_nothing_was_stated_of_or_that_was_lost_counts_nowhere() -> None:
    calibration = Calibration()
    calibration.state(1, 100)
    calibration.lost(1)
    calibration.ended(1, 50)
    calibration.ended(2, 50)
    assert (calibration.stated, calibration.covered, calibration.recent()) == (0, 0, 1.0)
