"""The command: tables, JSON, paired policies, timelines, and that a recording replays exactly."""

from __future__ import annotations

import glob
import json
import os

import pytest

from edgeserve.cli import main
from edgeserve.sched.policies import POLICIES
from edgeserve.sim.scenario import load_scenario

EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "scenarios")

SCENARIO = """
[lane.gpu0]
[model.z]
engine = "synthetic"
batch = [1, 4]
expected = { 1 = "5ms", 4 = "9ms" }
[model.m]
engine = "synthetic"
expected = { 1 = "3ms" }
[app.a]
model = "z"
slo = "40ms"
[app.b]
model = "m"
slo = "30ms"
[run]
duration = "2s"
noise = 0.05
[workload.w]
app = "a"
rate = 300.0
[workload.v]
app = "b"
rate = 200.0
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return str(path)


def test_policies_are_compared_on_the_same_arrivals(scenario, tmp_path, capsys):
    path = str(tmp_path / "report.json")
    assert main(["simulate", scenario, "--policy", "fifo", "--policy", "edf", "--seeds", "2", "--json", path]) == 0
    shown = capsys.readouterr().out
    assert "fifo (2 seeds x 2 s)" in shown
    assert "edf (2 seeds x 2 s)" in shown
    with open(path, encoding="utf-8") as file:
        policies = json.load(file)["policies"]
    assert policies["fifo"]["total"]["offered"] == policies["edf"]["total"]["offered"] > 500
    assert policies["edf"]["total"]["finish_rate"] > policies["fifo"]["total"]["finish_rate"]


def test_a_recording_replays_to_the_same_decisions(scenario, tmp_path, capsys):
    path, timeline = str(tmp_path / "r.jsonl"), str(tmp_path / "t.json")
    assert main(["simulate", scenario, "--seeds", "1", "--record", path, "--json", "-"]) == 0
    assert main(["simulate", "--replay", path, "--trace", timeline]) == 0
    assert "every decision is the same" in capsys.readouterr().out
    with open(timeline, encoding="utf-8") as file:
        assert len(json.load(file)["traceEvents"]) > 500


def test_a_replay_under_another_configuration_differs(scenario, tmp_path, capsys):
    path = str(tmp_path / "r.jsonl")
    main(["simulate", scenario, "--seeds", "1", "--record", path, "--json", "-"])
    edge = tmp_path / "edge.toml"
    edge.write_text(SCENARIO.split("[run]")[0] + '[policy.fifo]\n')
    assert main(["simulate", "--replay", path, "--config", str(edge)]) == 1
    assert "differs:\n  recorded: " in capsys.readouterr().out


@pytest.mark.parametrize(("change", "reason"), [
    (("rate = 300.0", ""), r"\[workload.w\] rate = 0.0: kind 'poisson' needs rate"),
    (("rate = 300.0", 'rate = 1.0\nkind = "poison"'), "kind = 'poison': expected one of"),
    (('app = "a"', 'app = "c"'), "app = 'c' does not exist"),
    (("[run]", "[runs]"), "is no section of a scenario; did you mean 'run'"),
    (("[run]", '[truth.y]\n[run]'), r"\[truth.y\]: there is no such model")])
def test_a_wrong_scenario_says_what_to_mend(scenario, tmp_path, capsys, change, reason):
    path = tmp_path / "wrong.toml"
    path.write_text(SCENARIO.replace(*change))
    assert main(["simulate", str(path)]) == 2
    import re
    assert re.search(reason, capsys.readouterr().err)


def test_an_unknown_policy_is_refused(scenario, capsys):
    assert main(["simulate", scenario, "--policy", "best"]) == 2
    assert f"there is no such policy (known: {', '.join(sorted(POLICIES))}" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(glob.glob(os.path.join(EXAMPLES, "*.toml"))), ids=os.path.basename)
def test_the_examples_run(path, tmp_path):
    report = str(tmp_path / "r.json")
    load_scenario(path)
    assert main(["simulate", path, "--seeds", "1", "--json", report]) == 0
    with open(report, encoding="utf-8") as file:
        (policy,) = json.load(file)["policies"].values()
    assert policy["total"]["finish_rate"] > 0.8
