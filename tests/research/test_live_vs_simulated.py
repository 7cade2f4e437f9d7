"""Live against simulated: what the bench tells the simulator, checked without a server."""

from __future__ import annotations

from collections import Counter

import pytest
from bench import live_vs_simulated as bench

from edgeserve.config.machine_costs import MachineCosts
from edgeserve.config.profiles import QUANTILES, LaneProfile, Profile, Timing
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import JobId, JobResult, Request, RequestArrived, WorkFinished
from edgeserve.taps.trace import RecordedStep

MS = 10**6
FREE = ("a test", MachineCosts())


def profile(model, lane, ms):
    timing = Timing(10, ms * MS, ms * MS, ms * MS, 0, (ms * MS,) * len(QUANTILES))
    return Profile(model, "here", {lane: LaneProfile(dict.fromkeys((1, 2, 4, 8), timing))})


def test_arrivals_are_as_many_as_they_should_and_of_all_kinds_alike():
    due = bench.arrivals_of(["a", "b", "c"], 20.0, 6.0, "seed")
    times = [at_s for at_s, _ in due]
    assert times == sorted(times) and len(times) == 120
    assert times[0] >= 0 and times[-1] < 6.0
    assert Counter(kind for _, kind in due) == {"a": 40, "b": 40, "c": 40}
    assert bench.arrivals_of(["a", "b", "c"], 20.0, 6.0, "seed") == due


def test_the_simulator_meets_the_requests_when_they_were_sent_with_their_own_work(tmp_path):
    asked = bench.Asked(
        {"lane": {"cpu0": {}}, "model": {"net": {"engine": "synthetic"}}, "app": {"see": {"model": "net"}}},
        str(tmp_path),
        "see",
        {"small": {}, "large": {}},
    )
    table = bench.served_table(asked, str(tmp_path), 30.0, "drop")
    live = bench.Live([(0.0, "small"), (0.5, "large"), (1.0, "small"), (1.5, "large")], 0.5, {}, 0.0)
    works = {"small": {"true.net": 1.0}, "large": {"true.net": 4.0}}
    profiles = [profile("net", "cpu0", 10)]
    made = bench.scenario_of(asked, table, live, works, str(tmp_path), {})
    rate, deviation, report = bench.predicted(bench.Job(made, profiles, FREE, 2))
    assert (rate, deviation) == (0.5, 0.0)  # 40 ms do not fit into 30
    assert report.total.offered == 4 * 2
    costs = MachineCosts(answer_ns=25 * MS)
    assert bench.predicted(bench.Job(made, profiles, ("a test", costs), 1))[0] < 0.5
    assert bench.predicted(bench.Job(made, bench.slower(profiles, 4.0), FREE, 1))[0] == 0.0
    assert bench.slower_costs(costs, 2.0).answer_ns == 50 * MS


def ran(work, size, took_ms, request, arrival_ms):
    """The steps of one batch of one request."""
    at_ns = arrival_ms * MS
    job = JobId(request, "net", ())
    asked = Request(request, "see", at_ns, at_ns + 1000 * MS, "", "normal", 1.0, None, "drop", {})
    return [
        RecordedStep(
            at_ns,
            (RequestArrived(asked),),
            (RunBatch(work, "cpu0", "net", (job,), size, at_ns, at_ns + 9 * MS, took_ms * MS),),
        ),
        RecordedStep(at_ns + took_ms * MS, (WorkFinished(work, at_ns, at_ns + took_ms * MS, (JobResult(job),)),), ()),
    ]


def test_the_runs_own_times_are_those_of_its_batches_beside_the_work_of_each_kind():
    kinds = ["small", "large"] * bench.RUNS_MIN
    sizes, took_ms = [1] * (len(kinds) - 1) + [2], {"small": 12, "large": 48}
    steps = [
        step
        for index, kind in enumerate(kinds)
        for step in ran(index, sizes[index], took_ms[kind], index + 1, 5000 + 100 * index + 1)
    ]
    live = bench.Live([(0.1 * index, kind) for index, kind in enumerate(kinds)], 1.0, {}, 0.0, 5.0, steps)
    works = {"small": {"true.net": 1.0}, "large": {"true.net": 4.0}}
    (owned,), pace = bench.own_profiles(live, works, [profile("net", "cpu0", 10)])
    timings = owned.lanes["cpu0"].timings
    assert timings[1].mean_ns == timings[1].p99_ns == 12 * MS  # those of large ones, beside their work
    assert timings[1].count == 2 * bench.RUNS_MIN - 1
    assert timings[2].mean_ns == timings[8].mean_ns == pytest.approx(12 * MS)  # ran once, and never: at the run's pace
    assert pace == pytest.approx(1.2)


@pytest.mark.parametrize("name", ["one_node", "pipeline"])
def test_the_configurations_can_be_served_and_simulated(name, tmp_path):
    asked = bench.CONFIGURATIONS[name]()
    table = bench.served_table(asked, str(tmp_path), 100.0, "drop")
    live = bench.Live([(0.01 * index, "all") for index in range(20)], 1.0, {}, 0.0)
    profiles = [
        profile(model, lane, 1) for model, keys in table["model"].items() for lane in keys.get("lanes", ["cpu0"])
    ]
    made = bench.scenario_of(asked, table, live, {"all": {}}, str(tmp_path), {})
    assert bench.predicted(bench.Job(made, profiles, FREE, 1))[0] == 1.0
