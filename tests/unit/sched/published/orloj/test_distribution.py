"""Distributions of durations: closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.sched.published.orloj.distribution import Distribution

A = Distribution([10, 20], [0.0, 1.0])  # uniform(10, 20)
B = Distribution([15, 35], [0.0, 1.0])  # uniform(15, 35)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [([A], 15.0), ([B], 25.0), ([A, A], 16.666667), ([A, B], 25.104167), ([A, A, B, B], 28.356771)],
)
def test_means_of_maxima_are_those_of_the_orloj_specification(parts, expected):
    maximum = Distribution.maximum(parts)
    # The specification integrates exactly; ours is a line between points, four more between each two that are given.
    assert maximum.mean_ns() == pytest.approx(expected, rel=0.005)
    fine = [
        Distribution(
            [part.quantile_ns(0) + step * (part.times_ns[-1] - part.times_ns[0]) / 20 for step in range(21)],
            [step / 20 for step in range(21)],
        )
        for part in parts
    ]
    assert Distribution.maximum(fine).mean_ns() == pytest.approx(expected, rel=2e-5)
    assert maximum.times_ns[0] == min(part.times_ns[0] for part in parts)
    assert maximum.p_by(17) == pytest.approx(0.7 ** parts.count(A) * 0.1 ** parts.count(B), abs=0.011)


rising = st.lists(st.integers(1, 10**6), min_size=2, max_size=12, unique=True).map(sorted)


@given(rising, st.floats(0.001, 0.999))
def test_a_quantile_is_the_first_nanosecond_by_which_its_share_is_over(samples, share):
    known = Distribution.of_samples(samples)
    time_ns = known.quantile_ns(share)
    assert known.p_by(time_ns) >= share - 1e-9
    assert known.p_by(time_ns - 1.001) < share + 1e-9


@given(rising)
def test_shares_rise_from_nothing_to_all(samples):
    known = Distribution.of_samples(samples)
    shares = [known.p_by(time) for time in range(samples[0] - 1, samples[-1] + 2, max(1, samples[-1] // 50))]
    assert shares == sorted(shares)
    assert known.p_by(samples[0] - 1) == 0.0
    assert known.p_by(samples[-1]) == 1.0
