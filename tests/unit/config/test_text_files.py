"""Files: written whole or not at all, and read as editors write them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import stat
import threading

import pytest

from edgeserve import cli
from edgeserve.config.loading import load_config
from edgeserve.config.text_files import read_json, write_file
from edgeserve.config.toml_files import read_toml
from edgeserve.errors import ConfigError
from edgeserve.front.origins import read_tokens
from edgeserve.predict.length import packaged
from edgeserve.taps.timeline import timeline_of

CONFIG = '[lane.cpu0]\n[model.m]\nengine = "synthetic"\nexpected = {1 = "1ms"}\n[app.m]\nmodel = "m"  # ö\n'


@contextlib.contextmanager
def full_disk():
    """No file may have more than a few bytes: what a process finds on a full disk, and without being root."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- written ----------------------------------------------------------------------------------------------------------


def command(*words):
    def command():
        return cli.main(list(words))

    return command


def init(path):
    pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
    pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
    import onnx_models

    beside = os.path.dirname(os.path.dirname(path))
    model = os.path.join(beside, onnx_models.linear(beside))
    return command("init", "--here", model, "--out", path, "--force", "--cpu")


WRITERS = {
    "init": init,
    "a pair of keys": lambda path: command("init", "--keys", "server", "--out", os.path.dirname(path)),
    "what doctor collects": lambda path: command("doctor", "--collect", path + ".new"),
    "a timeline": lambda path: lambda: timeline_of([]).write(path),
    "a fitted model": lambda path: lambda: packaged().save(path),
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_leaves_what_was_there_and_nothing_else(what, tmp_path, capsys):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "file").write_text("what was there")
    run = WRITERS[what](str(folder / "file"))
    with full_disk(), contextlib.ExitStack() as stack:
        if run.__name__ != "command":
            stack.enter_context(pytest.raises(ConfigError, match="cannot be written"))
        assert run() == 2
    assert run.__name__ != "command" or "cannot be written" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert (folder / "file").read_text() == "what was there"
    assert run() in (0, None), "and with room it is written"


def test_a_link_is_followed_and_a_file_keeps_its_mode(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_file(str(tmp_path / "link"), "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640


def test_what_is_no_file_is_written_to_as_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    write_file(str(tmp_path / "pipe"), "through")
    reader.join(10)
    assert read == [b"through"] and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    write_file("/dev/null", "nothing")
    assert os.path.exists("/dev/null") and not os.path.isfile("/dev/null")


@pytest.mark.parametrize("path", ["absent/out.json", "."])
def test_where_nothing_can_be_written_the_path_is_named(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_file(path, "text")
    assert list(tmp_path.iterdir()) == []


# --- read -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        CONFIG.encode("utf-8-sig"),
        CONFIG.replace("\n", "\r\n").encode(),
        CONFIG.replace("\n", "\r\n").encode("utf-8-sig"),
    ],
)
def test_what_editors_of_other_systems_write_is_read(text, tmp_path):
    (tmp_path / "edge.toml").write_bytes(text)
    assert list(load_config(str(tmp_path / "edge.toml")).apps) == ["m"]
    (tmp_path / "table.json").write_bytes(b"\xef\xbb\xbf" + json.dumps([1]).encode())
    assert read_json(str(tmp_path / "table.json")) == [1]
    (tmp_path / "tokens").write_bytes(b"\xef\xbb\xbfcamera 0123456789abcdef0123456789abcdef\r\n")
    assert read_tokens(str(tmp_path / "tokens")).name_of("Bearer 0123456789abcdef0123456789abcdef") == "camera"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CONFIG.encode("utf-16"), "UTF-16"),
        (CONFIG.encode("utf-16-le"), "UTF-16"),
        (CONFIG.encode("utf-16-be"), "UTF-16"),
        (CONFIG.encode("utf-32"), "UTF-32"),
        (CONFIG.encode("latin-1"), "line 6 holds the byte 0xf6, which is no UTF-8"),
        (CONFIG.replace("\n", "\r").encode(), "carriage return"),
    ],
)
def test_another_encoding_is_named(text, said, tmp_path):
    (tmp_path / "edge.toml").write_bytes(text)
    with pytest.raises(ConfigError, match=f"edge.toml: is not TOML.*{said}"):
        read_toml(str(tmp_path / "edge.toml"))
