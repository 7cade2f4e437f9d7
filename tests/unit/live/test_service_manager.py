"""Messages to systemd: the datagrams of its notification protocol, and silence where the loop is stuck."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest

from edgeserve.live.service_manager import STATUS_S, Heartbeat, ServiceManager, status_of


class Listener:
    """A service manager's socket. ``heard`` takes every datagram that is there, as a dictionary each."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.socket.setblocking(False)

    def heard(self) -> List[Dict[str, str]]:
        found = []
        while True:
            try:
                text = self.socket.recv(4096).decode()
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in text.split("\n")))


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, folder: Path) -> Iterator[Listener]:
    address = str(folder / "notify") if request.param == "path" else f"@edgeserve-test-{os.getpid()}"
    found = Listener(address)
    yield found
    found.socket.close()


class Server:
    """A loop that answers when the test says so."""

    def __init__(self) -> None:
        self.mail: List[Callable[[Any], None]] = []
        self.blocked: List[str] = []
        self.table: Dict[str, Any] = {"stopping": False, "open": 0, "lanes": {"gpu0": "up", "cpu0": "up"}}

    def turn(self) -> None:
        mail, self.mail[:] = list(self.mail), ()
        for call in mail:
            call(self)

    def blocked_apps(self) -> List[str]:
        return self.blocked

    def health(self) -> Dict[str, Any]:
        return self.table


def test_the_life_of_a_server_as_its_service_manager_hears_it(listener: Listener) -> None:
    server = Server()
    heartbeat = Heartbeat(ServiceManager(listener.address, watchdog_ns=30_000_000_000), server.mail.append)
    heartbeat.manager.starting("loading 2 models")
    heartbeat.beat()
    heartbeat.manager.loading("model m is being loaded")  # and each such step may take so long
    extended = {"EXTEND_TIMEOUT_USEC": "900000000", "STATUS": "model m is being loaded"}
    assert listener.heard() == [{"STATUS": "loading 2 models"}, extended]  # not ready before the loop has turned
    server.turn()
    status = "2 of 2 lanes up; 0 open requests"
    assert listener.heard() == [{"READY": "1", "STATUS": status}, {"WATCHDOG": "1", "STATUS": status}]
    heartbeat.beat()
    server.turn()
    assert listener.heard() == [{"WATCHDOG": "1", "STATUS": status}]
    heartbeat.stopping()
    heartbeat.stopping()
    assert [message.get("STOPPING") for message in listener.heard()] == ["1"]
    heartbeat.manager.close()


def test_a_stuck_loop_is_silent_and_its_mailbox_does_not_grow(listener: Listener) -> None:
    server = Server()
    heartbeat = Heartbeat(ServiceManager(listener.address, watchdog_ns=1_000_000_000), server.mail.append)
    heartbeat.beat()
    server.turn()
    assert len(listener.heard()) == 2
    for _ in range(50):
        heartbeat.beat()
    assert listener.heard() == [] and len(server.mail) == 1
    server.turn()  # it moves again
    assert [message["WATCHDOG"] for message in listener.heard()] == ["1"]
    heartbeat.manager.close()


def test_ready_waits_until_every_app_could_run(listener: Listener) -> None:
    server = Server()
    server.blocked, server.table["lanes"]["gpu0"] = ["reader"], "down"
    heartbeat = Heartbeat(ServiceManager(listener.address), server.mail.append)
    for _ in range(2):
        heartbeat.beat()
        server.turn()
    told = listener.heard()
    assert [sorted(message) for message in told] == [["STATUS"]] * 2
    assert told[0]["STATUS"] == "no lane can run reader; 1 of 2 lanes up; 0 open requests"
    server.blocked = []
    heartbeat.beat()
    server.turn()
    assert [message.get("READY") for message in listener.heard()] == ["1", None]
    server.blocked = ["reader"]  # a lane that is lost later: alive, and the status says it
    heartbeat.beat()
    server.turn()
    assert listener.heard()[0]["STATUS"].startswith("no lane can run reader")
    heartbeat.manager.close()


def test_a_drain_that_a_client_asked_for_is_told_too(listener: Listener) -> None:
    server = Server()
    heartbeat = Heartbeat(ServiceManager(listener.address), server.mail.append)
    server.table["stopping"] = True
    heartbeat.beat()
    server.turn()
    assert listener.heard()[0] == {"STOPPING": "1", "STATUS": "finishing what was accepted"}
    heartbeat.manager.close()


def test_without_a_watchdog_nothing_but_the_status_is_renewed(listener: Listener) -> None:
    manager = ServiceManager(listener.address)
    manager.alive("2 of 2\nlanes up")
    assert listener.heard() == [{"STATUS": "2 of 2 lanes up"}]  # one line: a second one would be a second variable
    assert manager.interval_s == STATUS_S
    manager.close()


def test_the_environment_says_where_and_how_often_and_children_do_not_inherit_it(folder: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(folder / "n"), "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": "17", "HOME": "/"}
    manager = ServiceManager.from_environment(environ, 17)
    assert manager.listens and manager.watchdog_ns == 6_000_000_000 and manager.interval_s == 2.0
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    ("variables", "watchdog_ns"),
    [
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "18"}, 0),  # another process's watchdog
        ({"WATCHDOG_USEC": "soon"}, 0),
        ({"WATCHDOG_USEC": "-3"}, 0),
        ({}, 0),
        ({"WATCHDOG_USEC": "3000000"}, 3 * 10**9),
    ],
)
def test_a_watchdog_counts_only_where_it_is_this_processs(variables: Dict[str, str], watchdog_ns: int) -> None:
    assert ServiceManager.from_environment({"NOTIFY_SOCKET": "/n", **variables}, 17).watchdog_ns == watchdog_ns


def test_nobody_listens_without_an_address_or_with_a_strange_one(caplog: pytest.LogCaptureFixture) -> None:
    assert not ServiceManager.from_environment({"WATCHDOG_USEC": "3000000"}, 17).listens
    assert not ServiceManager.from_environment({"NOTIFY_SOCKET": "vsock:2:1234"}, 17).listens
    assert "vsock:2:1234" in caplog.text
    server = Server()
    heartbeat = Heartbeat(ServiceManager(), server.mail.append)
    heartbeat.beat()
    heartbeat.stopping()
    assert server.mail == []


def test_a_socket_that_is_gone_is_said_once_and_costs_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    manager = ServiceManager(str(folder / "gone"), watchdog_ns=1)
    for _ in range(3):
        manager.alive("up")
    assert caplog.text.count("NOTIFY_SOCKET") == 1
    manager.close()


def test_a_full_socket_never_blocks_the_loop(folder: Path) -> None:
    listener = Listener(str(folder / "full"))
    manager = ServiceManager(listener.address, watchdog_ns=1)
    for _ in range(5000):  # far beyond what the kernel queues for a socket without a reader
        manager.alive("up")
    assert listener.heard()
    manager.close()
    listener.socket.close()


def test_the_status_names_what_is_wrong_first() -> None:
    health = {"stopping": True, "open": 1, "lanes": {"a": "hangs", "b": "up"}}
    assert status_of(health, ["x", "y"]) == "no lane can run x, y; stopping; 1 of 2 lanes up; 1 open request"
