"""Many addresses are one user where they are one user's, and no user pays for a neighbour at the same address."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import subprocess
import sys
from typing import Any, Iterator, List

import bus_server
import numpy as np
import pytest
import zmtp
from bus_server import BusServer
from http_front import FrontThread

from edgeserve.client import Client
from edgeserve.front.origins import user_at
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.ipc.bus import SURPLUS_FRAMES_MAX, Ask
from edgeserve.ipc.other_end import LOOPBACK, address_owner, owner_of

IMPORTS = os.pathsep.join([os.path.dirname(bus_server.__file__), *sys.path])
OWN = f"uid:{os.getuid()}"
X = {"x": np.arange(6, dtype=np.float32)}
NOBODY = 65534

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells whose a socket is")


@pytest.fixture
def server() -> Iterator[BusServer]:
    with BusServer("tcp://127.0.0.1:*") as running:
        yield running


# --- whose connection it is -------------------------------------------------------------------------------------------

WAYS = {
    "127.0.0.1": (socket.AF_INET, "127.0.0.1", "", "127.0.0.1"),
    "127.0.0.7": (socket.AF_INET, "127.0.0.1", "127.0.0.7", "127.0.0.1"),
    "to 127.0.0.9": (socket.AF_INET, "0.0.0.0", "127.0.0.8", "127.0.0.9"),
    "::1": (socket.AF_INET6, "::1", "", "::1"),
    "mapped": (socket.AF_INET6, "::", "", "127.0.0.1"),
    "mapped twice": (socket.AF_INET6, "::", "", "::ffff:127.0.0.1"),
}


def pair(family: int, listen: str, source: str, target: str) -> List[socket.socket]:
    """The accepted end, the other, and the listener."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind((listen, 0))
    listener.listen()
    other = socket.create_connection(
        (target, listener.getsockname()[1]), source_address=(source, 0) if source else None
    )
    return [listener.accept()[0], other, listener]


@pytest.mark.parametrize("way", WAYS)
def test_a_process_of_this_machine_is_its_user_over_any_address(way: str) -> None:
    try:
        accepted, other, listener = pair(*WAYS[way])
    except OSError as error:
        pytest.skip(f"no such address here: {error}")
    with listener, accepted:
        with other:
            assert owner_of(accepted) == f"{OWN}/pid:0"
            assert owner_of(other) == f"{OWN}/pid:0"
        assert owner_of(accepted) == LOOPBACK  # a process that is gone has no user, least of all root


def test_a_unix_socket_tells_the_process() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert owner_of(ours) == f"{OWN}/pid:{os.getpid()}"


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("192.0.2.7", "address:192.0.2.7"),
        ("::ffff:192.0.2.7", "address:192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "address:2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::1", "address:2001:db8:1:2::"),
        ("fe80::1%eth0", "address:fe80::"),
        ("127.0.0.1", LOOPBACK),
        ("127.77.1.2", LOOPBACK),
        ("::1", LOOPBACK),
        ("::ffff:127.0.0.9", LOOPBACK),
        ("nowhere", "address:unknown"),
    ],
)
def test_an_address_without_a_socket_here_is_its_network(address: str, owner: str) -> None:
    assert address_owner(address) == owner


AS_NOBODY = """
import os, socket, sys
"".encode("idna")  # imported while this user may read the library
os.setuid(int(sys.argv[2]))
one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
one.recv(1)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_another_user_over_the_same_address() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(20)
        port = str(listener.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", AS_NOBODY, port, str(NOBODY)]) as other:
            accepted, _ = listener.accept()
            with accepted:
                assert owner_of(accepted) == f"uid:{NOBODY}/pid:0"
            other.wait(20)


# --- the bus ----------------------------------------------------------------------------------------------------------


def owners(server: BusServer) -> List[str]:
    return sorted({ask.client.partition(" #")[0] for ask in server.news if isinstance(ask, Ask)})


def test_all_addresses_of_loopback_have_one_share(server: BusServer) -> None:
    ones = [zmtp.connect(server.endpoint, source=f"127.0.0.{number}") for number in range(2, 26)]
    for one in ones:
        one.sendall(zmtp.message([zmtp.header(kind="infer", app="echo", id=1)]))
        assert one.recv(1 << 16)
        one.close()
    assert owners(server) == [f"{OWN}/pid:0"]


FRAMES = """
import sys, time, zmtp
one = zmtp.connect(sys.argv[1], source="127.0.0.5")
one.sendall(zmtp.message([zmtp.header(kind="infer", app="echo", id=1)] + [b""] * int(sys.argv[2])))
if sys.argv[3] == "goes":
    one.close()
    sys.exit()
