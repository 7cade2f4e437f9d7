"""What the bus knows of one client, and by what name the client's requests go."""

from __future__ import annotations

import os
from typing import Any, Dict

from edgeserve.ipc.connections import Connection
from edgeserve.ipc.credentials import NOBODY, Credential
from edgeserve.ipc.forms import FIRST_LEARN_AFTER, LEARN_AFTER, Form
from edgeserve.ipc.unread import Unread
from edgeserve.ipc.wire import Ask, Key

NAME_MARK = " #"
"""In the name of a request's client: before it whose connection it is, which is what shares go by, behind it which."""

OWNER_MARK = "@"
"""Before it what the client calls itself, for its weight; behind it whose connection it is."""


class Peer:
    """What is known of one connection. ``open`` holds its requests and control questions in flight, ``bytes`` what
    their messages have together. ``owner`` is whose it is (:class:`Connection`), ``name`` what its requests carry as
    their client. ``key`` is its public key, where keys are allowed. ``patient``: one request came from a REQ socket,
    which cannot send heartbeats while it waits. ``memory``: what its connection shares with this process."""

    __slots__ = (
        "client",
        "name",
        "open",
        "seen_ns",
        "file",
        "same_host",
        "patient",
        "credential",
        "owner",
        "uid",
        "bytes",
        "unread",
        "key",
        "memory",
        "form",
        "unformed",
    )

    def __init__(self, client: bytes, connection: Connection | None, credential: Credential = NOBODY) -> None:
        self.client = client
        self.credential = credential
        self.open: Dict[Key, Any] = {}  # Ask, or Control of the bus
        self.seen_ns = 0
        self.file = None if connection is None else connection.file
        self.same_host = connection is None or connection.same_host
        self.owner = "inproc" if connection is None else connection.owner
        self.uid = os.getuid() if connection is None else connection.uid
        self.name = f"{self.owner}{NAME_MARK}{client.hex()}"
        self.patient = False
        self.bytes = 0
        self.unread = Unread()
        self.key = ""
        self.memory = None if connection is None else connection.memory
        self.form: Form | None = None
        self.unformed = LEARN_AFTER - FIRST_LEARN_AFTER


def name_for(peer: Peer, ask: Ask) -> str:
    """Whose request it is where a front asks for others. Only who may control the server is believed."""
    if not peer.credential.may_control:
        ask.origin = ""
        return peer.name
    return f"{ask.origin}{OWNER_MARK}{peer.owner}{NAME_MARK}{peer.client.hex()}"
