"""Clients of a scenario: they share lanes as those of a live server do, and reports have a row for each."""

from __future__ import annotations

import json

import pytest
from scenarios import NO_STEP_COSTS, scenario_of

from edgeserve.cli import main
from edgeserve.commands import check
from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.events import RequestArrived
from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate
from edgeserve.taps.trace import read_recording

DETECTOR = {"detect": {"rate": 20.0, "client": "vision", "kind": "poisson"}}


def served(workload, small_ms=1, seconds=10, **app):
    """The report of one run: apps ``detect`` of 15 ms and ``small`` on one lane, in 100 ms."""
    scenario = scenario_of(
        {"detect": {1: 15}, "small": {1: small_ms}},
        {name: {"model": name, "slo": "100ms", **app} for name in ("detect", "small")},
        workload,
        seconds=seconds,
        run=NO_STEP_COSTS,
    )
    return report_of([simulate(scenario, 1).world], 0, seconds * 10**9)


@pytest.mark.parametrize("rate", [50.0, pytest.param(200.0, marks=pytest.mark.nightly)])
def test_a_detector_beside_another_process_loses_what_it_loses_alone_and_a_point(rate):
    alone = served(DETECTOR).clients["vision"]
    beside = served({**DETECTOR, "small": {"rate": rate, "client": "robot"}}).clients
    assert beside["vision"].offered == alone.offered > 150
    assert beside["vision"].finish_rate >= alone.finish_rate - 0.01
    assert beside["robot"].finish_rate > 0.97


def test_a_client_that_asks_for_more_than_the_others_leave_is_refused_and_they_are_not():
    workload = {**DETECTOR, "small": {"rate": 300.0, "client": "flood"}}
    report = served(workload, small_ms=5)
    vision, flood = report.clients["vision"], report.clients["flood"]
    assert flood.over_share > 0.4 * flood.offered
    assert vision.finish_rate > 0.95
    assert report.lanes_kept(vision) == pytest.approx(0.3, abs=0.03)
    assert report.lanes_kept(vision) + report.lanes_kept(flood) == pytest.approx(sum(report.lanes.values()), abs=0.02)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_loop_that_is_slow_to_start_the_next_batch_keeps_the_shares(seed):
    """A gap of some ms after each batch of 10 ms counts to what a request keeps the lane."""
    apps = ("detect", "small")
    scenario = scenario_of(
        {name: {1: 10} for name in apps},
        {name: {"model": name, "slo": "500ms"} for name in apps},
        {"detect": {"rate": 30.0, "client": "vision"}, "small": {"rate": 300.0, "client": "flood"}},
        seconds=10,
        run={"step_cost": "2ms", "event_cost": "0us"},
    )
    clients = report_of([simulate(scenario, seed).world], 0, 10**10).clients
    assert clients["vision"].finish_rate > 0.985, clients
    assert clients["flood"].over_share > 0.5 * clients["flood"].offered


def test_workloads_of_one_name_are_one_client_and_those_without_a_name_none():
    named = {"detect": {"rate": 60.0, "client": "one"}, "small": {"rate": 200.0, "client": "one"}}
    report = served(named, small_ms=5, seconds=2)
    assert list(report.clients) == ["one"]
    assert report.clients["one"].over_share == 0  # one client alone is never refused for its share
    assert report.clients["one"].offered == report.total.offered
    bare = {name: {"rate": keys["rate"]} for name, keys in named.items()}
    without = served(bare, small_ms=5, seconds=2)
    assert without.clients == {}
    assert "clients" not in without.as_table()
    assert without.total == report.total


def test_a_client_that_waits_for_its_answers_stays_one():
    closed = {"detect": {"kind": "closed", "clients": 3, "client": "three"}}
    assert list(served(closed, seconds=2).clients) == ["three"]


def test_the_weight_of_a_client_is_the_apps():
    both = {name: {"app": "detect", "rate": 100.0, "client": name} for name in ("one", "two")}
    found = served(both, seconds=5, weights={"one": 3.0}).clients
    assert found["one"].in_time > 1.5 * found["two"].in_time


def test_a_name_with_the_marks_of_owners_is_refused():
    with pytest.raises(ConfigError, match=r"\[workload.detect\] client = 'a@b'"):
        served({"detect": {"rate": 1.0, "client": "a@b"}})


EDGE = """
[model.detect]
engine = "synthetic"
expected = { 1 = "15ms" }
[model.small]
engine = "synthetic"
expected = { 1 = "5ms" }
[app.detect]
model = "detect"
slo = "100ms"
[app.small]
model = "small"
slo = "100ms"
"""

SCENARIO = """
config = "edge.toml"
[run]
duration = "1.5s"
seeds = 3
step_cost = "20us"
[workload.detect]
app = "detect"
rate = 20.0
client = "vision"
[workload.small]
app = "small"
rate = 300.0
client = "flood"
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "edge.toml").write_text(EDGE)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    return tmp_path


def test_simulate_prints_a_row_per_client_and_a_recording_keeps_them(place, capsys):
    run = place / "run.jsonl"
    assert main(["simulate", str(place / "scenario.toml"), "--record", str(run)]) == 0
    out = capsys.readouterr().out
    assert "over share" in out
    assert "flood" in out
    assert main(["simulate", str(place / "scenario.toml"), "--json"]) == 0
    clients = next(iter(json.loads(capsys.readouterr().out)["policies"].values()))["clients"]
    assert clients["flood"]["over_share"] > 100
    events = [event for step in read_recording(str(run)).steps for event in step.events]
    arrived = {event.request.client for event in events if isinstance(event, RequestArrived)}
    assert arrived == {"vision #detect", "flood #small"}


@pytest.mark.worlds
def test_check_asks_as_clients(place, capsys, monkeypatch):
    monkeypatch.setattr(check, "REQUESTS_WANTED", 200)
    monkeypatch.setattr(check, "SEEDS", 1)
    monkeypatch.setattr(check, "STEPS", 1)
    rates = ["--rate", "detect@vision=20", "--rate", "small@flood=300", "--rate", "detect=1"]
    main(["check", str(place / "edge.toml"), *rates, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["apps"]["detect"]["rate"] == 21.0
    assert sorted(said["clients"]) == ["flood", "vision"]
    assert said["clients"]["flood"]["over_share"] > 100
    assert said["clients"]["vision"]["in_time"] > 0.9
