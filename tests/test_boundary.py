"""The boundary of the core: the README's app imports little of the package, and runs without the optional folders."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Sequence

import pytest

ROOT = Path(__file__).resolve().parents[1]

LINES_MAX = 23_000
"""Lines of the package that the README's app may import, embedded."""

NOT_EMBEDDED = ("zmq", "msgpack", "msgspec")
"""Libraries of the bus, which an embedded app does not load."""

OPTIONAL = (
    "fronts",
    "front",
    "sim",
    "testing",
    "commands",
    "predict",
    "taps",
    "sched/published",
    "engines/cuda",
    "engines/lm",
    "engines/speech",
    "engines/tensorrt",
    "engines/torch",
)
"""Folders of the package that an app which does not use them runs without."""

COUNT = """
import sys
files = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "edgeserve"]
print("lines", sum(len(open(file, encoding="utf-8").readlines()) for file in files))
print("libraries", *[name for name in {libraries} if name in sys.modules])
"""

OVER_THE_BUS = """
import edgeserve
sections = dict(models={"sharpness": sharpness}, apps={"focus": "sharpness"}, server={"endpoint": "ipc://bus"})
with edgeserve.Runtime(serve=True, **sections), edgeserve.Client("ipc://bus") as bus:
    print(bus.infer("focus", {"image": image}, slo_ms=30_000)["score"])
"""


def readme_app() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- run: app\.py -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def run(program: str, package: Path, place: Path) -> str:
    (place / "app.py").write_text(program, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EDGESERVE", "OTEL"))}
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=place,
        env={**environment, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_app_imports_no_more_than_the_core(tmp_path: Path) -> None:
    printed = run(readme_app() + COUNT.replace("{libraries}", repr(NOT_EMBEDDED)), ROOT, tmp_path)
    answer, lines, libraries = printed.splitlines()
    assert answer == "1.0 in time"
    assert int(lines.split()[1]) <= LINES_MAX
    assert libraries.split() == ["libraries"]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as its wheel holds it, unpacked; where no wheel can be built, a copy."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    left_out = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "edgeserve", place / "edgeserve", ignore=left_out)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EDGESERVE_COMPILE")}
    build = [sys.executable, "setup.py", "--quiet", "bdist_wheel"]
    done = subprocess.run(build, cwd=place, env=environment, capture_output=True, text=True, timeout=100)
    if done.returncode:
        assert "setuptools" in done.stderr or "bdist_wheel" in done.stderr, done.stderr  # it is not installed
        return place
    (wheel,) = (place / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(place / "unpacked")
    return place / "unpacked"


@pytest.mark.parametrize("folders", [OPTIONAL, *[pytest.param([one], marks=pytest.mark.nightly) for one in OPTIONAL]])
def test_the_readme_app_is_served_without_folders(folders: Sequence[str], unpacked: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as back:
        for folder in folders:
            path, away = unpacked / "edgeserve" / folder, unpacked / folder.replace("/", "-")
            path.rename(away)
            back.callback(away.rename, path)
        printed = run(readme_app() + OVER_THE_BUS, unpacked, tmp_path)
    assert printed.splitlines() == ["1.0 in time", "1.0"]
