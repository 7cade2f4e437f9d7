"""Attacks on the bus over real sockets: frames, bytes, names and connections, with a healthy client beside them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Iterator, List

import bus_server
import numpy as np
import pytest
import zmq
import zmtp
from bus_server import BusServer, bus_of, dealer, header, reply_to

from edgeserve.client import Client
from edgeserve.errors import Rejected
from edgeserve.ipc import bus as bus_module
from edgeserve.ipc import connections, endpoints, flood, guard, memory, wire
from edgeserve.ipc.bus import SURPLUS_FRAMES_MAX, Ask, Bus, ClientLost
from edgeserve.ipc.client_registry import DEAD_NS
from edgeserve.owners import process_owner, user_of

IMPORTS = os.pathsep.join([os.path.dirname(bus_server.__file__), *sys.path])
"""Folders from which a server in another process imports."""

X = {"x": np.arange(6, dtype=np.float32)}
INFER = {"kind": "infer", "app": "echo"}


@pytest.fixture
def server(tmp_path: Any) -> Iterator[BusServer]:
    with BusServer(f"ipc://{tmp_path}/bus") as running:
        yield running


# --- frames -----------------------------------------------------------------------------------------------------------


def test_a_message_with_some_frames_too_many_is_refused_alone(server: BusServer, context: Any) -> None:
    one = dealer(context, server.endpoint)
    one.send_multipart([header(**INFER, id=1)] + [b""] * (SURPLUS_FRAMES_MAX // 2))
    error = reply_to(one).error
    assert (error.code, "more than 64 frames" in str(error)) == ("too_large", True)
    one.send(header(**INFER, id=2))
    assert reply_to(one).outcome == "completed"


MANY_FRAMES = """
import sys, zmtp
def read_to_end(one):
    try:
        while one.recv(1 << 16):
            pass
    except ConnectionError:
        pass
calm, attacker = zmtp.connect(sys.argv[1]), zmtp.connect(sys.argv[1])
calm.sendall(zmtp.message([zmtp.header(kind="infer", app="sleep", id=1)]))
attacker.sendall(zmtp.message([zmtp.header(kind="infer", app="echo", id=1)] + [b""] * int(sys.argv[2])))
read_to_end(attacker)
read_to_end(calm)
try:
    read_to_end(zmtp.connect(sys.argv[1]))
except ConnectionError:
    pass
print("closed")
"""


def test_a_message_of_many_frames_holds_nobody_up(server: BusServer) -> None:
    with Client(server.endpoint, timeout_ms=20_000) as healthy:
        pending = healthy.submit("sleep", X)
        attacker = subprocess.Popen(
            [sys.executable, "-c", MANY_FRAMES, server.endpoint, str(2 * SURPLUS_FRAMES_MAX)],
            env={**os.environ, "PYTHONPATH": IMPORTS},
            stdout=subprocess.PIPE,
        )
        while attacker.poll() is None:
            assert (healthy.infer("echo", X)["x"] == X["x"]).all()
        assert attacker.communicate()[0] == b"closed\n", "neither its other connection nor a new one is served"
        assert not pending.done()


def test_a_new_process_of_another_user_is_no_way_out(server: BusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connections.offender("uid:4294967294/pid:7") == "uid:4294967294"
    assert connections.offender(process_owner(os.geteuid(), 7)) == process_owner(os.geteuid(), 7)
    assert connections.offender("address:192.0.2.7") == "address:192.0.2.7"
    monkeypatch.setattr(guard, "offender", user_of)  # as if this were another user than the server's
    with zmtp.connect(server.endpoint) as other:
        code = [sys.executable, "-c", MANY_FRAMES, server.endpoint, str(2 * SURPLUS_FRAMES_MAX)]
        subprocess.run(code, env={**os.environ, "PYTHONPATH": IMPORTS}, stdout=subprocess.DEVNULL, check=True)
        with contextlib.suppress(ConnectionError):
            while other.recv(1 << 16):
                pass


GONE_BEFORE_IT_IS_READ = """
import sys, zmtp
with zmtp.connect(sys.argv[1]) as one:
    one.sendall(zmtp.message([zmtp.header(kind="infer", app="echo", id=1)] + [b""] * int(sys.argv[2])))
