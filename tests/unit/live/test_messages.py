"""Messages at start: all mistakes before anything is loaded, each once. The texts are held by test_messages_page.py."""

from __future__ import annotations

import logging
import socket

import pytest

from edgeserve.commands.doctor import report
from edgeserve.commands.doctor.bus import check_bus
from edgeserve.commands.doctor.configuration import check_before
from edgeserve.commands.doctor.finding import WRONG, Finding
from edgeserve.commands.wrapping import wrapped
from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError
from edgeserve.ipc.endpoints import check_endpoint, prepare_endpoint
from edgeserve.live.preflight import check_before_loading, raise_or_tell
from edgeserve.runtime import Runtime

MODEL = {"engine": "synthetic", "expected": {"1": "10ms"}}


def config(**sections):
    return parse_config(
        {"model": {"m": MODEL}, "app": {"a": {"model": "m", "inputs": {"image": {"shape": [3, 4]}}}}, **sections}
    )


def test_all_mistakes_are_said_at_once_and_before_loading():
    wrong = config(model={"m": {"engine": "onx"}, "n": {"engine": "onnx", "file": "no.onnx"}}, policy={"edff": {}})
    problems = check_before_loading(wrong)
    with pytest.raises(ConfigError) as caught:
        raise_or_tell(problems, None)
    said = str(caught.value)
    assert "mistakes:" in said
    assert "'onx' is no engine" in said
    assert "no policy 'edff'; did you mean 'edf'" in said


def test_cores_that_are_not_there_are_told_once(caplog):
    here = config(lane={"cpu0": {"cores": [0, 4000]}}, app={"a": {"model": "m", "slo": "5ms"}})
    with Runtime(here):
        pass
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([text for text in told if "4000" in text]) == 1, told
    assert len([text for text in told if "slo of 5ms" in text]) == 1, told


@pytest.mark.parametrize(
    ("device", "model", "stops"),
    [
        ({"headroom": "900000GB"}, {}, True),
        ({"headroom": "1GB"}, {"memory": "900000GB"}, True),
        ({}, {"memory": "900000GB"}, False),
        ({"memory": "900000GB"}, {}, False),
        ({"headroom": "1MB", "memory": "100MB"}, {"memory": "10MB"}, None),
    ],
)
def test_memory_that_no_machine_has_is_told_before_requests_expire(device, model, stops):
    here = config(device={"cpu": device}, model={"m": {**MODEL, **model}})
    found = [problem for problem in check_before_loading(here) if problem.subject == "memory"]
    assert [problem.stops for problem in found] == ([] if stops is None else [stops])
    assert all("of this machine" in problem.text for problem in found)
    assert [finding.status for finding in check_before(here)] == [WRONG] * len(found)


def test_an_endpoint_in_use_is_found_without_binding_the_bus(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="another program listens there already"):
            check_endpoint(endpoint)
        assert [finding.status for finding in check_bus(endpoint, 0)] == [WRONG]
    with pytest.raises(ConfigError, match="expected a port from 1 to 65535"):
        check_endpoint("tcp://127.0.0.1:70000")
    path = f"{tmp_path}/bus"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(path)
        living.listen()
        with pytest.raises(ConfigError, match="another server listens there already"):
            check_endpoint(f"ipc://{path}")
        [finding] = check_bus(f"ipc://{path}", 0)
        assert finding.status == WRONG and "if it is the server of this file, all is well" in finding.mend
    prepare_endpoint(f"ipc://{path}", False)  # no process listens any more: the file goes


def test_the_doctors_lines_are_wrapped_below_themselves():
    assert wrapped("one two three four five six", "wrong  x  ", 30) == [
        "wrong  x  one two three four",
        "          five six",
    ]
    text = report([Finding("bus", WRONG, "word " * 30, "chmod 700 /run/x")], 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "-> chmod 700 /run/x" in text
