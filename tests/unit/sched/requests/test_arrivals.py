"""The expected time of a source's next request."""

from __future__ import annotations

import pytest

from edgeserve.sched.requests.arrivals import Sources

MS = 1_000_000
KEY = ("app", "camera")


def after(gaps_ms, periods=None, key=KEY, start_ms=0):
    """The expectation after requests with these gaps: (earliest, latest) in ms after the last, or None."""
    periods, at_ms = periods or Sources(), start_ms
    found = periods.came(key, round(at_ms * MS))
    for gap_ms in gaps_ms:
        at_ms += gap_ms
        found = periods.came(key, round(at_ms * MS))
    return None if found is None else tuple((at_ns - round(at_ms * MS)) / MS for at_ns in found)


def test_a_regular_stream_is_expected_a_little_before_its_period_at_the_earliest():
    assert after([64] * 8) == (60, 64)


@pytest.mark.parametrize("gaps", [[], [64], [64] * 3])
def test_nothing_is_expected_before_enough_is_known(gaps):
    assert after(gaps) is None


def test_jitter_widens_what_is_expected():
    earliest, latest = after([64, 72, 56, 64, 60, 68])
    assert (earliest, latest) == (52.5, 72)


@pytest.mark.parametrize(
    "gaps",
    [
        [10, 100, 40, 300, 5, 60, 90, 20],  # a person presses a button
        [0, 128, 0, 128, 0, 128, 0, 128],  # frames in pairs
        [0] * 8,
        [66, 132, 66, 132, 66, 132, 66, 132],
    ],
)  # every other one is lost on the way
def test_nothing_is_expected_of_an_irregular_stream(gaps):
    assert after(gaps) is None