print("sent", flush=True)
sys.stdin.readline()
try:
    zmtp.connect(sys.argv[1])
except ConnectionError:
    print("kept out")
"""


def test_who_is_gone_before_its_many_frames_are_read_is_kept_out_too(
    tmp_path: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "HANDSHAKE_MS", 300)
    bus = bus_of(f"ipc://{tmp_path}/bus", context=context)
    attacker = subprocess.Popen(
        [sys.executable, "-c", GONE_BEFORE_IT_IS_READ, bus.endpoints[0], str(2 * SURPLUS_FRAMES_MAX)],
        env={**os.environ, "PYTHONPATH": IMPORTS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with contextlib.closing(bus):
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"sent\n"
        time.sleep(0.3)  # until libzmq has noticed that it is gone
        while bus.socket.poll(200):
            bus.receive()
        assert attacker.communicate(b"\n")[0] == b"kept out\n"


def test_frames_are_dropped_a_slice_at_a_time(context: Any) -> None:
    bus = bus_of("inproc://slices", [0], client_silence_ns=10**9, context=context)
    one, other = (dealer(context, "inproc://slices") for _ in range(2))
    one.send_multipart([header(**INFER, id=1)] + [b""] * 20_000)
    calls, news = 1, bus.receive()
    other.send(header(**INFER, id=2))
    while len(news) < 1 and calls < 100:
        news += bus.receive()
        calls += 1
    assert 8 < calls < 20  # slices of about two thousand
    assert [ask.key for ask in news] == [2]
    bus.close()


# --- silence ----------------------------------------------------------------------------------------------------------


def test_the_servers_own_pause_is_no_clients_silence(context: Any) -> None:
    clock = [0]
    bus = bus_of("inproc://pause", clock, client_silence_ns=10**9, context=context)
    one = dealer(context, "inproc://pause")
    one.send(header(kind="infer", app="sleep", id=1))
    assert [type(news) for news in bus.receive()] == [Ask]
    clock[0] += 60 * 10**9  # as after a SIGSTOP
    assert bus.receive() == []
    for _ in range(4):  # it listens again, and the client says nothing
        clock[0] += 3 * 10**8
        found = bus.receive()
        if found:
            break
    assert [type(news) for news in found] == [ClientLost]
    bus.close()


def test_what_a_client_sent_counts_before_its_silence(context: Any) -> None:
    clock = [0]
    bus = bus_of("inproc://read-first", clock, client_silence_ns=10**9, context=context)
    one = dealer(context, "inproc://read-first")
    one.send(header(kind="infer", app="sleep", id=1))
    bus.receive()
    for _ in range(3):
        clock[0] += 4 * 10**8
        if clock[0] > 10**9:
            one.send(header(kind="beat"))  # it waits to be read when the silence would be over
        assert bus.receive() == []
    bus.close()


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_requests_in_flight_are_bounded_in_bytes(tmp_path: Any) -> None:
    bounds = {"client_bytes_max": 3 << 20, "pending_bytes_max": 4 << 20}
    with BusServer(f"ipc://{tmp_path}/bus", message_bytes_max=1 << 20, **bounds) as server:
        with Client(server.endpoint, timeout_ms=10_000) as one, Client(server.endpoint, timeout_ms=10_000) as other:
            block = {"x": np.zeros(1_000_000, np.uint8)}
            waiting = [one.submit("sleep", block) for _ in range(3)]
            with pytest.raises(Rejected) as caught:
                one.infer("sleep", block)
            assert caught.value.reason == "client_bytes"
            assert one.infer("echo", X)["x"].sum() == 15  # a small one still fits
            waiting.append(other.submit("sleep", block))
            with pytest.raises(Rejected) as caught:
                other.infer("sleep", block)
            assert caught.value.reason == "server_bytes"
            waiting.append(other.submit("sleep", X))
            for future in waiting:
                future.cancel()
            one.health()
            other.health()
            assert len(one.infer("echo", block)["x"]) == 1_000_000  # what ended counts no more


def test_the_servers_bound_in_bytes(tmp_path: Any, context: Any) -> None:
    with BusServer(f"ipc://{tmp_path}/bus", message_bytes_max=1 << 20, pending_bytes_max=2 << 20) as server:
        with Client(server.endpoint) as one, Client(server.endpoint) as other:
            block = {"x": np.zeros(1_000_000, np.uint8)}
            one.submit("sleep", block)
            one.submit("sleep", block)
            one.health()
            with pytest.raises(Rejected) as caught:
                other.infer("echo", block)
            assert caught.value.reason == "server_bytes"


def test_answers_that_are_not_read_are_bounded_in_bytes(tmp_path: Any, context: Any) -> None:
    with BusServer(f"ipc://{tmp_path}/bus", message_bytes_max=1 << 20, unread_bytes_max=4 << 20) as server:
        mute = dealer(context, server.endpoint, rcvhwm=1)
        mute.send(header(kind="infer", app="sleep", id=10**6))
        for key in range(60):
            mute.send_multipart(wire.encode_request(key, "echo", {"x": np.zeros(500_000, np.uint8)}))
        gone = server.seen(ClientLost, 10)
        assert "unread" in gone.reason
        assert [ask.key for ask in gone.asks][:1] == [10**6]  # its work is cancelled
        with Client(server.endpoint) as healthy:
            assert healthy.infer("echo", X)["x"].sum() == 15


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["ipc", "tcp"])
def test_no_client_chooses_its_routing_id(tmp_path: Any, context: Any, endpoint: str) -> None:
    with BusServer(f"ipc://{tmp_path}/bus" if endpoint == "ipc" else "tcp://127.0.0.1:*") as server:
        for _ in range(20):  # also where an earlier connection of the same id is not closed yet
            named = dealer(context, server.endpoint, b"robot", rcvtimeo=20_000)
            named.send(header(**INFER, id=1))
            error = reply_to(named).error
            assert (error.code, "routing id" in str(error)) == ("malformed", True)
            named.close()
        plain = dealer(context, server.endpoint, rcvtimeo=20_000)
        plain.send(header(**INFER, id=1))
        assert reply_to(plain).outcome == "completed"
        assert [type(news) for news in server.news] == [Ask]


@pytest.mark.parametrize("name", [b"\0\0\0\0\1", b"\0abc", b"\0" * 5])
def test_a_routing_id_that_looks_like_libzmqs_own_is_not_served(server: BusServer, context: Any, name: bytes) -> None:
    chosen = dealer(context, server.endpoint, name, rcvtimeo=300)
    chosen.send(header(**INFER, id=1))
    with pytest.raises(zmq.Again):
        chosen.recv_multipart()
    with Client(server.endpoint) as healthy:
        assert healthy.infer("echo", X)["x"].sum() == 15


FIRST_ID = "import bus_server; print(bus_server.bus_of('inproc://first')._registry._first_id)"


def test_the_numbers_of_clients_begin_elsewhere_in_every_process() -> None:
    env = {**os.environ, "PYTHONPATH": IMPORTS}
    asked = ([sys.executable, "-c", FIRST_ID] for _ in range(2))
    found = {subprocess.run(command, stdout=subprocess.PIPE, check=True, env=env).stdout for command in asked}
    assert len(found) == 2


@pytest.mark.parametrize("version", zmtp.OLD_GREETINGS)
def test_a_socket_of_the_own_program_lends_old_greetings_nothing(tmp_path: Any, context: Any, version: str) -> None:
    bus = bus_of(f"ipc://{tmp_path}/bus", None, "inproc://own", context=context)
    with contextlib.closing(bus), zmtp.dial(bus.endpoints[0]) as old:
        drain = zmtp.header(kind="drain", id=1)
        with contextlib.suppress(ConnectionError):
            old.sendall(zmtp.OLD_GREETINGS[version] + zmtp.old_message(version, drain))
        due = time.monotonic() + 5
        while not is_ended(old):
            assert not bus.receive() and time.monotonic() < due
            time.sleep(0.01)
        assert not bus.receive()
        own = dealer(context, "inproc://own")
        own.send(drain)
        assert [news.peer.credential.may_control for news in bus.receive()] == [True]


def test_who_sends_what_nobody_vouches_for_is_not_heard(
    tmp_path: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = zmq.Socket.setsockopt  # a libzmq that lets old greetings in although a domain is set
    monkeypatch.setattr(
        zmq.Socket,
        "setsockopt",
        lambda self, option, value: plain(self, option, value) if option != zmq.ZAP_DOMAIN else None,
    )
    bus = bus_of(f"ipc://{tmp_path}/bus", context=context)
    with contextlib.closing(bus), zmtp.dial(bus.endpoints[0]) as old:
        old.sendall(zmtp.OLD_GREETINGS["2.0"] + zmtp.old_message("2.0", zmtp.header(kind="drain", id=1)))
        assert bus.socket.poll(5000)
        assert bus.receive() == []


# --- connections ------------------------------------------------------------------------------------------------------


def is_ended(one: socket.socket) -> bool:
    """True if the other side has closed. Reads the bytes that it had sent before."""
    one.setblocking(False)
    try:
        while one.recv(100):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_connections_beyond_the_bound_are_ended_and_old_ones_live(tmp_path: Any, context: Any) -> None:
    path = f"{tmp_path}/bus"
    with BusServer(f"ipc://{path}", clients_max=8) as server, Client(server.endpoint) as healthy:
        healthy.infer("echo", X)  # it is connected before the others come
        pending = healthy.submit("sleep", X)
        idle = []
        for _ in range(60):
            one = socket.socket(socket.AF_UNIX)
            one.connect(path)
            idle.append(one)
        due = time.monotonic() + 10
        while sum([is_ended(one) for one in idle]) < 60 - 16 and time.monotonic() < due:
            time.sleep(0.02)
        assert sum([is_ended(one) for one in idle]) >= 60 - 16
        assert healthy.infer("echo", X)["x"].sum() == 15
        assert not pending.done()
        for one in idle:
            one.close()
        with Client(server.endpoint) as another:  # there is room again
            assert another.infer("echo", X)["x"].sum() == 15


CROWD = """
import sys, zmq, msgpack, time
context = zmq.Context()
sockets = []
for index in range(int(sys.argv[2])):
    one = context.socket(zmq.DEALER)
    one.connect(sys.argv[1])
    one.send(b"\\x01" + msgpack.packb({"kind": "infer", "app": "sleep", "id": 1}))
    sockets.append(one)
