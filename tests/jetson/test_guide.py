"""``docs/start/jetson.md`` from the flashed board to the end, each command in the page's order: the scripts on each
board's file system, commands of the system on stand-ins, EdgeServe's own by their arguments; its configuration is
served by the doubles of CUDA and of each JetPack's TensorRT, in fp16."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

import numpy as np
import pytest
from fake_boards import BOARDS, ROOT, Board, lay_board, lay_commands, performed, run_script

from edgeserve import cli

PAGE = (ROOT / "docs" / "start" / "jetson.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    line.split("   ")[0].split(" #")[0].strip()
    for kind, text in BLOCKS
    if kind != "toml"
    for line in text.splitlines()
    if line.strip()
]

pytestmark = pytest.mark.skipif(
    not shutil.which("bash") or not shutil.which("dpkg-query"), reason="needs bash and dpkg-query, as a board has them"
)


def parsed(words: List[str]) -> None:
    """The arguments of a verb of EdgeServe are its own."""
    parser = argparse.ArgumentParser(exit_on_error=False) if sys.version_info >= (3, 9) else argparse.ArgumentParser()
    importlib.import_module(cli.VERBS[words[0]][0]).add_arguments(parser)
    parser.parse_args(words[1:])


def of_the_board(path: str, root: Path) -> Path:
    """A program that the guide names by its whole path."""
    found = root / path.lstrip("/")
    assert found.exists() or path.endswith("/venv/bin/edgeserve"), f"{path} is not on the board"  # pip is not run
    return found


ONE_JETPACK = "--onnxruntime try"
"""A command of the page that is for one JetPack alone; another JetPack refuses it with that reason."""


@pytest.mark.nightly  # runs setup.sh and uninstall.sh several times each
@pytest.mark.timeout(300)
@pytest.mark.parametrize("board", BOARDS, ids=[board.name for board in BOARDS])
def test_every_command_of_the_guide_runs_in_its_order(tmp_path: Path, board: Board) -> None:
    root, commands = lay_board(board, tmp_path / "board"), lay_commands(tmp_path / "commands")
    done: List[str] = []
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "sudo":
            words = words[1:]
        name = words[0]
        done.append(name)
        if name.startswith("jetson/"):
            if "./onnxruntime" in command:
                assert command.endswith(".whl")
            ran = run_script(name[len("jetson/") :], *words[1:], root=root, commands=commands)
            if ONE_JETPACK in command and not board.jetpack.startswith("7"):
                assert "is for JetPack 7" in ran.stderr
                continue
            assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
        elif name in ("systemctl", "journalctl"):
            unit = next(word for word in words[1:] if word.startswith("edgeserve"))
            assert (root / f"etc/systemd/system/{unit}.service").is_file(), command
        elif name == "/opt/edgeserve/as-service":
            of_the_board(name, root)
            if words[1] == "edgeserve":
                parsed(words[2:])
            else:
                script = of_the_board(words[2], root)
                told = subprocess.run(
                    [sys.executable, "-B", str(script), "--help"], text=True, capture_output=True, timeout=60
                )
                assert all(word in told.stdout for word in words[3:] if word.startswith("--")), told
        elif name.endswith("/edgeserve"):
            of_the_board(name, root)
            parsed(words[1:])
        else:
            assert name == "git", f"{command}: this test does not know how to run it"
    assert done.index("jetson/setup.sh") < done.index("/opt/edgeserve/as-service") < done.index("jetson/uninstall.sh")
    assert "jetson/power.sh" in done and "journalctl" in done
    assert any("nvpmodel" in line for line in performed(root))
    assert not (root / "opt/edgeserve").exists(), "the page ends with an uninstall"


@pytest.mark.parametrize("version", ["8.5", "10.3", "10.13"])
def test_the_guides_model_is_served_by_each_jetpacks_tensorrt_in_fp16(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    import onnx_models
    import trt_worlds

    from edgeserve.engines.tensorrt import construct
    from edgeserve.runtime import Runtime

    (text,) = [text for kind, text in BLOCKS if kind == "toml"]
    (tmp_path / onnx_models.linear(str(tmp_path))).rename(tmp_path / "detect.onnx")
    text = text.replace("/etc/edgeserve", str(tmp_path)).replace("/var/lib/edgeserve", str(tmp_path))
    text = text.replace("ipc:///run/edgeserve/bus", f"ipc://{folder}/bus").replace('"33ms"', '"30s"')
    (tmp_path / "edge.toml").write_text(text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags: List[str] = []
    configure = construct.configure

    def noted(*asked: object) -> object:
        config = configure(*asked)  # type: ignore[arg-type]
        flags.extend(config._flags)
        return config

    monkeypatch.setattr(construct, "configure", noted)
    with trt_worlds.world(monkeypatch, version, attributes={"INTEGRATED": 1}):
        assert cli.main(["profile", str(tmp_path / "edge.toml"), "--json", "--no-machine", "--seconds", "0.01"]) == 0
        with Runtime(str(tmp_path / "edge.toml")) as runtime:
            assert runtime.infer("detect", {"x": np.ones(4, np.float32)})["y"].shape == (3,)
    assert flags == ["FP16"]
