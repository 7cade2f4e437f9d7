"""The types that a user's type checker sees in an editable install, and the public names of the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import edgeserve
from edgeserve import errors

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)]

APP = """\
import edgeserve
from edgeserve.errors import RequestError, TimedOut

config = edgeserve.load_config("edge.toml")
with edgeserve.Runtime(config) as runtime:
    future = runtime.submit("app", {"x": 1}, slo_ms=50)
    reveal_type(future.result())
    reveal_type(future.result().breakdown_ms)
    future.reslt()
with edgeserve.Client() as client:
    try:
        reveal_type(client.submit("app", {"x": 1}).result(1.0))
    except TimedOut as error:
        reveal_type(error.id)
        raise edgeserve.errors.TimedOut("again")


async def ask(runtime: edgeserve.AsyncRuntime, client: edgeserve.AsyncClient) -> None:
    reveal_type(await runtime.infer("app", {"x": 1}))
    reveal_type(await client.infer("app", {"x": 1}))
    await runtime.infer(3, {"x": 1})
"""
ANSWER = 'Revealed type is "edgeserve.answers.Answer"'
NOT_READ = """\
[mypy]
[mypy-numpy.*,zmq.*,msgpack.*,psutil.*,rich.*,edgeserve.sched.*,edgeserve.sim.*,edgeserve.engines.*,edgeserve.device.*]
follow_imports = skip
"""
"""Rooms that hold none of these types: half of mypy's time."""

SAID = {
    7: ANSWER,
    8: 'Revealed type is "builtins.dict[builtins.str, builtins.float]"',
    9: 'has no attribute "reslt"',
    12: ANSWER,
    14: "Revealed type is",
    19: ANSWER,
    20: ANSWER,
    21: 'has incompatible type "int"; expected "str"',
}


def installed_editable() -> bool:
    try:
        text = metadata.distribution("edgeserve-runtime").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return False
    return bool(json.loads(text or "{}").get("dir_info", {}).get("editable"))


@pytest.mark.nightly  # mypy reads the package for ten seconds; `make lint` does too
def test_an_editable_install_keeps_its_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed: make lint")
    if not installed_editable():
        pytest.skip("edgeserve-runtime is not installed in place here")
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(NOT_READ, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--cache-dir",
            str(tmp_path / "cache"),
            "app.py",
        ],
        cwd=str(tmp_path),
        env=environment,
        timeout=300,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("app.py:")]
    assert sorted(int(line.split(":")[1]) for line in lines) == sorted(SAID), done.stdout
    for line in lines:
        assert SAID[int(line.split(":")[1])] in line


def test_an_editable_install_is_a_plain_path() -> None:
    """An import hook instead, and type checkers find nothing."""
    if not installed_editable():
        pytest.skip("edgeserve-runtime is not installed in place here")
    files = [file.name for file in metadata.distribution("edgeserve-runtime").files or ()]
    assert not [name for name in files if name.endswith("_finder.py")], files


def test_the_package_shows_its_public_names_and_each_can_be_had() -> None:
    assert dir(edgeserve) == sorted(edgeserve.__all__)
    assert {"Answer", "AsyncClient", "AsyncRuntime", "Client", "Runtime", "errors"} <= set(dir(edgeserve))
    for name in dir(edgeserve):
        assert getattr(edgeserve, name) is not None
    pages = Path(__file__).resolve().parents[2] / "docs" / "reference"
    page = "".join((pages / name).read_text(encoding="utf-8") for name in ("python.md", "errors.md"))
    names = [f"edgeserve.{name}" for name in dir(edgeserve)] + [f"errors.{kind.__name__}" for kind in KINDS]
    assert not [name for name in names if f"| `{name}` |" not in page]
    with pytest.raises(AttributeError, match="public names: Answer"):
        edgeserve.Rutime  # type: ignore[attr-defined]  # noqa: B018
