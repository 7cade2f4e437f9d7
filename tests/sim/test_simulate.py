"""The command: tables, JSON, paired policies, timelines, and that a recording replays exactly."""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import re

import pytest

from edgeserve.cli import main
from edgeserve.config.loading import parse_config
from edgeserve.config.machine import device_slug
from edgeserve.config.machine_costs import MachineCosts, machine_path, write_machine
from edgeserve.config.profile_match import identity
from edgeserve.config.profiles import (
    QUANTILES,
    LaneProfile,
    Profile,
    Timing,
    find_profiles,
    profile_path,
    read_profiles,
    write_profile,
)
from edgeserve.errors import ConfigError, ProfileError
from edgeserve.sched.policies import POLICIES
from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import load_scenario, parse_scenario

MS = 10**6

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
step_cost = "20us"
event_cost = "15us"
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
    words = ["simulate", scenario, "--policy", "fifo", "--policy", "edf", "--seeds", "2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "fifo (2 seeds x 2 s)" in shown
    assert "edf (2 seeds x 2 s)" in shown
    tables = [line for line in shown.splitlines() if line.startswith(("│", "┃"))]
    assert max(map(len, tables)) <= 100 and not [line for line in tables if "dropped" in line]
    assert re.search(r"^a ended otherwise: \d+ (dropped|rejected): \w+", shown, re.MULTILINE)
    assert main([*words, "--json"]) == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert policies["fifo"]["total"]["offered"] == policies["edf"]["total"]["offered"] > 500
    assert policies["edf"]["total"]["finish_rate"] > policies["fifo"]["total"]["finish_rate"]


def test_a_recording_replays_to_the_same_decisions(scenario, tmp_path, capsys):
    path, timeline = str(tmp_path / "r.jsonl"), str(tmp_path / "t.json")
    assert main(["simulate", scenario, "--seeds", "1", "--record", path, "--json"]) == 0
    assert main(["simulate", "--replay", path]) == 0
    assert "every decision is the same" in capsys.readouterr().out
    assert main(["record", "--from", path, "--timeline", timeline]) == 0
    with open(timeline, encoding="utf-8") as file:
        assert len(json.load(file)["traceEvents"]) > 500


def test_a_recording_that_ends_early_is_told(scenario, capsys):
    assert main(["simulate", scenario, "--seeds", "1", "--record", "/dev/full"]) == 2
    assert "/dev/full: the recording ends early (No space left on device)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("rate = 300.0", "rate = 1e9"), r"\[workload.w\] makes 2000000001 requests"),
        (("rate = 300.0", 'rate = 300.0\nchanges = [{ at = "1s", rate = 1e9 }]'), r"\[workload.w\] makes 10000003"),
        (("rate = 300.0", 'rate = 300.0\nkind = "gamma"\nwindow = "1ns"'), r"\[workload.w\] makes 20000006"),
        (("rate = 300.0", 'rate = 300.0\nkind = "onoff"\non = "0s"\noff = "1ns"'), r"\[workload.w\] makes 20000006"),
        (("[run]", '[faults]\nburst_every = "1ns"\n[run]'), r"\[faults\] burst_every = '1ns' in a run of 2s"),
    ],
)
def test_a_scenario_of_more_than_a_run_can_hold_is_refused(scenario, tmp_path, capsys, change, reason):
    path = tmp_path / "large.toml"
    path.write_text(SCENARIO.replace(*change))
    assert main(["simulate", str(path)]) == 2
    assert re.search(reason, capsys.readouterr().err)


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "folder"])
@pytest.mark.parametrize(
    "words",
    [
        "simulate --replay {}",
        "simulate trace.toml",
        "record --from {}",
        "profile edge.toml --fit a={}",
    ],
)
def test_a_file_that_is_none_is_refused_at_once(scenario, tmp_path, monkeypatch, capsys, kind, words):
    monkeypatch.chdir(tmp_path)
    file = kind if kind.startswith("/") else str(tmp_path / "file.npz")
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        os.mkdir(file)
    (tmp_path / "trace.toml").write_text(SCENARIO.replace("rate = 300.0", f'kind = "trace"\nfile = "{file}"'))
    (tmp_path / "edge.toml").write_text(SCENARIO.split("[run]")[0])
    assert main(words.format(file).split()) == 2
    assert re.search("no regular file|[iI]s a directory|of no known kind", capsys.readouterr().err)


