"""Counts of the live world: percentiles by rank, reasons within a bound; figures of policies that travel, always."""

from __future__ import annotations

import sys
from collections import deque
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from edgeserve.ipc import wire
from edgeserve.live import figures, stats
from edgeserve.live.figures import figures_of
from edgeserve.live.stats import (
    AppCounts,
    LaneCounts,
    energy_of,
    percentiles_ms,
)
from edgeserve.sched.protocol.actions import LatencyBreakdown, Outcome
from edgeserve.sched.published.baselines.fifo import Fifo


def test_the_energy_of_an_app_over_all_devices_and_per_answer_in_time() -> None:
    counts = AppCounts()
    for late in (False, False, True):
        counts.completed(5, late, LatencyBreakdown())
    counts.ended(Outcome.DROPPED, "expired")
    energy = {"gpu": {"energy_j_by_app": {"a": 4.0, "b": 2.0}}, "cpu": {"energy_j_by_app": {"a": 1.0}}}
    assert energy_of("a", energy, counts) == {"energy_j": 5.0, "joules_per_answer": 2.5}
    assert energy_of("a", energy, AppCounts()) == {"energy_j": 5.0, "joules_per_answer": 0.0}
    assert energy_of("c", energy, counts) == {"energy_j": 0.0, "joules_per_answer": 0.0}
    assert energy_of("a", {}, counts) == {}, "no power is reported"