print("sent", flush=True)
time.sleep(60)
"""


def test_many_connections_of_one_process_do_not_lock_another_out(tmp_path: Any) -> None:
    with BusServer(f"ipc://{tmp_path}/bus", clients_max=16) as server:
        crowd = subprocess.Popen([sys.executable, "-c", CROWD, server.endpoint, "16"], stdout=subprocess.PIPE)
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == b"sent\n"
            due = time.monotonic() + 10
            while sum(type(news) is Ask for news in server.news) < 16 and time.monotonic() < due:
                time.sleep(0.01)
            with Client(server.endpoint, timeout_ms=10_000) as healthy:
                assert healthy.infer("echo", X)["x"].sum() == 15
            assert "its owner has" in server.seen(ClientLost).reason
        finally:
            crowd.send_signal(signal.SIGKILL)
            crowd.wait(10)
            crowd.stdout.close()


def test_shares_go_by_the_process_and_its_first_name(server: BusServer, context: Any) -> None:
    one, other = dealer(context, server.endpoint), dealer(context, server.endpoint)
    for index, (socket_, name) in enumerate([(one, "robot"), (one, "camera"), (other, "third")]):
        socket_.send(header(**INFER, id=index, client=name))
        reply_to(socket_)
    names = [news.client for news in server.news if type(news) is Ask]
    owners = {name.partition(" #")[0] for name in names}
    assert owners == {f"robot@uid:{os.getuid()}/pid:{os.getpid()}"}
    assert len(set(names)) == 2


def test_few_files_bound_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (100, 100))
    assert 8 <= connections.connections_max(256) < 80
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (100_000, 100_000))
    assert connections.connections_max(256) == 512


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
from edgeserve.cli import main
sys.exit(main(["serve", sys.argv[1]]))
"""