def test_a_replay_under_another_configuration_differs(scenario, tmp_path, capsys):
    path = str(tmp_path / "r.jsonl")
    main(["simulate", scenario, "--seeds", "1", "--record", path, "--json"])
    edge = tmp_path / "edge.toml"
    edge.write_text(SCENARIO.split("[run]")[0] + "[policy.fifo]\n")
    assert main(["simulate", str(edge), "--replay", path]) == 1
    assert "differs:\n  recorded: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("rate = 300.0", ""), r"\[workload.w\] rate = 0.0: kind 'poisson' needs rate"),
        (("rate = 300.0", 'rate = 1.0\nkind = "poison"'), "kind = 'poison': expected one of"),
        (('app = "a"', 'app = "c"'), "app = 'c' does not exist"),
        (("[run]", "[runs]"), "is no section of a scenario; did you mean 'run'"),
        (("[run]", "[truth.y]\n[run]"), r"\[truth.y\]: there is no such model"),
    ],
)
def test_a_wrong_scenario_says_what_to_mend(scenario, tmp_path, capsys, change, reason):
    path = tmp_path / "wrong.toml"
    path.write_text(SCENARIO.replace(*change))
    assert main(["simulate", str(path)]) == 2
    assert re.search(reason, capsys.readouterr().err)


def test_a_scenario_without_requests_says_how_to_ask(tmp_path, capsys):
    path = tmp_path / "edge.toml"
    path.write_text(SCENARIO.split("[run]")[0])
    assert main(["simulate", str(path)]) == 2
    error = capsys.readouterr().err
    example = error.split("such as\n")[1]
    assert "edge.toml has no [workload.NAME]" in error
    (tmp_path / "scenario.toml").write_text(example)
    assert main(["simulate", str(tmp_path / "scenario.toml"), "--seeds", "1"]) == 0  # as the message says
    assert "100.0%" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"no \[workload.NAME\]"):
        simulate(load_scenario(str(path)), 1)


def test_a_run_in_which_no_request_arrived_reports_nothing(scenario, tmp_path, capsys):
    path = tmp_path / "idle.toml"
    path.write_text(SCENARIO.replace("rate = 300.0", 'rate = 300.0\nstart = "9s"'))
    assert main(["simulate", str(path), "--seeds", "1"]) == 0
    assert [
        line.split()[2:4]
        for line in capsys.readouterr().out.replace("│", " ").replace("┃", " ").splitlines()
        if line.split()[:2] == ["a", "0"]
    ] == [["-", "0"]]
    assert main(["simulate", str(path), "--seeds", "1", "--json"]) == 0
    apps = json.loads(capsys.readouterr().out)["policies"]["plan"]["apps"]
    assert apps["a"]["finish_rate"] is None and apps["b"]["finish_rate"] > 0.5
    path.write_text(path.read_text().replace("rate = 200.0", 'rate = 200.0\nstart = "9s"'))
    assert main(["simulate", str(path), "--seeds", "1"]) == 2
    assert "no request arrived" in capsys.readouterr().err


def test_the_profiles_of_other_models_are_passed_over(monkeypatch):
    monkeypatch.setattr("edgeserve.config.profiles.device_slug", lambda: "a-machine-without-measurements")
    scenario = parse_scenario(
        {
            "server": {"profiles": os.path.join(EXAMPLES, "..", "..", "profiles")},
            "lane": {"l": {}},
            "model": {"m": {"engine": "synthetic", "expected": {"1": "2ms"}}},
            "app": {"a": {"model": "m"}},
            "run": {"duration": "1s"},
            "workload": {"w": {"app": "a", "kind": "closed"}},
        }
    )
    assert simulate(scenario, 1).world.ended


ASKED = 'config = "edge.toml"\n[run]\nduration = "1s"\nstep_cost = "20us"\n[workload.w]\napp = "a"\nkind = "closed"\n'


def profile(place, device, ms, model="m", **known):
    """A profile of one model on one lane below ``place``."""
    timing = Timing(10, ms * MS, ms * MS, ms * MS, 0, (ms * MS,) * len(QUANTILES))
    made = Profile(model, device, {"cpu0": LaneProfile({1: timing})}, **known)
    write_profile(profile_path(str(place / "profiles"), device, model), made)


@pytest.fixture
def measured(tmp_path):
    """A scenario whose model has no time but that of profiles; ``measured(device, ms)`` writes one."""
    (tmp_path / "edge.toml").write_text('[model.m]\nengine = "synthetic"\n[app.a]\nmodel = "m"\nslo = "1s"\n')
    path = tmp_path / "scenario.toml"
    path.write_text(ASKED)

    def write(device, ms, model="m"):
        profile(tmp_path, device, ms, model)
        return str(path)

    return write


