"""``edgeserve chat``: a conversation in the terminal with a model's file, and with an app of a running server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request

import lm_models
import pytest
from http_front import free_port
from serving import function, served

from edgeserve import cli
from edgeserve.commands import talk
from edgeserve.commands.assets import read_assets
from edgeserve.commands.lm_model.graph import random_tensors, write_model

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model whose answers go on for seconds."""
    folder = tmp_path_factory.mktemp("talk")
    shape = lm_models.SHAPE._replace(context=32768)
    write_model(str(folder / "tiny.onnx"), shape, random_tensors(shape, seed=2), lm_models.ABOUT)
    return str(folder)


def said(monkeypatch, capsys, lines, *arguments):
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    status = cli.main(["chat", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_conversation_goes_on_and_no_file_is_written(monkeypatch, capsys, model, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(model))
    asked = []
    monkeypatch.setattr(talk, "say", lambda ask, inputs: asked.append(json.loads(inputs["messages"])) or "so")
    assert said(monkeypatch, capsys, "one\n\ntwo\n", model, "--system", "Be brief.")[0] == 0
    assert [[turn["content"] for turn in turns] for turns in asked] == [
        ["Be brief.", "one"],
        ["Be brief.", "one", "so", "two"],
    ]
    assert os.listdir(tmp_path) == [] and sorted(os.listdir(model)) == before


def test_answers_are_printed_as_the_model_gives_them(monkeypatch, capsys, model):
    arguments = (os.path.join(model, "tiny.onnx"), "--max-tokens", "12")
    status, once, _ = said(monkeypatch, capsys, "hello\n", *arguments)
    assert status == 0 and len(once) > 4
    assert said(monkeypatch, capsys, "hello\n", *arguments)[1] == once, "the likeliest words are the same again"
    assert said(monkeypatch, capsys, "hello\n", *arguments, "--system", "x")[1] != once


def test_an_app_of_a_running_server_is_talked_with(monkeypatch, capsys):
    tables = {
        "model": {"chat": function("chat", "example_chat", "http_functions")},
        "app": {"echo": {"model": "chat", "slo": "20s", "inputs": {"messages": {"dtype": "text"}}}},
    }
    with served(tables) as (runtime, _):
        place = ("--endpoint", runtime.endpoints[0])
        assert said(monkeypatch, capsys, "one two\nthree\n", "--app", "echo", *place)[:2] == (0, "one two\nthree\n")
        status, _, err = said(monkeypatch, capsys, "x\n", "--app", "echo", *place, "--temperature", "1")
        assert status == 1 and "temperature is not served" in err
        status, _, err = said(monkeypatch, capsys, "x\n", "--app", "ecko", *place)
        assert status == 2 and "did you mean 'echo'" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give either a MODEL, or --app"),
        (("m.gguf", "--app", "a"), "give either a MODEL, or --app"),
        (("nothing.gguf",), "expected a file that ends in .gguf"),
        (("smollm",), "did you mean 'smollm2'"),
        ((HERE,), "no model in this folder"),
    ],
)
def test_what_is_no_model_is_said_with_what_was_expected(monkeypatch, capsys, arguments, says):
    status, _, err = said(monkeypatch, capsys, "", *arguments)
    assert status == 2 and says in err


def test_the_packaged_model_is_the_chat_examples():
    listed = read_assets(os.path.join(HERE, os.pardir, os.pardir, "examples", "chat", "assets.toml"))
    assert talk.PACKAGED["smollm2"] in listed


@contextlib.contextmanager
def process(*arguments):
    command = [sys.executable, "-u", "-m", "edgeserve.cli", "chat", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as child:
        watch = threading.Timer(60, child.kill)
        watch.start()
        try:
            yield child
        finally:
            watch.cancel()
            child.kill()


def test_ctrl_c_ends_an_answer_and_the_conversation_goes_on(model):
    with process(model, "--max-tokens", "30000", "--context", "32768") as child:
        child.stdin.write(b"one\n")
        child.stdin.flush()
        first = child.stdout.read(8)
        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(b"", timeout=50)
        assert first and rest.endswith(b" ...\n") and child.returncode == 0
        assert len(rest) < 25000, "the model went on"


def test_the_page_and_the_apis_are_served_beside_the_terminal(model):
    port = free_port()
    with process(model, "--http", str(port)) as child:
        while b"the page to chat" not in child.stderr.readline():
            assert child.poll() is None
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
            assert [each["id"] for each in json.load(answer)["data"]] == ["chat"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
            assert b"<html" in answer.read()
        child.communicate(b"", timeout=50)
        assert child.returncode == 0
