"""Every option that names a file is given a pipe, whose other end no program has: it is refused, not waited for."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest

from edgeserve.cli import VERBS, main, verb_parser
from edgeserve.commands.front import FRONTS, front_parser
from edgeserve.errors import ConfigError
from edgeserve.fronts.camera_front import opened

EDGE = """
[model.m]
engine = "synthetic"
expected = { 1 = "1ms" }

[app.a]
model = "m"
slo = "1s"
inputs.x = { dtype = "float32", shape = [4] }
"""
RUN = '[run]\nduration = "1s"\n\n[workload.w]\napp = "a"\nrate = 9.0\n'

KEYS = "--endpoint tcp://127.0.0.1:9 --server-key {pipe}"

# Option -> words with it. ``{pipe}`` is the pipe; the folder has edge.toml, run.toml and steps.jsonl.
TRIED = {
    "init models": "init {pipe}.onnx",
    "serve --record": "serve edge.toml --record {pipe}",
    "chat model": "chat {pipe}.gguf",
    "infer --in": "infer a --in x={pipe}.npy",
    "infer --client-key": f"infer a {KEYS} --client-key {{pipe}}",
    "top --replay": "top --replay {pipe}",
    "record --out": "record --from steps.jsonl --out {pipe}",
    "record --timeline": "record --from steps.jsonl --timeline {pipe}",
    "record --from": "record --from {pipe}",
    "profile --fit": "profile edge.toml --fit a={pipe}.npz",
    "simulate --record": "simulate run.toml --seeds 1 --record {pipe}",
    "simulate --replay": "simulate --replay {pipe}",
    "doctor config": "doctor {pipe}.json",
    "doctor --collect": "doctor --collect {pipe}",
    "front --server-key": f"front http {KEYS}",
    "front --client-key": f"front http {KEYS} --client-key {{pipe}}",
    "front --token-file": "front http --token-file {pipe}",
    "front --password-file": "front mqtt --host 127.0.0.1 --user u --password-file {pipe}",
    "front --labels-file": "front camera --app a --source test --labels-file {pipe}",
    "front bag": "front bag {pipe}.mcap --app a",
}
AS_OTHERS = {
    "init --out": "needs a model file; written as record --out is",
    "infer --out": "needs an answer; written as record --out is",
    "simulate scenario": "a configuration may come by a pipe",
    "bench --arrivals": "needs a server; read as the trace of a scenario is",
    "bench --in": "as infer --in",
    "front --lines": "needs a server: the test below",
    **{f"{verb} --client-key": "as infer's" for verb in ("chat", "story", "top", "record", "reload", "bench")},
}


def named_files() -> Iterator[str]:
    """Every option of every verb and front whose value is a file."""
    parsers: List[Tuple[str, argparse.ArgumentParser]] = [("front", front_parser(name)[0]) for name in FRONTS]
    parsers += [(verb, verb_parser(verb)[0]) for verb in VERBS]
    for verb, parser in parsers:
        for action in parser._actions:  # argparse has no other list of them
            name = (action.option_strings or [action.dest])[-1]
            if re.search(r"FILE|HISTORY|TRACE|MODEL$", str(action.metavar)) or name in ("bag", "--lines"):
                yield f"{verb} {name}"


def test_every_option_that_names_a_file_is_tried() -> None:
    assert sorted(set(named_files()) ^ {*TRIED, *AS_OTHERS}) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("pipes")
    (place / "edge.toml").write_text(EDGE)
    (place / "run.toml").write_text(EDGE + RUN)
    assert main(["simulate", str(place / "run.toml"), "--seeds", "1", "--record", str(place / "steps.jsonl")]) == 0
    return place


@pytest.mark.timeout(60)
@pytest.mark.parametrize("words", TRIED.values(), ids=TRIED)
def test_a_pipe_without_its_other_end_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str
) -> None:
    monkeypatch.chdir(folder)
    for ending in ("", ".npy", ".npz", ".onnx", ".gguf", ".json", ".mcap"):
        if not os.path.exists(f"pipe{ending}"):
            os.mkfifo(f"pipe{ending}")
    assert main(words.format(pipe=str(folder / "pipe")).split()) in (1, 2)
    shown = capfd.readouterr()
    assert re.search("no regular file|a pipe|no such file|expected a file|File exists", shown.out + shown.err), shown


@pytest.mark.timeout(60)
def test_lines_are_written_to_a_pipe_that_has_a_reader_alone(folder: Path) -> None:
    path = str(folder / "lines")
    os.mkfifo(path)
    with contextlib.ExitStack() as stack, pytest.raises(ConfigError, match="a pipe that no program reads"):
        opened("--lines", path, stack)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with contextlib.ExitStack() as stack:
        stream = opened("--lines", path, stack)
        assert stream is not None and os.get_blocking(stream.fileno())
        stream.write("seen")
    assert os.read(reader, 9) == b"seen"
    os.close(reader)
