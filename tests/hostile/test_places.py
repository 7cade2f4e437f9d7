"""Another user makes the place of a user's own server, and waits for its clients there."""

from __future__ import annotations

import os
import tempfile

import pytest

from edgeserve.client import Client
from edgeserve.errors import ConfigError
from edgeserve.ipc.endpoints import check_server_place, default_endpoint


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