def is_ended(connection):
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True
is_ended(one)
try:
    print("kept out" if is_ended(zmtp.connect(sys.argv[1])) else "")
except ConnectionError:
    print("kept out")
"""


@pytest.mark.parametrize("way", ["stays", "goes"])
def test_a_message_of_many_frames_over_tcp_locks_out_its_process_alone(server: BusServer, way: str) -> None:
    with Client(server.endpoint, timeout_ms=20_000) as healthy:
        pending = healthy.submit("sleep", X)
        command = [sys.executable, "-c", FRAMES, server.endpoint, str(2 * SURPLUS_FRAMES_MAX), way]
        attacker = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": IMPORTS}, stdout=subprocess.PIPE, text=True
        )
        while attacker.poll() is None:
            assert (healthy.infer("echo", X)["x"] == X["x"]).all()
        assert attacker.communicate()[0] == ("kept out\n" if way == "stays" else "")
        with Client(server.endpoint, timeout_ms=20_000) as newcomer:
            assert (newcomer.infer("echo", X)["x"] == X["x"]).all()
        assert (healthy.infer("echo", X)["x"] == X["x"]).all() and not pending.done()


def test_who_is_kept_out_is_told_to_the_log(server: BusServer, caplog: Any) -> None:
    command = [sys.executable, "-c", FRAMES, server.endpoint, str(2 * SURPLUS_FRAMES_MAX), "stays"]
    attacker = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": IMPORTS}, stdout=subprocess.PIPE)
    attacker.communicate(timeout=60)
    assert f"{OWN}/pid:{attacker.pid} may not connect for" in caplog.text


# --- the fronts -------------------------------------------------------------------------------------------------------


def test_the_http_front_tells_users_apart_and_not_addresses(tmp_path: Any) -> None:
    with BusServer(f"ipc://{tmp_path}/bus") as bus, FrontThread(
        bus.endpoint, HttpConfig(listen="127.0.0.1:0")
    ) as front:
        host, _, port = front.http.rpartition(":")
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            connection = http.client.HTTPConnection(host, int(port), timeout=20, source_address=(source, 0))
            connection.request("POST", "/v2/models/echo/infer", b'{"inputs": []}')
            connection.getresponse().read()
            connection.close()
        bus.seen(Ask)
        assert {ask.origin for ask in bus.news if isinstance(ask, Ask)} == {OWN}


def test_what_a_front_accepts_has_its_user() -> None:
    async def run() -> List[str]:
        seen: List[str] = []

        async def accept(reader: Any, writer: Any) -> None:
            seen.append(user_at(writer))
            writer.close()

        listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        for source in ("127.0.0.1", "127.0.0.9"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            await reader.read()
            writer.close()
        listener.close()
        return seen

    assert asyncio.run(run()) == [OWN, OWN]


def test_the_grpc_front_tells_users_apart_and_not_addresses(tmp_path: Any) -> None:
    grpc = pytest.importorskip("grpc", reason="the front over gRPC needs grpc")
    from edgeserve.fronts.http.grpc_messages import KINDS, SERVICE

    with BusServer(f"ipc://{tmp_path}/bus") as bus, FrontThread(
        bus.endpoint, HttpConfig(listen="127.0.0.1:0", grpc="127.0.0.1:0")
    ) as front:
        for _ in range(2):
            with grpc.insecure_channel(front.grpc) as channel:
                ask = KINDS["ModelInferRequest"](model_name="echo").SerializeToString()
                channel.unary_unary(f"/{SERVICE}/ModelInfer")(ask, timeout=20)
        assert {ask.origin for ask in bus.news if isinstance(ask, Ask)} == {OWN}