@pytest.mark.parametrize("files", [64, 256, 527])
def test_a_server_does_not_start_with_fewer_files_than_it_needs(tmp_path: Any, files: int) -> None:
    (tmp_path / "edge.toml").write_text(f"""[server]
endpoint = "ipc://{tmp_path}/bus"
[model.m]
engine = "synthetic"
expected = {{ 1 = "1ms" }}
[app.a]
model = "m"
""")
    ended = subprocess.run(
        [sys.executable, "-c", FEW_FILES.replace("2048", str(files)), str(tmp_path / "edge.toml")],
        env={**os.environ, "PYTHONPATH": IMPORTS},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert f"needs 528 open files, and the hard limit is {files}" in ended.stderr


def test_idle_connections_beyond_the_limit_of_open_files_end_nothing(tmp_path: Any) -> None:
    path = f"{tmp_path}/bus"
    (tmp_path / "edge.toml").write_text(f"""[server]
endpoint = "ipc://{path}"
[model.m]
engine = "synthetic"
expected = {{ 1 = "1ms" }}
[app.a]
model = "m"
slo = "80s"
""")
    process = subprocess.Popen(
        [sys.executable, "-c", FEW_FILES, str(tmp_path / "edge.toml")],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": IMPORTS},
    )
    crowd = subprocess.Popen([sys.executable, "-c", IDLE, path, "4000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert crowd.stdin is not None
    assert crowd.stdout is not None
    try:
        with Client(f"ipc://{path}", timeout_ms=80_000, connect_ms=30_000) as healthy:
            healthy.infer("a", {})
            crowd.stdin.write(b"now\n")
            crowd.stdin.flush()
            assert crowd.stdout.readline() == b"connected\n"
            healthy.infer("a", {})
            assert process.poll() is None
    finally:
        for one in (crowd, process):
            one.kill()
            one.communicate()


IDLE = """
import contextlib, resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
sys.stdin.readline()
idle = []
for _ in range(int(sys.argv[2])):
    with contextlib.suppress(OSError):  # ended, or its own limit is reached
        idle.append(socket.socket(socket.AF_UNIX))
        idle[-1].connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.readline()
"""


def test_the_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: List[Any] = []
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(connections.resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert connections.raise_file_limit() == 4096
    assert asked == [(4096, 4096)]


# --- what libzmq does not bear (docs/develop/libzmq.md) ---------------------------------------------------------------


SERVER = """
import sys, time
from bus_server import BusServer

class Slow(BusServer):
    def _handle(self, bus, news):
        time.sleep(0.0005)  # so that messages wait
        super()._handle(bus, news)

with Slow(sys.argv[1]) as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["ipc", "tcp"])
def slow(tmp_path: Any, request: Any) -> Iterator[Any]:
    """A server in a process of its own, since it is about whether it ends; and its endpoint."""
    endpoint = f"ipc://{tmp_path}/bus" if request.param == "ipc" else "tcp://127.0.0.1:*"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, endpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": IMPORTS},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
        process.stdin.close()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_pings_behind_a_burst_and_a_closed_connection_do_not_end_the_server(slow: Any) -> None:
    process, endpoint = slow
    for _ in range(5):
        one = zmtp.connect(endpoint)
        ask = zmtp.message([header(**INFER, id=1)])
        with contextlib.suppress(OSError):
            one.sendall(ask * 230 + (ask + zmtp.PING) * 300)
        one.close()
        with Client(endpoint, timeout_ms=20_000) as healthy:
            assert healthy.infer("echo", X)["x"].sum() == 15
        assert process.poll() is None


def test_bursts_and_resets_do_not_end_the_server(slow: Any) -> None:
    process, endpoint = slow
    for _ in range(5):
        one = zmtp.connect(endpoint)
        with contextlib.suppress(OSError):
            one.sendall(zmtp.message([header(**INFER, id=1)]) * 2000)
        if endpoint.startswith("tcp"):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    with Client(endpoint, timeout_ms=20_000) as healthy:
        assert healthy.infer("echo", X)["x"].sum() == 15
    assert process.poll() is None


def test_heartbeats_of_libzmq_are_off(server: BusServer, context: Any) -> None:
    """With them a peer that resets its connection while libzmq does not read from it ends the process."""
    for kind in (zmq.ROUTER, zmq.DEALER):
        one = context.socket(kind)
        endpoints.notice_gone_peers(one)
        assert one.getsockopt(zmq.HEARTBEAT_IVL) == 0
        assert one.getsockopt(zmq.TCP_KEEPALIVE_CNT) * one.getsockopt(zmq.TCP_KEEPALIVE_INTVL) == 15
        one.close()


def test_who_sends_faster_than_is_read_is_cut_off(monkeypatch: pytest.MonkeyPatch, context: Any) -> None:
    clock, memory = [0], [0]
    monkeypatch.setattr(flood, "resident_bytes", lambda: memory[0])
    bus = bus_of("inproc://flood", clock, client_silence_ns=10**12, context=context)
    greedy, modest = dealer(context, "inproc://flood", sndhwm=0), dealer(context, "inproc://flood")
    gone: List[Any] = []
    sent = 0
    for _ in range(400):
        clock[0] += 2 * flood.FLOOD_LOOK_NS
        memory[0] += 4 << 20
        for _ in range(300):
            greedy.send(header(**INFER, id=sent))
            sent += 1
        modest.send(header(**INFER, id=sent))
        gone += [news for news in bus.receive() if type(news) is ClientLost]
        if gone:
            break
    assert [news.reason for news in gone] == ["it sends faster than the server reads"]
    keys: List[Any] = []
    for _ in range(100):
        keys += [news.key for news in bus.receive()]
        if bus._guard.flood is None:
            break
    assert bus._guard.flood is None, "what was sent is dropped, a part at a time"
    modest.send(header(**INFER, id=10**6))
    while 10**6 not in keys:
        keys += [news.key for news in bus.receive() if type(news) is Ask]
    bus.close()


def test_growth_of_memory_alone_is_nobodys_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = [0]
    monkeypatch.setattr(flood, "resident_bytes", lambda: memory[0])
    watch = flood.Flood(0)
    watch.count(b"one", 900)
    watch.count(b"other", 100)
    memory[0] = 10**9
    assert watch.culprits(10**9) == [], "too few messages"
    watch.count(b"one", 8100)
    watch.count(b"like one", 8900)
    watch.count(b"other", 3000)
    assert watch.culprits(2 * 10**9) == [b"one", b"like one"]
    assert watch.culprits(3 * 10**9) == [], "it did not grow since"
    watch.count(b"one", 4096)
    memory[0] += 2 * flood.GROWTH_BYTES_MAX
    assert watch.culprits(4 * 10**9) == [], "all that a client may have in flight, at once"
    memory[0] += flood.BURST_BYTES_MAX
    assert watch.culprits(5 * 10**9) == [b"one"]


def test_connections_that_libzmq_does_not_close_are_counted_with_their_owner() -> None:
    pairs = [socket.socketpair() for _ in range(6)]
    known = connections.Connections(100, lambda file: True)
    for ours, _ in pairs:
        known.opened(ours.fileno(), True)
    for _, theirs in pairs[:5]:
        theirs.close()
    assert known.look_for_stuck() == [], "libzmq may still be about to close them"
    assert known.look_for_stuck() == [f"uid:{os.getuid()}/pid:{os.getpid()}"]
    assert sorted(known.stuck) == sorted(ours.fileno() for ours, _ in pairs[:5])
    assert list(known.by_file) == [pairs[5][0].fileno()]
    known.closed(pairs[0][0].fileno())
    assert len(known.stuck) == 4
    for one in [end for pair in pairs for end in pair]:
        one.close()


def test_many_processes_of_one_user_leave_connections_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [socket.socketpair() for _ in range(6)]
    files = [ours.fileno() for ours, _ in pairs]
    known = connections.Connections(4, lambda file: True)
    with monkeypatch.context() as patched:
        patched.setattr(connections, "owner_of", lambda file, same_host: f"uid:9/pid:{file}")
        assert [known.opened(file, True) for file in files[:4]] == [None] * 4
    assert known.opened(files[4], True) in files[:4], "this process is of a user that has none"
    assert known.opened(files[5], True) in files[:4]
    for one in [end for pair in pairs for end in pair]:
        one.close()


def test_garbage_alone_does_not_hold_the_loop(context: Any) -> None:
    bus = bus_of("inproc://garbage", [0], client_silence_ns=10**9, context=context)
    one = dealer(context, "inproc://garbage", sndhwm=0, rcvhwm=0)
    for _ in range(2000):
        one.send(b"garbage")
    calls = 0
    while bus.has_more() and calls < 100:
        assert bus.receive() == []
        calls += 1
    assert 5 <= calls < 100
    bus.close()


def test_connections_that_are_over_are_forgotten(tmp_path: Any, context: Any) -> None:
    clock = [0]
    bus = bus_of(f"ipc://{tmp_path}/bus", clock, client_silence_ns=10**9, context=context)
    for number in range(5):
        one = dealer(context, bus.endpoints[0])
        one.send(header(**INFER, id=number))
        _take(bus, clock, 1)
        one.close()
        _take(bus, clock, 1)  # that it is gone
    assert len(bus._registry.dead) == 5
    clock[0] += DEAD_NS
    bus.receive()
    assert 0 < len(bus._registry.dead) <= 5, "messages of theirs may still come"
    clock[0] += 10**9
    bus.receive()
    assert not bus._registry.dead
    bus.close()


def _take(bus: Bus, clock: List[int], count: int) -> None:
    """Receive until there was so much news."""
    due = time.monotonic() + 10
    while count > 0 and time.monotonic() < due:
        clock[0] += 10**6
        count -= len(bus.receive())
        time.sleep(0.001)
    assert count <= 0


def test_unused_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    held, trimmed = [10**8], []
    monkeypatch.setattr(memory, "resident_bytes", lambda: held[0])
    monkeypatch.setattr(memory, "_trim", lambda: trimmed.append(1))
    give_back = memory.GiveBack(0)
    now_ns = memory.FIRST_NS
    assert not give_back.look(now_ns)
    held[0] += memory.SLACK_BYTES + 1
    waits = []
    for second in range(300):
        now_ns += 10**9
        held[0] -= (second == 150) * memory.SLACK_BYTES // 2
        held[0] += (second == 200) * (memory.SLACK_BYTES + 1)  # another flood, to hardly more than before
        if give_back.look(now_ns):
            waits.append(second)
    pauses = [later - earlier for earlier, later in zip(waits, waits[1:])]
    assert pauses[:6] == [2, 4, 8, 16, 32, 64], "what is in use is tried ever less often"
    assert 200 <= waits[7] <= 202 and pauses[7:10] == [2, 4, 8], waits
    held[0] = 10**8
    assert not give_back.look(now_ns + 10**12)


def test_what_clients_that_were_cut_off_left_is_given_back_soon_and_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimmed: List[int] = []
    monkeypatch.setattr(memory, "resident_bytes", lambda: 10**8)
    monkeypatch.setattr(memory, "_trim", lambda: trimmed.append(1))
    give_back = memory.GiveBack(0)
    tries = [second for second in range(1, 300) if give_back.look(second * 10**9, ended_count=min(second, 100) // 10)]
    assert tries == [12, 72, 132], "what was freed a little later too, and one more after the last"


# --- a healthy client beside a flood ----------------------------------------------------------------------------------


def test_broken_connections_leave_nothing_behind(tmp_path: Any) -> None:
    path = f"{tmp_path}/bus"
    with BusServer(f"ipc://{path}") as server, Client(server.endpoint) as healthy:
        pending = healthy.submit("sleep", X)
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        stop = threading.Event()
        wrong: List[Any] = []

        def ask() -> None:
            while not stop.is_set():
                if healthy.infer("echo", X)["x"].sum() != 15:
                    wrong.append(1)

        asking = threading.Thread(target=ask)
        asking.start()
        for turn in range(200):
            one = socket.socket(socket.AF_UNIX)
            one.connect(path)
            one.send([b"", b"\xff", b"\xff" + b"\0" * 8 + b"\x7f\x03", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64][turn % 5])
            one.close()
        stop.set()
        asking.join(10)
        assert not wrong
        assert not pending.done()
        due = time.monotonic() + 5
        while before and len(os.listdir("/proc/self/fd")) > before + 5 and time.monotonic() < due:
            time.sleep(0.05)
        assert not before or len(os.listdir("/proc/self/fd")) <= before + 5
