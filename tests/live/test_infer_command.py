"""``edgeserve infer``: files and texts in, outputs and times out, typed errors as exit statuses."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest
from bus_server import BusServer

from edgeserve import cli
from edgeserve.commands.connection import add_connection_arguments
from edgeserve.commands.infer import why
from edgeserve.config.loading import parse_config
from edgeserve.runtime import Runtime


@pytest.fixture
def endpoint(tmp_path):
    with BusServer(f"ipc://{tmp_path}/run/bus") as server:
        yield server.endpoint


@pytest.fixture
def image(tmp_path):
    path = f"{tmp_path}/x.npy"
    np.save(path, np.arange(12, dtype=np.float32).reshape(3, 4))
    return path


def test_outputs_and_times_are_printed_and_written(endpoint, image, tmp_path, capsys):
    out = f"{tmp_path}/y.npy"
    words = f"infer echo --in x={image} --text t=hello --slo 5s --endpoint {endpoint} --out x={out}"
    assert cli.main(words.split()) == 0
    printed = capsys.readouterr().out
    assert "x: float32 [3, 4]  0 1 2 3 4 5 6 7 ..." in printed
    assert "t: hello" in printed
    assert "completed in 0.00 ms: queue" in printed
    assert np.load(out).shape == (3, 4)


def test_a_late_answer_leads_to_its_story():
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    assert why(7, parser.parse_args([])) == "\nwhat happened: edgeserve story 7"
    elsewhere = parser.parse_args(["--endpoint", "tcp://127.0.0.1:5555"])
    assert why(7, elsewhere).endswith("story 7 --endpoint tcp://127.0.0.1:5555")
    assert not why(0, elsewhere)


def test_json_holds_everything(endpoint, image, capsys):
    assert cli.main(["infer", "echo", "--in", f"x={image}", "--json", "--endpoint", endpoint]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["outputs"]["x"][2] == [8, 9, 10, 11]
    assert sorted(said["breakdown_ms"]) == ["batch", "execute", "load", "other", "queue"]


def test_errors_of_the_server_are_typed(endpoint, capsys):
    assert cli.main(["infer", "nobody", "--endpoint", endpoint]) == 1
    assert "unknown_app" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--in", "x"], "NAME=VALUE"),
        (["--in", "x=/no/such.npy"], "cannot be read"),
        (["--in", "x=/dev/zero"], "it is no regular file"),
        (["--slo", "5"], "--slo"),
        (["--text", "a=1", "--text", "a=2"], "twice"),
    ],
)
def test_wrong_arguments_are_named(arguments, words, capsys):
    assert cli.main(["infer", "echo", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_an_image_needs_pillow_or_arrives(endpoint, tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed: images cannot be read")
    path = f"{tmp_path}/x.png"
    pillow.new("RGB", (4, 2), (1, 2, 3)).save(path)
    assert cli.main(["infer", "echo", "--in", f"x={path}", "--endpoint", endpoint]) == 0
    assert "uint8 [2, 4, 3]  1 2 3" in capsys.readouterr().out


def test_a_story_is_printed_and_a_forgotten_one_is_status_1(tmp_path, capsys):
    with BusServer(f"ipc://{tmp_path}/run/bus") as server:
        server.told = {"story": ["request 7 of app a: completed", "  +1ms: arrived"]}
        assert cli.main(["story", "7", "--endpoint", server.endpoint]) == 0
        assert capsys.readouterr().out == "request 7 of app a: completed\n  +1ms: arrived\n"
        server.told = {"story": []}
        assert cli.main(["story", "8", "--endpoint", server.endpoint]) == 1
        assert "the server remembers no request 8" in capsys.readouterr().err


def test_json_of_a_refusal_has_its_id_and_numbers(tmp_path, capsys):
    config = parse_config(
        {
            "server": {"endpoint": f"ipc://{tmp_path}/run/bus"},
            "policy": {"edf": {"trials": False}},
            "model": {"m": {"engine": "synthetic", "expected": {"1": "400ms"}}},
            "app": {"short": {"model": "m", "slo": "300ms"}},
        }
    )
    with Runtime(config, serve=True) as runtime:
        assert cli.main(["infer", "short", "--json", "--endpoint", runtime.endpoints[0]]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["error"], said["reason"], said["id"]) == ("rejected", "cannot_make_deadline", 1)
    assert (said["expected_ms"], said["wait_ms"]) == (400.0, 0.0)
    assert said["slo_ms_min"] >= 400
