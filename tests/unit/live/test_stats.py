"""Counts of the live world: percentiles by rank, reasons within a bound."""

from __future__ import annotations

from edgeserve.live.stats import OTHER_REASONS, REASONS_MAX, AppCounts, LaneCounts, percentiles_ms
from edgeserve.sched.protocol.actions import LatencyBreakdown, Outcome


def test_percentiles_by_the_nearest_rank() -> None:
    assert percentiles_ms([ms * 10**6 for ms in range(100, 0, -1)]) == {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert percentiles_ms([7 * 10**6]) == {"p50": 7, "p90": 7, "p99": 7, "max": 7}
    assert percentiles_ms([]) == {}


def test_an_apps_table_adds_up() -> None:
    counts = AppCounts()
    counts.accepted = 4
    counts.completed(2 * 10**6, False, LatencyBreakdown(1 * 10**6, 0, 0, 10**6))
    counts.completed(4 * 10**6, True, LatencyBreakdown(3 * 10**6, 0, 0, 10**6))
    counts.ended(Outcome.DROPPED, "expired")
    table = counts.table()
    assert (table["open"], table["late"], table["reasons"]) == (1, 1, {"dropped": {"expired": 1}})
    assert table["breakdown_ms"] == {"queue": 2.0, "load": 0.0, "batch": 0.0, "execute": 1.0}
    assert table["latency_ms"]["max"] == 4.0


def test_reasons_with_numbers_in_them_do_not_grow_the_table_without_end() -> None:
    counts = AppCounts()
    for number in range(REASONS_MAX + 10):
        counts.ended(Outcome.FAILED, f"reason {number}")
    counts.ended(Outcome.FAILED, "reason 0")
    table = counts.reasons[Outcome.FAILED]
    assert len(table) == REASONS_MAX + 1
    assert (table[OTHER_REASONS], table["reason 0"]) == (10, 2)


def test_a_lane_hangs_when_its_oldest_work_is_older_than_it_may_be() -> None:
    counts = LaneCounts()
    counts.in_flight = {1: 100, 2: 900}
    assert counts.table(1000, 0, 800)["state"] == "hangs"
    assert counts.table(1000, 0, 901)["state"] == "up"
    counts.up = False
    assert counts.table(1000, 0, 800)["state"] == "down"
