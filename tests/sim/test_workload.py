"""Workloads: their rates and burstiness, that seeds pair them, and the trace formats."""

from __future__ import annotations

import math
import os
import statistics

import pytest
from scenarios import scenario_of

from edgeserve.errors import ConfigError
from edgeserve.sim.run import make_world, simulate
from edgeserve.sim.scenario import parse_scenario, with_load, with_policy
from edgeserve.sim.spreads import read_hint, read_spread
from edgeserve.sim.workload import Workload, read_trace

S = 10**9
TRACES = os.path.join(os.path.dirname(__file__), "..", "..", "..", "shared", "data", "traces")


def source(seed=1, seconds=1000, directory=".", **workload):
    made = parse_scenario(
        {
            "model": {"m": {"engine": "synthetic"}},
            "app": {"a": {"model": "m"}},
            "workload": {"w": {"app": "a", **workload}},
        }
    )
    return Workload(made.workloads[0], made.config, seed, seconds * S, directory)


def arrivals(made):
    first = made.first()
    found = [first[0][0]] if first else []
    while found and (following := made.next_open()) is not None:
        found.append(following)
    return [item.at_ns for item in found]


def dispersion(times, window_ns=S, seconds=1000):
    counts = [0] * seconds
    for at in times:
        counts[at // window_ns] += 1
    return statistics.pvariance(counts) / statistics.mean(counts)


@pytest.mark.parametrize(
    ("workload", "low", "high"),
    [
        ({"kind": "poisson", "rate": 20.0}, 0.8, 1.25),
        ({"kind": "periodic", "rate": 20.0}, 0.0, 0.01),
        ({"kind": "gamma", "rate": 20.0, "cv": 0.5, "window": "1s"}, 4.5, 7.5),  # 1 + rate * cv^2 = 6
        ({"kind": "onoff", "rate": 20.0, "on": "1s", "off": "3s"}, 10, 60),
    ],
)
def test_rate_and_burstiness(workload, low, high):
    times = arrivals(source(**workload))
    assert times == sorted(times)
    assert len(times) == pytest.approx(20_000, rel=0.15 if workload["kind"] == "onoff" else 0.05)
    assert low <= dispersion(times) <= high


def test_a_seed_pairs_and_another_does_not():
    times = [arrivals(source(seed, 50, kind="gamma", rate=30.0)) for seed in (3, 3, 4)]
    assert times[0] == times[1] != times[2]


def test_start_and_stop_bound_the_arrivals():
    times = arrivals(source(kind="poisson", rate=100.0, start="2s", stop="3s"))
    assert times[0] >= 2 * S
    assert times[-1] < 3 * S


def test_hints_streams_and_the_apps_defaults():
    made = source(kind="poisson", rate=1.0, streams=2, hints={"length": {"10": 1.0, "60": 3.0}}, slo="70ms")
    requests = [made.request(index, made.first()[0][0], "c") for index in range(400)]
    lengths = [item.hints["length"] for item in requests]
    assert set(lengths) == {10, 60}
    assert lengths.count(60) == pytest.approx(300, abs=40)
    assert {item.stream for item in requests} == {"w-0", "w-1"}
    assert requests[0].deadline_ns - requests[0].arrival_ns == 70_000_000


def test_hints_need_not_be_whole():
    made = source(kind="poisson", rate=1.0, hints={"work": [0.5, 2.0], "a.work": 1.5, "b.work": {"0.5": 3, "4": 1}})
    drawn = [made.request(index, made.first()[0][0], "c").hints for index in range(400)]
    works = [hints["work"] for hints in drawn]
    assert 0.5 <= min(works) < 0.6 and 1.9 < max(works) < 2.0 and len(set(works)) == 400
    assert {hints["a.work"] for hints in drawn} == {1.5}
    fours = [hints["b.work"] for hints in drawn].count(4.0)
    assert {hints["b.work"] for hints in drawn} == {0.5, 4.0} and fours == pytest.approx(100, abs=30)
    again = source(kind="poisson", rate=1.0, hints={"work": [0.5, 2.0], "a.work": 1.5, "b.work": {"0.5": 3, "4": 1}})
    assert again.request(0, again.first()[0][0], "c").hints == drawn[0]


def test_another_policy_is_not_asked_whether_it_reads_what_is_predicted():
    """Predictors are not asked in a simulation; under ``--policy edf`` this hint has no reader."""
    made = parse_scenario(
        {
            "model": {"m": {"engine": "synthetic"}},
            "policy": {"p": {"kind": "plan", "hint": "ink"}},
            "app": {"a": {"model": "m", "predict": {"ink": "p:ink"}}},
        }
    )
    assert made.config.apps["a"].predict == {"ink": "p:ink"}
    assert with_policy(made, "edf").config.apps["a"].predict == {}


@pytest.mark.parametrize(
    "value", [True, "0.5", [2.0, 0.5], [0.5], [0.5, float("inf")], float("nan"), {"x": 1}, {"0.5": -1}, {"0.5": 0}]
)
def test_a_wrong_hint_says_what_was_expected(value):
    with pytest.raises(ConfigError, match="hints.work.* = .*expected a number"):
        source(kind="poisson", rate=1.0, hints={"work": value})


@pytest.mark.parametrize(
    ("text", "times", "hints"),
    [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 23:59:59.9000000,5,6\n2023-11-17 00:00:00.1500000,7,8\n",
            [0, 250_000_000],
            {"input_tokens": 5, "output_tokens": 6},
        ),
        (
            "timestamp_ms,input_tokens,output_tokens,prefix_blocks\n100,5,6,2\n150,1,1,1\n",
            [0, 50_000_000],
            {"input_tokens": 5.0, "output_tokens": 6.0, "prefix_blocks": 2.0},
        ),
        ("app,func,end_timestamp,duration\nA,f,10.0,2.0\nA,g,9.5,0.5\n", [0, S], {"duration_ms": 2000.0}),
        ("arrival_s,length\n3.5,4\n3.75,9\n", [0, 250_000_000], {"length": 4.0}),
    ],
)
def test_trace_formats(tmp_path, text, times, hints):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    rows = read_trace(str(path), None)
    assert [row.at_ns for row in rows] == times
    assert rows[0].hints == hints


