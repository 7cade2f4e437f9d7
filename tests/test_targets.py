"""Every test is run by some target of the Makefile: what a target names exists, every marker that leaves tests out is
the choice of another target, and a file that needs a library is in a target whose environment has it."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path
from typing import Dict, List, Set

import pytest

try:
    import tomllib
except ImportError:  # before Python 3.11
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
TARGETS = (
    "test",
    "test-portable",
    "test-torch",
    "test-ray",
    "test-compiled",
    "test-nightly",
    "test-drawn",
    "test-worlds",
)
DISTRIBUTION = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "google": "protobuf",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-sdk",
    "pydantic": "openai",
    "tokenizers": "transformers",
}
"""The package that brings a module, where it is not the module's name."""

BY_HAND = {
    "tests/unit/engines/tensorrt/test_rtx.py": "needs a GPU and packages that exclude another; it names the commands",
    "tests/live/test_satellites.py": "needs a synthesiser of speech, which nothing else does",
}


@functools.lru_cache(maxsize=None)
def said(target: str) -> str:
    """The commands that the target would run, in an environment that is not there yet."""
    command = ["make", "--dry-run", "--no-print-directory", target, "VENV=none", "TORCH_VENV=none-2", "RAY_VENV=none-3"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def named(target: str) -> List[str]:
    return [word.split("::")[0] for word in re.findall(r"(?<=\s)tests/\S+", said(target))]


def runs(target: str, file: str) -> bool:
    paths = named(target)
    return not paths or any(file == path or file.startswith(f"{path}/") for path in paths)


def installed(target: str) -> Set[str]:
    """The packages that the target's environment needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: Dict[str, List[str]] = {"": project["dependencies"], **project["optional-dependencies"]}
    wanted = [
        need
        for extra in ("", *",".join(re.findall(r"\.\[([\w,-]+)\]", said(target))).split(","))
        for need in extras[extra]
    ]
    for path in re.findall(r"--requirement (\S+)", said(target)):
        wanted += (ROOT / path).read_text(encoding="utf-8").splitlines()
    return {re.split(r"[^\w.-]", need.strip(), maxsplit=1)[0].lower() for need in wanted}


def needs(file: str) -> Set[str]:
    """The packages without which the whole file is skipped."""
    found = re.findall(r'(?m)^(?:\w+ = )?pytest\.importorskip\("(\w+)', (ROOT / file).read_text(encoding="utf-8"))
    return {DISTRIBUTION.get(module, module).replace("_", "-").lower() for module in found}


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_target_names_exists(target: str) -> None:
    assert [path for path in named(target) if not (ROOT / path).exists()] == []


def test_each_file_is_run_where_its_libraries_are() -> None:
    lost = {
        file: needs(file)
        for file in FILES
        if file not in BY_HAND
        and not any(runs(target, file) and needs(file) <= installed(target) for target in TARGETS)
    }
    assert lost == {}, "no target runs these files with these packages"
    assert all(needs(file) for file in BY_HAND)


def test_what_a_marker_leaves_out_another_target_chooses() -> None:
    (left_out,) = set(re.findall(r'-m "([\w ]*)"', said("test")))
    markers = re.findall(r"not (\w+)", left_out)
    assert markers
    for marker in markers:
        chosen = [
            target for target in TARGETS if re.search(rf'-m "?{marker}\b', said(target)) and runs(target, FILES[0])
        ]
        assert chosen and f" {chosen[0]}" in re.findall(r"(?m)^nightly:\n\t(.*)$", (ROOT / "Makefile").read_text())[0]


def test_what_ci_leaves_to_the_compiled_core_is_what_that_runs() -> None:
    script = (ROOT / "scripts" / "dev" / "compiled_tests.py").read_text(encoding="utf-8")
    assert "compiled_tests.py --ignore" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    tests = re.findall(r'(?m)^    "(tests/\S+)",$', script)
    assert tests and all((ROOT / path).exists() for path in tests)