def p50_ms(path, *options):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["simulate", path, "--seeds", "1", "--json", *options]) == 0
    return json.loads(out.getvalue())["policies"]["plan"]["total"]["p50_ms"]


def in_python(path, **options):
    scenario = load_scenario(path)
    return report_of([simulate(scenario, 0, **options).world], 0, scenario.run.duration_ns).total.p50_ms


def test_the_command_and_python_find_the_profiles_that_the_server_would(measured, tmp_path):
    path = measured("orin", 20)
    assert p50_ms(path) == in_python(path) == pytest.approx(20, abs=0.2)  # the only device that was measured
    measured(device_slug(), 5)
    assert p50_ms(path) == in_python(path) == pytest.approx(5, abs=0.2)
    config = load_scenario(path).config
    assert [profile.device for profile in find_profiles(config.profiles_path)] == [device_slug()]  # what serve takes
    orin = str(tmp_path / "profiles" / "orin")
    assert p50_ms(path, "--profiles", orin) == pytest.approx(20, abs=0.2)
    assert in_python(path, profiles=read_profiles(orin)) == pytest.approx(20, abs=0.2)
    with pytest.raises(ProfileError, match="run 'edgeserve profile'"):
        in_python(path, profiles=())


def test_of_several_other_devices_one_has_to_be_named(measured, tmp_path, capsys):
    measured("xavier", 30)
    path = measured("orin", 20)
    assert find_profiles(str(tmp_path / "profiles")) == []  # the server never takes another machine's
    assert main(["simulate", path]) == 2
    assert f"profiles of orin, xavier, and none of this machine ({device_slug()})" in capsys.readouterr().err
    assert p50_ms(path, "--profiles", str(tmp_path / "profiles" / "xavier")) == pytest.approx(30, abs=0.2)
    measured(device_slug(), 5, "other")  # what this machine knows of another model says nothing of this one
    assert main(["simulate", path]) == 2
    (tmp_path / "profiles" / "xavier" / "m.json").unlink()
    measured("xavier", 30, "other")
    assert p50_ms(path) == pytest.approx(20, abs=0.2)
    assert main(["simulate", path, "--profiles", str(tmp_path / "absent")]) == 2
    assert "absent: there is no such directory" in capsys.readouterr().err


@pytest.fixture
def stale(tmp_path, caplog):
    """A scenario whose model was measured with 20 ms and another option. ``run(model)`` simulates it with more keys of
    the model, both ways; the median time and the warnings."""
    config = parse_config(
        {
            "model": {"m": {"engine": "python", "function": "f:g", "options": {"batched": True}}},
            "app": {"a": {"model": "m"}},
        },
        str(tmp_path),
    )
    profile(
        tmp_path, "orin", 20, circumstances={"same": identity(config.models["m"], str(tmp_path), {"python": "2.7"})}
    )
    path = tmp_path / "scenario.toml"
    path.write_text(ASKED)

    def run(model):
        (tmp_path / "edge.toml").write_text(
            f'[model.m]\nengine = "python"\nfunction = "f:g"\n{model}\n[app.a]\nmodel = "m"\nslo = "1s"\n'
        )
        seen = []
        for way in (p50_ms, in_python):
            caplog.clear()
            seen.append((way(str(path)), [record.getMessage() for record in caplog.records]))
        assert seen[0] == seen[1]
        return seen[0]

    return run


def test_a_profile_of_something_else_is_simulated_only_where_nothing_else_is_known(stale):
    assert stale("options = { batched = true }") == (pytest.approx(20, abs=0.2), [])  # versions are another machine's
    median_ms, (warning,) = stale("")
    assert median_ms == pytest.approx(20, abs=0.2)
    assert "the profile of model m (orin) does not hold: options.batched is not set now, it was true when measured" in (
        warning
    )
    assert "it is used all the same, since nothing else is known" in warning
    median_ms, (warning,) = stale('expected = { 1 = "4ms" }')
    assert median_ms == pytest.approx(4, abs=0.2)
    assert "[model.m.expected] is used instead" in warning


def test_a_recording_is_replayed_without_the_profile_that_was_left_out(stale, tmp_path, capsys):
    stale('expected = { 1 = "4ms" }')
    recorded = str(tmp_path / "recorded.jsonl")
    assert main(["simulate", str(tmp_path / "scenario.toml"), "--seeds", "1", "--record", recorded]) == 0
    replay = ["simulate", str(tmp_path / "edge.toml"), "--replay", recorded]
    assert main(replay) == 0
    text = (tmp_path / "recorded.jsonl").read_text()
    assert '"profiled":[]' in text
    (tmp_path / "recorded.jsonl").write_text(text.replace('"profiled":[]', '"profiled":[["m","cpu0",[]]]', 1))
    assert main(replay) == 1  # the times of the profile decide otherwise
    capsys.readouterr()


