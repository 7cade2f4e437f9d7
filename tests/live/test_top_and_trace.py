"""``edgeserve top`` and ``record`` against a running server."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from serving import served

from edgeserve import cli
from edgeserve.client import Client
from edgeserve.commands.doctor import bus as doctor_bus
from edgeserve.commands.doctor.bus import check_bus
from edgeserve.commands.doctor.finding import GOOD, WRONG
from edgeserve.errors import DeadlineExpired
from edgeserve.taps.trace import read_recording

CONFIG = {
    "lane": {"cpu0": {}},
    "app": {"echo": {"model": "echo", "slo": "10s"}},
    "model": {"echo": {"engine": "synthetic", "batch": [1, 2, 4], "expected": {"1": "1ms", "2": "1ms", "4": "1ms"}}},
}


@pytest.fixture(scope="module")
def endpoint():
    with served(CONFIG) as (runtime, client):
        for _ in range(20):
            client.infer("echo", {"x": np.zeros(4, np.float32)})
        with pytest.raises(DeadlineExpired):
            client.infer("echo", {"x": np.zeros(4, np.float32)}, slo_ms=1e-6)
        yield runtime.endpoints[0]


def test_top_prints_tables_of_80_columns(endpoint, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["top", "--count", "2", "--interval", "100ms", "--endpoint", endpoint]) == 0
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines()) <= 80
    assert len(re.findall(r"^ ?app +/s +in time +late +none", printed, re.MULTILINE)) == 2
    assert re.search(r"^ ?echo +[\d.]+ +95%", printed, re.MULTILINE)
    assert re.search(r"^ ?cpu0 +up", printed, re.MULTILINE)


@pytest.mark.nightly
def test_top_as_a_page(endpoint):
    pytest.importorskip("uvicorn", reason="pip install -e '.[http]'")
    command = [sys.executable, "-m", "edgeserve", "top", "--web", "--endpoint", endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        address = top.stdout.readline().split()[0]
        with urllib.request.urlopen(address, timeout=20) as page:
            assert b"<title>EdgeServe</title>" in page.read()
        with urllib.request.urlopen(f"{address}page/apps", timeout=20) as apps:
            assert "echo" in json.load(apps)
        top.terminate()
    assert top.returncode == 0


def test_a_refused_request_leads_to_its_story(endpoint, capsys):
    assert cli.main(["infer", "echo", "--text", "t=x", "--slo", "1us", "--endpoint", endpoint]) == 1
    number = re.search(r"what happened: edgeserve story (\d+) --endpoint", capsys.readouterr().err)[1]
    assert cli.main(["story", number, "--endpoint", endpoint]) == 0
    assert f"request {number} of app echo" in capsys.readouterr().out


def test_stats_as_json_are_those_of_the_server(endpoint, capsys):
    assert cli.main(["top", "--json", "--endpoint", endpoint]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert stats["apps"]["echo"]["outcomes"]["completed"] == 20
    assert cli.main(["top", "--count", "1", "--endpoint", endpoint]) == 0
    assert "echo" in capsys.readouterr().out


def test_a_trace_of_what_has_just_happened(endpoint, tmp_path, capsys):
    out, recording = str(tmp_path / "trace.json"), str(tmp_path / "steps.jsonl")
    files = ["--timeline", out, "--out", recording]
    with Client(endpoint) as client:
        client.trace()  # steps are kept from now on
        for _ in range(20):
            client.infer("echo", {"x": np.zeros(4, np.float32)})
    assert cli.main(["record", "--seconds", "0.1", "--endpoint", endpoint, *files]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out
    with open(out, encoding="utf-8") as file:
        entries = json.load(file)["traceEvents"]
    assert sum(1 for entry in entries if entry["ph"] == "X" and entry["name"] == "echo x1") == 20
    assert sum(1 for entry in entries if entry["ph"] == "b") == 20
    assert len(read_recording(recording).steps) >= 40
    again = str(tmp_path / "again.json")
    assert cli.main(["record", "--from", recording, "--timeline", again]) == 0
    with open(again, encoding="utf-8") as file:
        assert json.load(file)["traceEvents"] == entries


def test_a_trace_goes_on_for_some_time(endpoint, tmp_path):
    out = str(tmp_path / "timeline.json")
    with Client(endpoint) as client:
        future = client.submit("echo", {"x": np.zeros(4, np.float32)})
        assert cli.main(["record", "--seconds", "0.3", "--endpoint", endpoint, "--timeline", out]) == 0
        future.result(30)


def test_wrong_arguments_are_named(endpoint, capsys):
    assert cli.main(["top", "--interval", "1ms", "--endpoint", endpoint]) == 2
    assert cli.main(["record", "--seconds", "0", "--endpoint", endpoint]) == 2
    assert cli.main(["record", "--seconds", "0.1", "--out", "/no/such/place.json", "--endpoint", endpoint]) == 2
    assert "/no/such/place.json" in capsys.readouterr().err


def test_doctor_knows_the_server_of_its_own_configuration(endpoint):
    own = check_bus(endpoint, os.getuid(), "", ["echo"])
    assert [finding.status for finding in own + check_bus(endpoint, os.getuid())] == [GOOD, GOOD]
    assert f"process {os.getpid()} serves echo there" in own[0].text
    (other,) = check_bus(endpoint, os.getuid(), "", ["detect", "echo"])
    assert other.status == WRONG
    assert "this configuration has detect, echo" in other.text
    assert "edgeserve reload" in other.mend


def test_doctor_finds_fault_with_a_listener_that_is_no_server(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_bus, "ASK_MS", 50.0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/bus")
        listener.listen()
        (found,) = check_bus(f"ipc://{tmp_path}/bus", os.getuid(), "", ["echo"])
    assert found.status == WRONG
    assert "another server listens there already" in found.text


def test_a_story_has_the_deadline_that_was_asked(endpoint):
    with Client(endpoint) as client:
        number = client.infer("echo", {"x": np.zeros(4, np.float32)}, slo_ms=5000).id
        assert re.search(
            r"deadline 5s after it was asked(, of which [\d.]+[um]s are kept for the answer)?$", client.story(number)[0]
        )
