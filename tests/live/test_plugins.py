"""Policies of the user's own: served, simulated, compared, diagnosed; and what is said when they are none."""

from __future__ import annotations

import argparse
import textwrap

import numpy as np
import pytest

import edgeserve
from edgeserve import cli
from edgeserve.commands import doctor, simulate
from edgeserve.errors import ConfigError
from edgeserve.sched.policies import POLICIES

POLICY = """
from edgeserve.sched.published.baselines.fifo import Fifo
from edgeserve.sched.policy_api.policy import Policy

class Loud(Fifo):
    made = []
    def __init__(self, *given):
        super().__init__(*given)
        self.made.append(self.name)

class Silent(Policy):
    def queued(self):
        return []

class Short(Fifo):
    def on_finished(self, work, board):
        pass

def nothing():
    pass
"""
EDGE = """
[lane.cpu0]
[model.echo]
engine = "python"
function = "steps:echo"
options.example = "steps:example"
batch = [1]
[app.say]
model = "echo"
slo = "20s"
[policy.p]
kind = "{kind}"
"""
STEPS = """
import numpy as np
def echo(inputs):
    return inputs
def example():
    return {"x": np.zeros(2, np.float32)}
"""
SCENARIO = """
config = "edge.toml"
[model.echo]
engine = "synthetic"
batch = [1]
expected = { 1 = "1ms" }
[workload.w]
app = "say"
rate = 20.0
[run]
duration = "1s"
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    known = dict(POLICIES)
    for name, text in (
        ("loud.py", POLICY),
        ("steps.py", STEPS),
        ("scenario.toml", SCENARIO),
        ("edge.toml", EDGE.format(kind="loud:Loud")),
    ):
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    POLICIES.clear()
    POLICIES.update(known)


def simulated(*policies):
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    return simulate.main(
        parser.parse_args(["scenario.toml", *[word for name in policies for word in ("--policy", name)]])
    )


def test_it_serves(home):
    with edgeserve.Runtime(str(home / "edge.toml")) as runtime:
        answer = runtime.infer("say", {"x": np.arange(2, dtype=np.float32)})
        assert answer["x"].tolist() == [0, 1]
    assert POLICIES["loud:Loud"].made == ["p", "p"]  # the first for a look before anything is loaded


def test_it_is_simulated_beside_others(home, capsys):
    assert simulated() == 0
    assert set(POLICIES["loud:Loud"].made) == {"p"}
    assert simulated("fifo", "loud:Loud") == 0
    assert "loud:Loud" in capsys.readouterr().out
    assert set(POLICIES["loud:Loud"].made) == {"p"}  # found in the file, whose options are kept


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("quiet:Loud", ConfigError, "module 'quiet' cannot be imported"),
        ("loud:Missing", ConfigError, "has no function or class 'Missing'"),
        ("loud:Silent", ConfigError, r"'loud:Silent' has no bid\(\); every policy needs one"),
        (
            "loud:Short",
            ConfigError,
            r"'loud:Short': on_finished\(\) cannot be called with \(work, started_ns, finished_ns, board\)",
        ),
        ("loud:nothing", ConfigError, "expected a subclass of edgeserve.policy.Policy"),
        ("lood", ConfigError, "'module:Class' of a policy of your own"),
    ],
)
def test_what_is_no_policy_is_refused_by_name(home, kind, error, says):
    (home / "edge.toml").write_text(EDGE.format(kind=kind))
    with pytest.raises(error, match=says):
        simulated()
    with pytest.raises(error, match=says):
        with edgeserve.Runtime(str(home / "edge.toml")):
            pass


def test_the_doctor_says_that_it_cannot_be_imported(home):
    def wrong():
        found = doctor.check_config_file("edge.toml", 64)
        return [finding for finding in found if finding.subject == "policies" and finding.status == doctor.WRONG]

    assert not wrong()
    (home / "edge.toml").write_text(EDGE.format(kind="quiet:Loud"))
    assert len(wrong()) == 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"python"', '"pythn"', "[model.echo] engine = 'pythn' is no engine; did you mean 'python'?"),
        ('kind = "fifo"', 'kind = "steps:none"', "[policy.p] kind = 'steps:none'"),
        ("batch = [1]", 'batch = [1]\nmemory = "2GiB"\n[device.cpu]\nmemory = "1GiB"\n', "model 'echo' needs 2GiB"),
    ],
)
def test_what_serve_cannot_start_with_is_said_once_with_the_file(home, capfd, old, new, says):
    path = home / "edge.toml"
    path.write_text(EDGE.replace("{kind}", "fifo").replace(old, new))
    assert cli.main(["serve", str(path), "--endpoint", f"ipc://{home}/bus/socket"]) == 2
    errors = capfd.readouterr().err
    lines = [line for line in errors.splitlines() if says in line]
    assert len(lines) == 1, errors
    assert lines[0].startswith(f"edgeserve: {path}: ")
