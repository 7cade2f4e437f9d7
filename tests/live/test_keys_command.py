"""A server that other machines reach, set up as the page on security says: keys, a list of clients, and every command
that asks a running server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from edgeserve import cli
from edgeserve.config.loading import load_config
from edgeserve.runtime import Runtime

TOML = """
[server]
endpoint = "tcp://127.0.0.1:*"
curve_secret_key_file = "keys/server.key_secret"
curve_client_keys = "allowed"
control_keys = ["operator"]

[model.m]
engine = "synthetic"
expected = { 1 = "1ms" }

[app.hello]
model = "m"
slo = "20s"
inputs.name = { dtype = "text" }
"""


@pytest.mark.timeout(180)
def test_keys_in_two_commands_and_every_command_with_them(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "--keys", "server"]) == 0
    for name in ("robot", "operator"):
        assert cli.main(["init", "--keys", name]) == 0
    Path("allowed").mkdir(mode=0o700)
    for name in ("robot", "operator"):
        shutil.copy(f"keys/{name}.key", "allowed")
    Path("edge.toml").write_text(TOML, encoding="utf-8")
    with Runtime(load_config("edge.toml"), serve=True) as runtime:
        where = ["--endpoint", runtime.endpoints[0], "--server-key", "keys/server.key"]
        robot, operator = ([*where, "--client-key", f"keys/{name}.key_secret"] for name in ("robot", "operator"))
        assert cli.main(["infer", "hello", "--text", "name=you", *robot]) == 0
        assert cli.main(["top", "--json", *robot]) == 0
        assert cli.main(["top", "--count", "1", *robot]) == 0
        assert "hello" in capsys.readouterr().out
        assert cli.main(["story", "1", *operator]) == 0
        assert cli.main(["record", "--seconds", "0.1", *operator]) in (0, 1), "1: nothing was decided meanwhile"
        assert cli.main(["reload", *operator]) == 0
        assert cli.main(["reload", *robot]) != 0, "no control key"
        capsys.readouterr()
        assert cli.main(["top", "--json", *where]) == 2, "no key of its own"
        assert "Traceback" not in capsys.readouterr().err
