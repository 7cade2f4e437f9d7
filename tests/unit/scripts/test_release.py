"""The contents of a release: the wheel's files, its metadata, and the one version."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys

import pytest
from dev import release

PACKAGE = ["edgeserve/__init__.py", "edgeserve/py.typed", "edgeserve/predict/lexicon.csv"]
INFO = "edgeserve_runtime-1.2.dist-info/"
METADATA = (
    "Name: edgeserve-runtime\nVersion: 1.2\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\nText"
)


def problems(names=(), metadata=METADATA):
    packed = [*(names or PACKAGE), INFO + "METADATA", INFO + "licenses/LICENSE"]
    return release.wheel_problems(packed, PACKAGE, metadata, "1.2")


def test_a_whole_wheel_has_no_problem():
    assert problems() == []


def test_a_missing_data_file_and_a_packed_test_are_named():
    (missing,) = problems([name for name in PACKAGE if not name.endswith(".csv")])
    assert "lexicon.csv is missing" in missing and "package-data" in missing
    assert problems([*PACKAGE, "tests/test_docs.py"]) == ["tests/test_docs.py does not belong into the wheel"]


def test_wrong_metadata_is_named():
    assert problems(metadata=METADATA.replace("1.2", "1.1")) == ["metadata: Version is '1.1', expected '1.2'"]


def test_the_newest_heading_of_the_changelog_and_the_node_package_have_the_version():
    changes, node = "# Changes\n\n## 1.2, unreleased\n\n## 1.1, 2026\n", '{"version": "1.2"}'
    assert release.changelog_problems(changes, "1.2", node) == []
    assert len(release.changelog_problems(changes, "1.3", node)) == 2
    (said,) = release.changelog_problems(changes, "1.2", node, "v1.2")
    assert "a release has its date" in said
    dated = changes.replace("unreleased", "2026-11-30")
    assert release.changelog_problems(dated, "1.2", node, "v1.2") == []
    assert "tagged v1.3" in release.changelog_problems(dated, "1.2", node, "v1.3")[0]
    texts = [
        (release.ROOT / name).read_text(encoding="utf-8")
        for name in ("CHANGELOG.md", "edgeserve/__init__.py", "clients/node/package.json", "pyproject.toml")
    ]
    assert release.changelog_problems(texts[0], release.version_in(texts[1]), texts[2]) == []
    assert not re.search(r'(?m)^version = "', texts[3]), "the version stands in edgeserve/__init__.py alone"


def test_the_wheel_of_these_sources_holds_every_file_of_the_package_and_nothing_else(tmp_path):
    setuptools = pytest.importorskip("setuptools", minversion="70.1", reason="the extra test brings setuptools 70.1")
    assert setuptools.__version__
    sources = tmp_path / "sources"
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        os.makedirs(sources, exist_ok=True)
        shutil.copy(release.ROOT / name, sources)
    shutil.copytree(
        release.ROOT / "edgeserve", sources / "edgeserve", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    (sources / "tests").mkdir()
    (sources / "tests" / "test_nothing.py").write_text("")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EDGESERVE_COMPILE")}
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "bdist_wheel"],
        cwd=sources,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (sources / "dist").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert release.look_into_wheel(str(wheel), release.ROOT) == []


def test_what_an_earlier_release_left_is_not_published_and_other_files_stay(tmp_path, monkeypatch):
    for name in ("edgeserve_runtime-1.2-cp39-cp39-old.whl", "SHA256SUMS", "notes.txt"):
        (tmp_path / name).write_text("old")
    monkeypatch.setattr(release, "environment_of", lambda *_: "twine")
    monkeypatch.setattr(release, "rehearse", lambda uploader, pythons, files, *_: files)
    out = release.cleared(str(tmp_path))
    (tmp_path / "edgeserve_runtime-1.2.tar.gz").write_text("new")
    (said,) = release.publish({"3.13": "python"}, "1.2", out)
    assert said.endswith("edgeserve_runtime-1.2.tar.gz")
    assert "old" not in (tmp_path / "SHA256SUMS").read_text() and (tmp_path / "notes.txt").exists()


def test_the_workflow_keeps_each_file_of_a_release_once():
    text = (release.ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    kept = []
    for arch, pattern in re.findall(r"arch: (\w+)\n +keep: (\S+)", text):
        built = ["edgeserve_runtime-1.2.tar.gz", "edgeserve_runtime-1.2-py3-none-any.whl"]
        built += [f"edgeserve_runtime-1.2-cp313-cp313-manylinux_2_28_{arch}.whl"]
        kept += [name for name in built if fnmatch.fnmatch(f"dist/{name}", pattern)]
    assert len(kept) == len(set(kept)) == 2 + len(release.MACHINES)
    assert "path: ${{ matrix.keep }}" in text
