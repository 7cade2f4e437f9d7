"""The users that may open the bus's socket, and the message for others."""

from __future__ import annotations

import os
import socket

import pytest

from edgeserve.ipc import endpoints


@pytest.mark.parametrize(
    ("directory", "mode"), [(0o700, 0o600), (0o750, 0o660), (0o755, 0o600), (0o770, 0o660), (0o1777, 0o600)]
)
def test_the_group_may_ask_where_the_directory_is_for_the_group_alone(tmp_path, directory, mode):
    place = tmp_path / "run"
    place.mkdir()
    os.chmod(place, directory)
    assert endpoints.socket_mode(str(place / "bus")) == mode


def test_a_socket_of_another_user_is_not_an_absent_server(tmp_path, monkeypatch):
    assert endpoints.why_nobody_answers(f"ipc://{tmp_path}/bus") == "no server listens there"
    assert endpoints.why_nobody_answers("tcp://127.0.0.1:5999") == "no server listens there"

    def refuse(self, address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(endpoints.socket, "socket", type("Locked", (socket.socket,), {"connect": refuse}))
    said = endpoints.why_nobody_answers(f"ipc://{tmp_path}/bus")
    assert said.startswith(f"permission denied: user id {os.geteuid()}")
