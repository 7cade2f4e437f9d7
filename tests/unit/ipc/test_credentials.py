"""Whose a connection is, by what libzmq tells of its messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from edgeserve.commands.keys import make_keys
from edgeserve.ipc.credentials import AllowedKeys, Credential, Credentials
from edgeserve.ipc.endpoints import read_certificate

OWNER_UID, OTHER_UID = 1000, 1001
TCP = "192.0.2.7"

needs_curve = pytest.mark.skipif(not zmq.has("curve"), reason="this libzmq was built without CURVE")


class Frame:
    """A message of a connection with these properties."""

    def __init__(self, **properties: str) -> None:
        self._properties = {name.replace("_", "-"): value for name, value in properties.items()}

    def get(self, name: str) -> str:
        if name not in self._properties:
            raise zmq.ZMQError(22)
        return self._properties[name]


def ipc(uid: int, **properties: str) -> Frame:
    return Frame(Peer_Address=f":{uid}:{uid}:77", **properties)


def test_without_a_folder_of_keys_only_the_user_on_this_host_counts() -> None:
    credentials = Credentials(owner_uid=OWNER_UID)
    for frame, may_control in (
        (ipc(OWNER_UID), True),
        (ipc(0), True),
        (ipc(OTHER_UID), False),
        (Frame(), False),
        (Frame(Peer_Address=TCP), False),
        (Frame(Peer_Address=TCP, User_Id="k" * 40), False),
    ):
        assert credentials.of(frame, "connection 1", False) == Credential("connection 1", may_control)
    assert credentials.of(Frame(), "connection 1", True) == Credential("connection 1", True, True), "the program itself"


@needs_curve
def test_a_user_id_counts_on_tcp_alone(tmp_path: Path) -> None:
    public, _ = make_keys(str(tmp_path), "boss")
    key = read_certificate(public)[0].decode()
    credentials = Credentials(AllowedKeys(str(tmp_path), lambda: 0), ["boss"], owner_uid=OWNER_UID)
    assert credentials.of(Frame(Peer_Address=TCP, User_Id=key), "connection 1", False) == Credential(
        f"key {key}", True, True
    )
    for frame in (Frame(Peer_Address=TCP), Frame(), ipc(OTHER_UID, User_Id=key)):
        assert credentials.of(frame, "connection 1", False) == Credential("connection 1", False)
