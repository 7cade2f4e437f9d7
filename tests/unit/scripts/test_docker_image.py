"""The promises of the container file for x86-64, read line by line: no Docker daemon is needed, and none builds it."""

from __future__ import annotations

import ast
import fnmatch
import json
import re
from pathlib import Path

from edgeserve.config.loading import load_config

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "scripts" / "docker" / "Dockerfile.x86"
TEXT = FILE.read_text(encoding="utf-8")
COMMANDS = {"ARG", "FROM", "RUN", "ENV", "COPY", "USER", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def instructions(text):
    """(command, argument) of each instruction, continued lines joined."""
    whole = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", text))
    return [tuple(line.split(None, 1)) for line in whole.splitlines() if line.strip()]


INSTRUCTIONS = instructions(TEXT)


def arguments(command):
    return [argument for name, argument in INSTRUCTIONS if name == command]


def test_every_line_is_an_instruction_and_the_user_is_not_root():
    names = [name for name, _ in INSTRUCTIONS]
    assert set(names) <= COMMANDS
    assert names[:2] == ["ARG", "FROM"] and ":latest" not in TEXT and re.search(r":[\d.]+$", arguments("ARG")[0])
    assert arguments("USER") == ["edgeserve"] and names.index("USER") < names.index("ENTRYPOINT")
    assert "useradd --system" in arguments("RUN")[-1]


def test_what_it_copies_exists_and_reaches_the_builder():
    ignored = [
        line
        for line in Path(f"{FILE}.dockerignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    let_through = [line[1:] for line in ignored if line.startswith("!")]
    assert ignored[0] == "*"
    copied = [source for argument in arguments("COPY") for source in argument.split()[:-1]]
    assert sorted(copied) == sorted(let_through)
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert any(fnmatch.fnmatch("edgeserve/__pycache__", pattern) for pattern in ignored if pattern.startswith("**"))


def test_its_extras_are_the_projects_and_its_python_is_supported():
    extras = dict(item.split("=", 1) for item in arguments("ARG") if "=" in item)["EXTRAS"].split(",")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    others = re.findall(r"EXTRAS=([\w,]+)", TEXT)
    assert all(re.search(rf"(?m)^{extra} = \[", project) for extra in {*extras, *",".join(others).split(",")})
    assert set(re.findall(r"python(3\.\d+)", TEXT)) == {"3.12"}


def test_it_starts_a_configuration_that_can_be_read_where_the_health_check_asks():
    (entry,) = arguments("ENTRYPOINT")
    (command,) = arguments("CMD")
    verb, path = json.loads(command)
    assert json.loads(entry) == ["edgeserve"] and verb == "serve"
    source = next(argument.split()[0] for argument in arguments("COPY") if argument.split()[-1] == path)
    endpoint = load_config(str(ROOT / source)).server.endpoint
    (check,) = arguments("HEALTHCHECK")
    program = json.loads(check.partition("CMD ")[2])[-1]
    ast.parse(program)
    assert repr(endpoint) in program
