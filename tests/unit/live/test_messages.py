"""Messages that users meet: what is missing comes first, ranks, hints, and all mistakes before anything is loaded."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace

import numpy as np
import pytest

from edgeserve.config.loading import load_config, parse_config
from edgeserve.engines.base import Batch
from edgeserve.engines.python import make
from edgeserve.errors import BadInput, ConfigError, EngineError
from edgeserve.ipc.endpoints import check_endpoint, prepare_endpoint
from edgeserve.live.preflight import check_before_loading, check_cores, raise_or_tell
from edgeserve.live.request import request_of_call, request_validators
from edgeserve.runtime import Runtime
from edgeserve.tools.doctor import report
from edgeserve.tools.doctor.bus import check_bus
from edgeserve.tools.doctor.finding import WRONG, Finding
from edgeserve.tools.wrapping import wrapped

X = np.zeros((3, 4), np.float32)
MODEL = {"engine": "synthetic", "expected": {"1": "10ms"}}


def config(**sections):
    return parse_config(
        {"model": {"m": MODEL}, "app": {"a": {"model": "m", "inputs": {"image": {"shape": [3, 4]}}}}, **sections}
    )


def refused(inputs, hints=None, **sections):
    with pytest.raises(BadInput) as caught:
        request_validators(config(**sections))["a"].check(request_of_call("a", inputs, hints=hints), None, 0)
    return str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"images": X}, "'image' is missing, expected a numpy array float32 [3, 4]; 'images' was sent"),
        ({}, "(nothing was sent)"),
        ({"image": X[0]}, "float32 [4] with 1 axis, expected 2 axes"),
        ({"image": X[None]}, "3 axes, expected 2 axes: a numpy array float32 [3, 4]; leave the batch axis out"),
        ({"image": X.astype("f8")}, "send image.astype('float32')"),
    ],
)
def test_an_input_that_does_not_fit_says_what_was_expected_first(inputs, words):
    assert words in refused(inputs)


def test_a_misspelt_hint_is_refused_and_a_strange_one_is_not():
    assert "did you mean 'length'?" in refused({"image": X}, {"lenght": 3})
    validator = request_validators(config())["a"]
    validator.check(request_of_call("a", {"image": X}, hints={"colour": 3.0}), None, 0)


def test_a_function_that_looks_for_another_input_is_told_its_inputs(tmp_path):
    (tmp_path / "steps_of_messages.py").write_text("def f(item):\n    return {'y': item['image']}\n")
    model = replace(config().models["m"], engine="python", function="steps_of_messages:f")
    engine = make(model, [], str(tmp_path))
    engine.load()
    (result,) = engine.run(Batch([{"x": X}], 1))
    assert isinstance(result.error, EngineError)
    assert "KeyError on item 0: 'image' is not among its inputs (x)" in str(result.error)


def test_an_empty_file_is_not_served(tmp_path):
    (tmp_path / "edge.toml").write_text("# nothing\n")
    with pytest.raises(ConfigError, match="there is nothing in it; .* 'edgeserve init MODEL_FILE' writes them"):
        load_config(str(tmp_path / "edge.toml"))


def test_all_mistakes_are_said_at_once_and_before_loading():
    wrong = config(model={"m": {"engine": "onx"}, "n": {"engine": "onnx", "file": "no.onnx"}}, policy={"edff": {}})
    problems = check_before_loading(wrong)
    with pytest.raises(ConfigError) as caught:
        raise_or_tell(problems, None)
    said = str(caught.value)
    assert "mistakes:" in said
    assert "'onx' is no engine" in said
    assert "no policy 'edff'; did you mean 'edf'" in said


def test_cores_that_are_not_there_and_deadlines_that_cannot_be_met_are_told():
    told = []
    here = config(lane={"cpu0": {"cores": [4000]}}, app={"a": {"model": "m", "slo": "5ms"}})
    raise_or_tell(check_before_loading(here), lambda form, text: told.append(text))
    assert "this process may not use core 4000" in told[0]
    assert "more than its slo of 5ms allows" in told[1]
    assert check_cores(config()) == []


def test_cores_that_are_not_there_are_told_once(caplog):
    here = config(lane={"cpu0": {"cores": [0, 4000]}}, app={"a": {"model": "m", "slo": "5ms"}})
    with Runtime(here):
        pass
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([text for text in told if "4000" in text]) == 1, told
    assert len([text for text in told if "slo of 5ms" in text]) == 1, told


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
    prepare_endpoint(f"ipc://{path}", False)  # nobody listens any more: the file goes


def test_the_doctors_lines_are_wrapped_below_themselves():
    assert wrapped("one two three four five six", "wrong  x  ", 30) == [
        "wrong  x  one two three four",
        "          five six",
    ]
    text = report([Finding("bus", WRONG, "word " * 30, "chmod 700 /run/x")], 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "-> chmod 700 /run/x" in text
