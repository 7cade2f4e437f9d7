"""Units: what people write and read, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve import units


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("50ms", 50_000_000),
        ("1.5s", 1_500_000_000),
        ("2min", 120_000_000_000),
        ("1h", 3_600_000_000_000),
        ("7ns", 7),
        ("850us", 850_000),
        ("850µs", 850_000),
        (" 3 MS ", 3_000_000),
        ("0s", 0),
    ],
)
def test_durations_are_read(text, expected_ns):
    assert units.parse_duration_ns(text) == expected_ns


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [("64MiB", 64 * 1024**2), ("2GB", 2_000_000_000), ("1.5 kib", 1536), ("10B", 10), ("3KB", 3000), ("1GiB", 1024**3)],
)
def test_sizes_are_read(text, expected_bytes):
    assert units.parse_size_bytes(text) == expected_bytes


def test_one_thing_has_no_plural():
    assert [units.counted(count, "model") for count in (0, 1, 2)] == ["0 models", "1 model", "2 models"]


@pytest.mark.parametrize("text", ["50", "ms", "-5ms", "5 parsecs", "", "1e3ms", "5ms later", 50, None])
def test_wrong_durations_name_the_value_and_what_was_expected(text):
    with pytest.raises(ValueError) as caught:
        units.parse_duration_ns(text)
    assert repr(text) in str(caught.value)
    assert "such as '50ms'" in str(caught.value)


@pytest.mark.parametrize("text", ["64", "64MS", "-1MB", 64])
def test_wrong_sizes_name_the_value_and_what_was_expected(text):
    with pytest.raises(ValueError, match="such as '64MiB'"):
        units.parse_size_bytes(text)


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (0, "0ns"),
        (999, "999ns"),
        (850_000, "850us"),
        (12_345_678, "12.3ms"),
        (2_000_000_000, "2s"),
        (90_000_000_000, "90s"),
        (119_000_000_000, "119s"),
        (180_000_000_000, "3min"),
        (5_400_000_000_000, "90min"),
        (7_200_000_000_000, "2h"),
        (-5_000_000, "-5ms"),
    ],
)
def test_durations_are_written_short(value_ns, text):
    assert units.format_duration(value_ns) == text


@pytest.mark.parametrize(
    ("value_bytes", "text"),
    [(0, "0B"), (1023, "1023B"), (1536, "1.5KiB"), (64 * 1024**2, "64MiB"), (3 * 1024**3, "3GiB")],
)
def test_sizes_are_written_short(value_bytes, text):
    assert units.format_size(value_bytes) == text


@given(st.integers(0, 10**6))
def test_a_round_trip_through_milliseconds_or_seconds_changes_nothing(value_ms):
    assert units.ms_to_ns(units.ns_to_ms(value_ms * 1_000_000)) == value_ms * 1_000_000
    assert units.s_to_ns(units.ns_to_s(value_ms * 1_000_000)) == value_ms * 1_000_000
    assert units.parse_duration_ns(f"{value_ms}ms") == value_ms * 1_000_000


def test_fractions_of_a_millisecond_round_to_the_nearest_nanosecond():
    assert units.ms_to_ns(0.1) == 100_000
    assert units.ms_to_ns(1e-6 * 1.6) == 2
    assert units.s_to_ns(0.0333) == 33_300_000


@given(st.integers(0, 10**16))
def test_a_duration_rounded_up_is_never_less_and_hardly_more(value_ns):
    text = units.format_duration(value_ns, round_up=True)
    read_ns = units.parse_duration_ns(text)
    assert value_ns <= read_ns <= value_ns * 1.01 + 1


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (0, "0ns"),
        (850_000, "850us"),
        (70_040_000, "70.1ms"),
        (70_100_000, "70.1ms"),
        (999_600, "1000us"),
        (2_000_000_001, "2.01s"),
        (118_000_000_000, "118s"),
        (150_000_000_000, "2.5min"),
    ],
)
def test_durations_rounded_up(value_ns, text):
    assert units.format_duration(value_ns, round_up=True) == text