def test_a_trace_is_stretched_not_resampled(tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s\n0\n1\n4\n")
    assert arrivals(source(kind="trace", file="t.csv", scale=0.5, directory=str(tmp_path))) == [0, S // 2, 2 * S]
    assert arrivals(source(kind="trace", file="t.csv", rate=1.0, directory=str(tmp_path))) == [0, 3 * S // 4, 3 * S]


def test_a_file_that_is_no_trace_says_what_was_expected(tmp_path):
    (tmp_path / "t.csv").write_text("when,what\n1,2\n")
    with pytest.raises(ConfigError, match="of no known trace; expected a column TIMESTAMP"):
        read_trace(str(tmp_path / "t.csv"), None)


@pytest.mark.skipif(not os.path.isdir(TRACES), reason="the public traces are not beside this project")
def test_servegen_windows_are_sampled():
    times = arrivals(source(kind="trace", file="servegen_mm_image/chunk-0-trace.csv", seconds=1200, directory=TRACES))
    assert len(times) / 1200 == pytest.approx(0.9, rel=0.15)


@pytest.mark.parametrize(("value", "mean"), [(7, 7), ([2, 4], 3), ({"10": 1, "20": 3}, 17.5)])
def test_spreads(value, mean):
    assert read_spread(value, "x").mean() == pytest.approx(mean)


def test_a_wrong_spread_says_what_was_expected():
    with pytest.raises(ConfigError, match=r"x = 'many': expected a whole number, \[low, high\], {value"):
        read_spread("many", "x")


# --- lognormal work ---------------------------------------------------------------------------------------------------


def test_lognormal_work_has_its_median_and_its_spread():
    made = source(
        kind="poisson",
        rate=1.0,
        hints={"work": {"lognormal": [2.0, 0.5]}, "cut": {"lognormal": [1.0, 1.5], "max": 4.0}},
    )
    arrival = made.first()[0][0]
    drawn = [made.request(index, arrival, "c").hints for index in range(4000)]
    logs = [math.log(hints["work"]) for hints in drawn]
    assert statistics.mean(logs) == pytest.approx(math.log(2.0), abs=0.03)
    assert statistics.pstdev(logs) == pytest.approx(0.5, abs=0.02)
    cut = [hints["cut"] for hints in drawn]
    assert max(cut) == 4.0
    assert statistics.median(cut) == pytest.approx(1.0, rel=0.1)
    again = source(
        kind="poisson",
        rate=1.0,
        hints={"work": {"lognormal": [2.0, 0.5]}, "cut": {"lognormal": [1.0, 1.5], "max": 4.0}},
    )
    assert [again.request(index, arrival, "c").hints for index in range(10)] == drawn[:10]


def test_whole_numbers_can_be_lognormal_too():
    spread = read_spread({"lognormal": [8, 0.6]}, "x")
    assert all(type(value) is int for value in spread.values)
    assert spread.pick(0.5) == 8
    assert spread.mean() == pytest.approx(8 * math.exp(0.18), rel=0.02)
    assert spread.pick(0.0) < spread.pick(0.999)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"lognormal": [1.0]}, r"x lognormal = \[1.0\]: expected \[median, sigma\]"),
        ({"lognormal": [0, 1.0]}, "a median above 0"),
        ({"lognormal": [1.0, -0.1]}, "a sigma from 0 to 10"),
        ({"lognormal": [2.0, 1.0], "max": 1.0}, "x max = 1.0: expected a number, at least the median 2"),
        ({"lognormal": [2.0, 1.0], "most": 3.0}, "x has no key 'most'"),
    ],
)
def test_a_wrong_lognormal_law_says_what_was_expected(value, message):
    for read in (read_hint, read_spread):
        with pytest.raises(ConfigError, match=message):
            read(value, "x")


