"""Regions of shared memory: who may register what, and what a client's mistakes lead to."""

from __future__ import annotations

import os

import pytest

from edgeserve.errors import BadInput
from edgeserve.http.failures import NotServed
from edgeserve.http.shared_memory import REGIONS_MAX, Regions


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "in").write_bytes(bytes(range(64)))
    return tmp_path / "shm"


@pytest.fixture
def regions(folder):
    table = Regions(str(folder))
    yield table
    table.unregister()


def test_a_region_is_read_and_written_in_its_own_part_of_the_file(regions, folder):
    regions.register("r", "/in", 16, 32)
    assert regions.read("r", 4, 3) == bytes([20, 21, 22])
    regions.write("r", 0, 8, b"xyz")
    assert (folder / "in").read_bytes() == bytes(range(16)) + b"xyz" + bytes(range(19, 64))
    assert regions.table() == [{"name": "r", "key": "/in", "offset": 16, "byte_size": 32}] == regions.table("r")


@pytest.mark.parametrize(("offset", "size"), [(0, 33), (30, 3), (-1, 4), (0, -1), (0, True), ("0", 4)])
def test_beyond_the_region_nothing_is_read_or_written(regions, folder, offset, size):
    regions.register("r", "/in", 16, 32)
    before = (folder / "in").read_bytes()
    with pytest.raises(BadInput):
        regions.read("r", offset, size)
    with pytest.raises(BadInput):
        regions.write("r", offset, size, b"")
    with pytest.raises(BadInput, match="the output has 5 bytes"):
        regions.write("r", 0, 4, b"12345")
    assert (folder / "in").read_bytes() == before


@pytest.mark.parametrize(
    "key", ["/../secret", "../secret", "/a/b", "", "/", "..", "/..", "a b", 7, None, "x" * 300, "/in\0"]
)
def test_a_key_is_a_plain_name(regions, folder, key):
    (folder.parent / "secret").write_bytes(bytes(64))
    with pytest.raises(BadInput, match="key"):
        regions.register("r", key, 0, 8)


def test_links_folders_pipes_and_missing_files_are_refused(regions, folder):
    (folder.parent / "secret").write_bytes(bytes(64))
    os.symlink(folder.parent / "secret", folder / "link")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for key in ("/link", "/folder", "/pipe", "/none"):
        with pytest.raises(BadInput, match="key"):
            regions.register("r", key, 0, 8)
    assert regions.table() == []


def test_a_file_of_another_user_is_refused(regions, monkeypatch):
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(BadInput, match="not a file of this front's user"):
        regions.register("r", "/in", 0, 8)


def test_a_file_that_shrinks_is_an_error_and_not_the_end(regions, folder):
    regions.register("r", "/in", 0, 64)
    os.truncate(folder / "in", 10)
    with pytest.raises(BadInput, match="made smaller"):
        regions.read("r", 0, 64)
    with pytest.raises(BadInput, match="made smaller"):
        regions.write("r", 0, 64, b"12345678")
    assert (folder / "in").stat().st_size == 10


def test_names_are_used_once_and_bounded(regions):
    regions.register("r", "/in", 0, 8)
    with pytest.raises(BadInput, match="registered already"):
        regions.register("r", "/in", 0, 8)
    regions.unregister("r")
    regions.unregister("r")
    for index in range(REGIONS_MAX):
        regions.register(f"r{index}", "/in", 0, 8)
    with pytest.raises(BadInput, match="most there may be"):
        regions.register("r", "/in", 0, 8)
    with pytest.raises(BadInput, match="no shared memory region"):
        regions.read("r", 0, 8)
    regions.unregister()
    assert regions.table() == []


@pytest.mark.parametrize(("offset", "size"), [(60, 8), (0, 65), (0, 0), (-1, 8), (0, "8"), (None, 8)])
def test_sizes_must_fit_the_file(regions, offset, size):
    with pytest.raises(BadInput):
        regions.register("r", "/in", offset, size)


def test_it_can_be_off():
    off = Regions(None)
    for ask in (lambda: off.register("r", "/in", 0, 8), lambda: off.read("r", 0, 8), lambda: off.write("r", 0, 8, b"")):
        with pytest.raises(NotServed, match="--shared-memory"):
            ask()
    assert off.table() == []