# --- loads, and what is charged ---


@pytest.mark.worlds
def test_a_sweep_over_loads_tells_what_is_in_time_at_each(scenario, capsys):
    command = f"simulate {scenario} --policy edf --policy fifo --seeds 2 --loads 1.5,0.2"
    assert main(command.split()) == 0
    shown = capsys.readouterr().out
    assert "in time by load (2 seeds x 2 s)" in shown
    assert "(all)" in shown
    assert main([*command.split(), "--json"]) == 0
    loads = json.loads(capsys.readouterr().out)["loads"]
    assert list(loads) == ["0.2", "1.5"]
    offered = [loads[load]["edf"]["total"]["offered"] for load in loads]
    assert offered[1] == pytest.approx(7.5 * offered[0], rel=0.1)
    rates = [loads[load]["edf"]["total"]["finish_rate"] for load in loads]
    assert rates[0] > 0.95 > rates[1] + 0.1
    row = next(line for line in shown.splitlines() if line.startswith("│ b") and " 1.5 " in line)
    assert f"{loads['1.5']['edf']['apps']['b']['finish_rate']:.1%}" in row


@pytest.mark.parametrize("text", ["0", "1,x", "-1", "1e9", "nan", ""])
def test_wrong_loads_are_refused(scenario, capsys, text):
    status = main(["simulate", scenario, "--loads", text, "--seeds", "1"])
    if text:
        assert status == 2
        assert f"--loads {text!r}: " in capsys.readouterr().err
    else:
        assert status == 0  # as if it were left out


def test_it_says_which_costs_were_charged(measured, tmp_path, capsys):
    path = measured("orin", 20)
    assert main(["simulate", path, "--seeds", "1"]) == 0
    assert "costs of the loop and the machine: as [run] says, nothing else" in capsys.readouterr().out
    with open(path, encoding="utf-8") as file:
        text = file.read().replace('step_cost = "20us"\n', "")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    assert main(["simulate", path, "--seeds", "1"]) == 0
    assert "assumed, since none were measured here" in capsys.readouterr().out
    costs = MachineCosts(answer_ns=5 * MS, circumstances={"date": "2026-11-22"})
    write_machine(machine_path(str(tmp_path / "profiles"), "orin"), costs)
    assert p50_ms(path) == in_python(path) == pytest.approx(25, abs=0.2)
    assert main(["simulate", path, "--seeds", "1"]) == 0
    assert "measured 2026-11-22" in capsys.readouterr().out
    assert p50_ms(path, "--profiles", str(tmp_path / "profiles" / "orin")) == pytest.approx(25, abs=0.2)
    with open(path, "a", encoding="utf-8") as file:
        file.write('[machine]\nanswer = "1ms"\n')
    assert p50_ms(path) == in_python(path) == pytest.approx(21, abs=0.2)
    assert main(["simulate", path, "--seeds", "1"]) == 0
    assert "(but as [machine] says)" in capsys.readouterr().out


def test_a_hint_stretches_what_was_profiled(measured, tmp_path):
    path = measured("orin", 20)
    with open(path, "a", encoding="utf-8") as file:
        file.write('hints = { size = 1.5 }\n[truth.m]\nhint = "size"\n')
    assert p50_ms(path) == pytest.approx(30, abs=0.2)


@pytest.mark.parametrize("count", ["-1", "10001"])
def test_a_number_of_seeds_that_cannot_be_run_is_refused(scenario, capsys, count):
    assert main(["simulate", scenario, "--seeds", count]) == 2
    assert f"--seeds {count}: expected 1 to 10000" in capsys.readouterr().err


def test_an_unknown_policy_is_refused(scenario, capsys):
    assert main(["simulate", scenario, "--policy", "best"]) == 2
    assert f"there is no such policy (known: {', '.join(sorted(POLICIES))}" in capsys.readouterr().err


@pytest.mark.worlds
@pytest.mark.parametrize("path", sorted(glob.glob(os.path.join(EXAMPLES, "*.toml"))), ids=os.path.basename)
def test_the_examples_run(path, capsys):
    load_scenario(path)
    assert main(["simulate", path, "--seeds", "1", "--json"]) == 0
    (policy,) = json.loads(capsys.readouterr().out)["policies"].values()
    assert policy["total"]["finish_rate"] > 0.8