# --- changes within a workload ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["poisson", "gamma", "onoff", "periodic"])
def test_a_workload_changes_its_rate_and_its_work(kind):
    changes = [
        {"at": "200s", "rate": 60.0},
        {"at": "400s", "rate": 0.0},
        {"at": "600s", "rate": 20.0, "hints": {"work": 3.0}},
    ]
    made = source(kind=kind, rate=20.0, hints={"work": 1.0, "length": 7}, changes=changes, on="100ms", off="100ms")
    times = arrivals(made)
    counts = [
        sum(low * S <= at < high * S for at in times) for low, high in ((0, 200), (200, 400), (400, 600), (600, 1000))
    ]
    assert counts == [pytest.approx(4000, rel=0.12), pytest.approx(12_000, rel=0.12), 0, pytest.approx(8000, rel=0.12)]
    assert times == sorted(times)
    again = source(kind=kind, rate=20.0, hints={"work": 1.0, "length": 7}, changes=changes, on="100ms", off="100ms")
    first = again.first()[0][0]
    assert again.request(1, first._replace(at_ns=599 * S), "c").hints == {"work": 1.0, "length": 7}
    assert again.request(2, first._replace(at_ns=600 * S), "c").hints == {"work": 3.0, "length": 7}


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"rate": 1.0, "changes": [{"at": "2s"}, {"at": "1s"}]}, r"changes\[1\] at = '1s': expected a time after 2s"),
        ({"rate": 1.0, "changes": [{"rate": 2.0}]}, r"changes\[0\] lacks the key 'at'"),
        ({"rate": 1.0, "changes": [{"at": "2s", "clients": 2}]}, r"changes\[0\] has no key 'clients'"),
        ({"kind": "closed", "changes": [{"at": "2s", "rate": 2.0}]}, "kind 'closed' has no rate to change"),
        ({"kind": "poisson", "rate": 1.0, "axis": "day"}, "kind 'poisson' reads no trace"),
        ({"kind": "trace", "file": "x.csv", "rate": 2.0, "axis": "day"}, "stretch all of the axis by the same scale"),
    ],
)
def test_a_wrong_change_or_axis_says_what_to_mend(workload, message):
    with pytest.raises(ConfigError, match=message):
        source(**workload)


def test_a_load_multiplies_every_rate():
    def at_twice(**workloads):
        return with_load(scenario_of({"m": {1: 1}}, {"a": "m"}, workloads), 2.0).workloads

    open_, trace = at_twice(
        w={"app": "a", "rate": 10.0, "changes": [{"at": "5s", "rate": 4.0}, {"at": "6s"}]},
        t={"app": "a", "kind": "trace", "file": "t.csv", "scale": 3.0},
    )
    assert (open_.rate, open_.changes[0].rate, open_.changes[1].rate) == (20.0, 8.0, -1.0)
    assert (trace.scale, trace.rate) == (1.5, 0.0)
    with pytest.raises(ConfigError, match="it has no rate to multiply"):
        at_twice(c={"app": "a", "kind": "closed"})


# --- several traces on one time axis ----------------------------------------------------------------------------------


def on_one_axis(tmp_path, second, **keys):
    (tmp_path / "first.csv").write_text("arrival_s\n100.5\n101.0\n")
    (tmp_path / "second.csv").write_text(second)
    one = {"app": "a", "kind": "trace", "axis": "day", "start": "2s"}
    return scenario_of(
        {"m": {1: 1}},
        {"a": "m"},
        {name: {**one, "file": f"{name}.csv", **(keys if name == "second" else {})} for name in ("second", "first")},
        seconds=60,
        run={"step_cost": "0us"},
        directory=str(tmp_path),
    )


def arrivals_in(made):
    world = simulate(made, 1, ()).world
    return sorted((item.request.client, item.request.arrival_ns / S) for item in world.ended)


def test_traces_on_one_axis_keep_their_distance(tmp_path):
    made = on_one_axis(tmp_path, "arrival_s\n103.0\n100.0\n")
    assert arrivals_in(made) == [("first", 2.5), ("first", 3.0), ("second", 2.0), ("second", 5.0)]
    alone = {name: {"app": "a", "kind": "trace", "file": f"{name}.csv"} for name in ("second", "first")}
    apart = parse_scenario(
        {**made.edge, "run": {"duration": "60s", "step_cost": "0us"}, "workload": alone}, str(tmp_path)
    )
    assert arrivals_in(apart) == [("first", 0.0), ("first", 0.5), ("second", 0.0), ("second", 3.0)]


@pytest.mark.parametrize(
    ("second", "keys", "message"),
    [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.98,4,5\n",
            {},
            "counts time by seconds from its",
        ),
        ("arrival_s\n103.0\n", {"scale": 2.0}, "an axis is stretched as a whole"),
    ],
)
def test_traces_that_cannot_share_an_axis_are_refused(tmp_path, second, keys, message):
    with pytest.raises(ConfigError, match=message):
        make_world(on_one_axis(tmp_path, second, **keys), 1)
