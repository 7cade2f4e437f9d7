"""Another user makes the place of a user's own server, and waits for its clients there."""

from __future__ import annotations

import contextlib
import os
import tempfile

import pytest

from edgeserve.client import Client
from edgeserve.commands.doctor.bus import check_bus
from edgeserve.commands.doctor.finding import WRONG
from edgeserve.commands.init import model_files
from edgeserve.config.machine_costs import find_machine
from edgeserve.engines.describe import check_file
from edgeserve.errors import ConfigError, EngineError, ProfileError
from edgeserve.ipc.endpoints import check_server_place, default_endpoint, prepare_endpoint


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The directory of the default endpoint; it is missing."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return os.path.dirname(default_endpoint()[len("ipc://") :])


def give_away(path, monkeypatch):
    """Another user's, as far as this process can tell."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)


@pytest.mark.parametrize("what", ["directory", "link", "socket"])
def test_a_client_does_not_connect_where_another_user_made_the_place(place, tmp_path, monkeypatch, what):
    if what == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        os.symlink(tmp_path / "elsewhere", place)
    else:
        os.mkdir(place, 0o700)
    path = os.path.join(place, "bus") if what == "socket" else place
    if what == "socket":
        os.mknod(path, 0o600)
    check_server_place(default_endpoint())
    give_away(path, monkeypatch)
    with pytest.raises(ConfigError, match="pose as the server"):
        Client()


def test_a_client_does_not_connect_where_others_may_write(place):
    os.mkdir(place)
    os.chmod(place, 0o777)
    with pytest.raises(ConfigError, match="chmod 700"):
        Client()


def test_a_client_that_comes_first_makes_the_place(place):
    with Client():
        assert os.stat(place).st_mode & 0o777 == 0o700


@contextlib.contextmanager
def as_another_user():
    """As root: a user who may read nothing that is closed."""
    before = os.getresuid()
    if before[0] == 0:
        os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(*before)


def test_what_this_user_may_not_read_or_write_is_a_sentence(folder):
    file, closed = os.path.join(folder, "m.onnx"), os.path.join(folder, "closed")
    with open(file, "wb") as model:
        model.write(b"model")
    os.mkdir(closed)
    os.chmod(file, 0)
    os.chmod(closed, 0o700 if os.geteuid() == 0 else 0)
    os.chmod(folder, 0o755)
    with as_another_user():
        with pytest.raises(ConfigError, match=r"closed: this folder cannot be read \(Permission denied\)"):
            model_files([closed])
        with pytest.raises(EngineError, match=r"m.onnx cannot be read \(Permission denied\)"):
            check_file(file)
        with pytest.raises(ProfileError, match=r"closed: cannot be read \(Permission denied\)"):
            find_machine(closed, elsewhere=True)
    os.chmod(closed, 0o700)
    endpoint = f"ipc://{closed}/bus"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)  # the folder is this user's, or root's
        with pytest.raises(ConfigError, match="this user may not write into"):
            prepare_endpoint(endpoint, False)
        assert [finding.status for finding in check_bus(endpoint, os.getuid())] == [WRONG]
