"""The address at which the bus will listen: a directory that others cannot get at, keys for other machines. A server
that listens there already is asked what it serves."""

from __future__ import annotations

import os
import stat
from typing import Collection, List, Optional

from edgeserve.client import Client
from edgeserve.commands.doctor.finding import GOOD, WRONG, Finding, good, note, wrong
from edgeserve.errors import ConfigError, RequestError
from edgeserve.ipc.endpoints import check_endpoint, default_endpoint, look_for_server, split_endpoint

ASK_MS = 1000.0
"""A server that decides between two batches answers in milliseconds."""


def check_bus(endpoint: str, user: int, key_file: str = "", apps: Collection[str] = ()) -> List[Finding]:
    """The server's conditions on its endpoint: an ``ipc`` path's directory that others cannot get at, keys for ``tcp``
    beyond this machine. ``apps``: of the configuration that it is for, none where there is none. That they are served
    there already is no fault."""
    try:
        transport, path = split_endpoint(endpoint)
        if transport != "ipc":
            check_endpoint(endpoint, key_file)
        elif os.path.lexists(path):
            look_for_server(endpoint, path)
    except ConfigError as error:
        is_taken = "listens there already" in str(error)
        running = _running_server(endpoint, apps) if is_taken and not key_file else None
        mend = "see what listens there, which did not say what it serves; if it is the server of this file, all is well"
        if not is_taken:
            mend = "correct [server] endpoint or curve_secret_key_file"
        return [running or Finding("bus", WRONG, str(error), mend)]
    if transport != "ipc":
        return good("bus", endpoint)
    directory = os.path.dirname(path) or "."
    try:
        about = os.stat(directory)
    except FileNotFoundError:
        return [_bus_parent(directory)]
    except OSError as error:
        return wrong("bus", f"{directory}: {error.strerror}", "set another [server] endpoint = 'ipc:///...'")
    mode = stat.S_IMODE(about.st_mode)
    if not stat.S_ISDIR(about.st_mode):
        return wrong("bus", f"{directory} is no directory", f"rm {directory}")
    if about.st_uid not in ((user,) if endpoint == default_endpoint() else (user, 0)):
        return wrong(
            "bus", f"{directory} belongs to user {about.st_uid}, this is user {user}", f"sudo chown {user} {directory}"
        )
    replaceable = mode & 0o022 and not mode & stat.S_ISVTX
    if replaceable or (mode & 0o077 and endpoint == default_endpoint()):
        return wrong(
            "bus", f"{directory} has mode {mode:04o}: others could reach or replace the bus", f"chmod 700 {directory}"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        return wrong("bus", f"this user may not write into {directory}", "set another [server] endpoint = 'ipc:///...'")
    if mode & 0o077:
        return note(
            "bus",
            f"{directory} has mode {mode:04o}: other users can see the bus",
            f"chmod 700 {directory}, or set another [server] endpoint",
        )
    return good("bus", f"{endpoint} (mode {mode:04o})")


def _running_server(endpoint: str, apps: Collection[str]) -> Optional[Finding]:
    """The server that listens at an endpoint; ``None`` where none answers."""
    try:
        with Client(endpoint, timeout_ms=ASK_MS) as client:
            pid, served = client.health()["pid"], sorted(client.apps())
    except (RequestError, ConfigError, KeyError):
        return None
    what = f"{endpoint}: process {pid} serves {', '.join(served)} there"
    if not apps or sorted(apps) == served:
        return Finding("bus", GOOD, f"{what}; 'edgeserve top' shows it")
    return Finding(
        "bus",
        WRONG,
        f"{what}, this configuration has {', '.join(sorted(apps))}",
        "stop that server, have it read this file (edgeserve reload), or give another [server] endpoint",
    )


def _bus_parent(directory: str) -> Finding:
    """The directory will be made when serving starts: can it?"""
    parent = directory
    while parent and not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    if os.access(parent or "/", os.W_OK | os.X_OK):
        return Finding("bus", GOOD, f"{directory} will be made with mode 0700")
    return Finding(
        "bus",
        WRONG,
        f"{directory} cannot be made: {parent} is not writable",
        f"mkdir -p -m 700 {directory} (as a user who may), or set [server] endpoint",
    )
