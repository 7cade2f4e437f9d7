"""When the next request of a stream is expected."""

from __future__ import annotations

import pytest

from edgeserve.sched.resources import frame_periods
from edgeserve.sched.resources.frame_periods import FramePeriods

MS = 1_000_000
SILENT_NS, GAPS_LEN = 60_000 * MS, 16
KEY = ("app", "camera")


def after(gaps_ms, periods=None, key=KEY, start_ms=0):
    """What is expected after requests with these gaps: (earliest, latest) in ms after the last, or None."""
    periods, at_ms = periods or FramePeriods(), start_ms
    found = periods.arrived(key, round(at_ms * MS))
    for gap_ms in gaps_ms:
        at_ms += gap_ms
        found = periods.arrived(key, round(at_ms * MS))
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
        [10, 100, 40, 300, 5, 60, 90, 20],  # somebody presses a button
        [0, 128, 0, 128, 0, 128, 0, 128],  # frames in pairs
        [0] * 8,
        [66, 132, 66, 132, 66, 132, 66, 132],
    ],
)  # every other one is lost on the way
def test_nothing_is_expected_of_an_irregular_stream(gaps):
    assert after(gaps) is None


def test_one_lost_frame_or_pause_among_eight_is_an_exception():
    assert after([64, 64, 64, 5000, 64, 64, 64, 64]) == (60, 64)
    assert after([64, 64, 64, 5000, 64, 64, 64, 200]) is None


@pytest.mark.parametrize("odd", [(5000, 5000), (1, 1), (1, 5000)])
def test_two_of_sixteen_are_exceptions_on_either_side(odd):
    assert after([64] * 20 + [*odd] + [64] * 14) == (60, 64)
    assert after([64] * 20 + [*odd, odd[-1]] + [64] * 13) == (None if odd[0] == odd[1] else (60, 64))


def test_the_shortest_period_is_a_nanosecond():
    periods = FramePeriods()
    for at_ns in range(5):
        found = periods.arrived(KEY, at_ns)
    assert found == (5, 5)


def test_another_rate_is_learnt_and_nothing_is_expected_meanwhile():
    gaps = [64] * 16
    assert after([*gaps, 32, 32, 32, 32]) is None
    assert after([*gaps, *[32] * 16]) == (30, 32)


def test_streams_are_told_apart_and_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(frame_periods, "STREAMS_MAX", 2)
    periods = FramePeriods()
    assert after([64] * 8, periods, ("app", "a")) == (60, 64)
    assert after([32] * 8, periods, ("app", "b")) == (30, 32)
    assert after([16], periods, ("app", "c")) is None
    assert after([32], periods, ("app", "b"), start_ms=256) is not None
    assert after([64], periods, ("app", "a"), start_ms=512) is None  # forgotten


def test_streams_that_come_once_are_forgotten_after_their_silence():
    periods, apart_ns = FramePeriods(), SILENT_NS // 10
    for number in range(1000):
        periods.arrived(("app", f"of a client that vanished {number}"), number * apart_ns)
        periods.arrived(KEY, number * apart_ns)
    assert len(periods._streams) <= 12
    assert periods.arrived(KEY, 1000 * apart_ns) is not None, "one that goes on is not"
    assert periods.arrived(KEY, 1001 * apart_ns + SILENT_NS) is None, "after its silence it is new"
    assert after([64] * 100) == (60, 64)
    for _, gaps_ns in periods._streams.values():
        assert len(gaps_ns) <= GAPS_LEN