def test_percentiles_by_the_nearest_rank() -> None:
    assert percentiles_ms([ms * 10**6 for ms in range(100, 0, -1)]) == {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert percentiles_ms([7 * 10**6]) == {"p50": 7, "p90": 7, "p99": 7, "max": 7}
    assert percentiles_ms([]) == {}


def test_latencies_are_of_the_last_requests_and_take_the_same_memory_from_the_start() -> None:
    counts = AppCounts()
    assert counts.table()["latency_ms"] == {}
    before = sys.getsizeof(counts._latencies_ns)
    for ms in range(stats.LATENCIES_KEPT + 100):
        counts.completed(ms * 10**6, False, LatencyBreakdown())
    latency_ms = counts.table()["latency_ms"]
    assert latency_ms["max"] == stats.LATENCIES_KEPT + 99
    assert latency_ms["p50"] == 100 + stats.LATENCIES_KEPT // 2 - 1
    assert sys.getsizeof(counts._latencies_ns) == before


def test_an_apps_table_adds_up() -> None:
    counts = AppCounts()
    counts.received = 4
    counts.completed(2 * 10**6, False, LatencyBreakdown(1 * 10**6, 0, 0, 10**6))
    counts.completed(4 * 10**6, True, LatencyBreakdown(3 * 10**6, 0, 0, 10**6))
    counts.ended(Outcome.DROPPED, "expired")
    table = counts.table()
    assert (table["open"], table["late"], table["reasons"]) == (1, 1, {"dropped": {"expired": 1}})
    assert table["breakdown_ms"] == {"queue": 2.0, "load": 0.0, "batch": 0.0, "execute": 1.0, "other": 0.0}
    assert table["latency_ms"]["max"] == 4.0
    histogram = dict(zip(table["latency_histogram"]["bounds_ms"], table["latency_histogram"]["counts"]))
    assert histogram[2.5] == histogram[5.0] == 1
    assert sum(table["latency_histogram"]["counts"]) == 2
    assert table["latency_histogram"]["sum_ms"] == 6.0


def test_what_no_phase_explains_is_told_as_other() -> None:
    counts = AppCounts()
    counts.completed(5 * 10**6, False, LatencyBreakdown(10**6, 0, 0, 2 * 10**6))
    assert counts.table()["breakdown_ms"]["other"] == 2.0


def test_only_codes_are_counted_as_reasons() -> None:
    counts = AppCounts()
    for outcome, reason in [
        (Outcome.FAILED, "model 'm' raised ValueError: hunter2"),
        (Outcome.FAILED, "hunter2"),
        (Outcome.FAILED, "lane cpu0 went down: hunter2"),
        (Outcome.FAILED, "no lane can run model 'm' now"),
        (Outcome.CANCELLED, "its client is gone: its connection closed"),
        (Outcome.CANCELLED, "hunter2"),
        (Outcome.CANCELLED, "cancelled by its client"),
        (Outcome.DROPPED, "Hunter2!"),
        (Outcome.DROPPED, "x" * 100),
        (Outcome.REJECTED, "too many in flight"),
    ]:
        counts.ended(outcome, reason)
    assert counts.table()["reasons"] == {
        "failed": {"model_failed": 2, "lane_lost": 1, "no_lane": 1},
        "cancelled": {"client_gone": 1, "other": 1, "by_client": 1},
        "dropped": {"other": 2},
        "rejected": {"too many in flight": 1},
    }


def test_a_lane_hangs_when_its_oldest_work_is_older_than_it_may_be() -> None:
    counts = LaneCounts()
    counts.in_flight = {1: (100, None), 2: (900, None)}
    assert counts.table(1000, 0, 800)["state"] == "hangs"
    assert counts.table(1000, 0, 901)["state"] == "up"
    counts.up = False
    assert counts.table(1000, 0, 800)["state"] == "down"


class Told(Fifo):
    """A policy whose figures are what the test says."""

    def __init__(self, figures: Any, name: str = "mine") -> None:
        super().__init__(name, (), {})
        self.told = figures

    def figures(self) -> Any:
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


def shown(*told: Any) -> Any:
    """The figures of policies p0, p1, ... as a client reads them over the bus."""
    info = figures_of([Told(figures, f"p{index}") for index, figures in enumerate(told)])
    reply = wire.decode_reply([wire.encode_info(1, wire.pack_info({"policies": info}))], 1 << 26)
    assert reply.info == {"policies": info}, "what is shown in process and over the bus is one"
    return info if len(told) > 1 else info["p0"]


def test_figures_become_plain_values_with_text_keys() -> None:
    assert shown({1: 0.5, (2, "x"): {None: [1, (2,)]}, "n": np.int64(3)}) == {
        "1": 0.5,
        "(2, 'x')": {"None": [1, [2]]},
        "n": 3,
    }
    assert shown({"list": deque([np.float32(0.5), np.arange(3)]), "set": {7}, "true": True, "none": None}) == {
        "list": [0.5, [0, 1, 2]],
        "set": [7],
        "true": True,
        "none": None,
    }
    assert shown({"part": Fraction(1, 3), "bytes": b"a", "big": 2**70, "half": "a\ud800"}) == {
        "part": "1/3",
        "bytes": "b'a'",
        "big": str(2**70),
        "half": "a?",
    }


def test_figures_are_bounded_and_every_policy_has_its_part() -> None:
    endless: dict = {"n": 1}
    endless["self"] = endless
    many = shown(
        {index: index for index in range(10**6)},
        {"lists": [list(range(10**6))]},
        endless,
        {"text": "x" * 10**7, "array": np.zeros(10**7)},
        {"ok": 1},
    )
    assert many["p0"]["0"] == 0 and many["p0"][figures.MORE].endswith(" more") and len(many["p0"]) < 20_000
    assert many["p1"]["lists"][0][-1].endswith(" more")
    assert len(many["p3"]["text"]) == figures.FIGURE_CHARS_MAX and many["p3"]["text"].endswith(figures.MORE)
    assert many["p3"]["array"][0] == 0.0 and many["p3"]["array"][-1].endswith(" more")
    assert many["p4"] == {"ok": 1}


class Unspeakable:
    def __str__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            ZeroDivisionError("no samples"),
            {"error": "figures() cannot be shown: it raised ZeroDivisionError; the log says more"},
        ),
        (None, {"error": "figures() cannot be shown: it raised AttributeError; the log says more"}),
        ({"x": Unspeakable(), Unspeakable(): 1}, {"x": "(Unspeakable)", "(Unspeakable)": 1}),
    ],
)
def test_figures_that_cannot_be_told_spare_the_others(told: Any, expected: Any) -> None:
    assert shown(told, {"ok": 1}) == {"p0": expected, "p1": {"ok": 1}}
