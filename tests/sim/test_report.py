"""The figures of a report beyond finish rates, from requests whose ends are known."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from scenarios import scenario_of

from edgeserve.config.schema import AppConfig
from edgeserve.sched.protocol.actions import LatencyBreakdown, Outcome, RunBatch
from edgeserve.sched.protocol.events import JobId, Request
from edgeserve.sim.report import BINS, report_of
from edgeserve.sim.run import simulate
from edgeserve.sim.running import Usage
from edgeserve.sim.world import Ended

MS = 10**6
S = 10**9


def world(*rows, spent=(), batches=(), apps=("a",)):
    """A run whose requests (app, arrival, end or None for dropped, deadline; all in seconds) have the ids 1, 2, ..."""
    usage = Usage()
    usage.batches.update(dict(batches))
    for request_id, lane, ms in spent:
        usage.spent_ns[request_id][lane] = ms * MS
    ended = []
    for number, (app, arrival_s, end_s, due_s) in enumerate(rows, 1):
        request = Request(number, app, round(arrival_s * S), round(due_s * S))
        outcome = Outcome.DROPPED if end_s is None else Outcome.COMPLETED
        ended.append(
            Ended(
                request,
                outcome,
                "expired" if end_s is None else "",
                round((due_s if end_s is None else end_s) * S),
                LatencyBreakdown(0, 0, 0, 0),
                1,
            )
        )
    lanes = {"l0": SimpleNamespace(busy_ns=S)}
    return SimpleNamespace(
        config=SimpleNamespace(apps=dict.fromkeys(apps, AppConfig("a"))),
        ended=ended,
        usage=usage,
        lanes=lanes,
        hardware={},
        now_ns=20 * S,
    )


def test_the_finish_rate_over_time_goes_by_arrival():
    made = world(("a", 0.5, 0.6, 1.0), ("a", 9.2, None, 9.9), ("a", 9.3, 9.4, 9.9), ("a", 19.99, 20.5, 21.0))
    bins = report_of([made, made], 0, 20 * S).apps["a"].over_time
    assert len(bins) == BINS == 20
    assert {index: tuple(counts) for index, counts in enumerate(bins) if counts[0]} == {
        0: (2, 2),
        9: (4, 2),
        19: (2, 2),
    }


def test_the_longest_gap_is_between_answers_in_time_from_the_first_arrival_to_the_last():
    first = world(
        ("a", 1.0, 4.0, 5.0), ("a", 4.5, 5.0, 9.0), ("a", 5.5, 8.9, 8.0), ("a", 9.0, 9.1, 9.5), ("a", 11.0, None, 12.0)
    )
    assert report_of([first], 0, 20 * S).apps["a"].gap_max_ms == pytest.approx(4100)  # 5.0 to 9.1; 8.9 was late
    second = world(("a", 0.0, None, 1.0), ("a", 9.0, None, 10.0))
    assert report_of([first, second], 0, 20 * S).apps["a"].gap_max_ms == pytest.approx(9000)  # no answer at all
    assert report_of([world()], 0, 20 * S).apps["a"].gap_max_ms == 0.0


def test_lane_time_is_lost_on_whom_was_not_answered_in_time():
    made = world(
        ("a", 1.0, 2.0, 3.0),
        ("a", 1.0, 4.0, 3.0),
        ("b", 1.0, None, 3.0),
        ("b", 0.1, None, 0.2),
        apps=("a", "b"),
        spent=[(1, "l0", 60), (2, "l0", 20), (2, "l1", 5), (3, "l0", 20), (4, "l0", 1000)],
    )
    report = report_of([made], S // 2, 20 * S)  # the fourth came before the warm-up was over
    assert report.lanes_lost == {"l0": 0.4, "l1": 1.0}
    assert (report.apps["a"].lane_time_ms, report.apps["a"].lane_time_lost_ms) == (85.0, 25.0)
    assert (report.apps["b"].lane_time_ms, report.apps["b"].lane_time_lost_ms) == (20.0, 20.0)
    assert (report.total.lane_time_ms, report.total.lane_time_lost_ms) == (105.0, 45.0)


def test_the_spread_over_seeds_is_of_their_finish_rates():
    worlds = [world(*[("a", 1.0, 2.0, 3.0)] * good, *[("a", 1.0, None, 3.0)] * (10 - good)) for good in (10, 8, 6)]
    app = report_of(worlds, 0, 20 * S).apps["a"]
    assert app.finish_rates == [1.0, 0.8, 0.6]
    assert app.rate_range == (0.6, 1.0, pytest.approx(0.1633, abs=1e-4))
    assert report_of([world()], 0, 20 * S).apps["a"].rate_range == (1.0, 1.0, 0.0)


def test_batches_are_counted_by_their_jobs():
    worlds = [world(batches={("m", 4): 2, ("m", 1): 1}.items()), world(batches={("m", 4): 1, ("n", 1): 7}.items())]
    assert report_of(worlds, 0, 20 * S).batches == {"m": {1: 1, 4: 3}, "n": {1: 7}}


def test_usage_divides_a_batch_among_its_jobs_and_knows_no_probes():
    usage = Usage()
    jobs = (JobId(1, "x", ()), JobId(2, "x", ()), JobId(1, "x", (1,)))
    usage.ran("l0", RunBatch(1, "l0", "m", jobs, 4, 0, 1, 1), 30)
    usage.ran("l1", RunBatch(2, "l1", "m", jobs[:1], 1, 0, 1, 1), 7)
    usage.ran("l0", RunBatch(3, "l0", "m", jobs[:1], 1, 0, 1, 1, probe=True), 500)
    assert usage.batches == Counter({("m", 3): 1, ("m", 1): 1})
    assert usage.spent_ns == {1: {"l0": 20.0, "l1": 7.0}, 2: {"l0": 10.0}}


def test_all_lane_time_of_a_run_is_accounted_for():
    made = scenario_of(
        {"m": {1: 4, 4: 10}},
        {"a": {"model": "m", "slo": "20ms"}},
        {"w": {"app": "a", "rate": 400.0}},
        seconds=5,
        run={"noise": 0.1},
        faults={"lane_loss_every": "1s", "lane_loss": "50ms"},
    )
    run = simulate(made, 1, ()).world
    spent_ns = sum(sum(lanes.values()) for lanes in run.usage.spent_ns.values())
    assert spent_ns == pytest.approx(run.lanes["cpu0"].busy_ns, rel=1e-9)
    report = report_of([run], 0, 5 * S)
    assert sum(jobs * count for jobs, count in report.batches["m"].items()) >= report.total.in_time
    assert 0 < report.total.lane_time_lost_ms < 0.5 * report.total.lane_time_ms
