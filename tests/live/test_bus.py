"""The bus and its clients over real sockets: typed errors, cancellation, clients and servers that vanish."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, wait

import bus_server
import numpy as np
import pytest
import zmq
import zmq.auth
from bus_server import BusServer, reply_to
from serving import wait_until

from edgeserve.client import AsyncClient, Client, TimedOut
from edgeserve.errors import (
    BadInput,
    Cancelled,
    ConfigError,
    Failed,
    Malformed,
    Rejected,
    RequestError,
    ServerGone,
    TooLarge,
    UnknownApp,
)
from edgeserve.ipc import endpoints, wire
from edgeserve.ipc.bus import Ask, Cancel, ClientLost, Control
from edgeserve.ipc.endpoints import default_endpoint
from edgeserve.ipc.link import Link

X = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
CURVE = zmq.has("curve")


@pytest.fixture
def server(tmp_path):
    with BusServer(f"ipc://{tmp_path}/run/bus") as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.endpoint, timeout_ms=10_000) as one:
        yield one


@pytest.fixture
def dealer(server, context):
    return bus_server.dealer(context, server.endpoint)


def tell(one, **fields):
    one.send(bus_server.header(**fields))


# --- requests and answers ------------------------------------------------------------------------------------------


def test_an_answer_says_what_and_how(client):
    answer = client.infer(
        "echo", {"t": "text", "n": 3, **X}, slo_ms=5000, priority_class="critical", hints={"length": 2}
    )
    assert sorted(answer) == ["n", "t", "x"]
    assert (answer["x"] == X["x"]).all()
    assert (answer["t"], int(answer["n"]), answer.outcome, answer.late) == ("text", 3, "completed", False)
    assert answer.breakdown_ms["execute"] == pytest.approx(4e-6)


def test_the_server_sees_the_terms(server, client):
    client.infer(
        "echo", X, slo_ms=5000, priority_class="background", value=2.0, on_late="answer", stream="s", hints={"n": 1}
    )
    ask = server.seen(Ask)
    terms = (ask.slo_ms, ask.priority_class, ask.value, ask.on_late, ask.stream, ask.hints)
    assert terms == (5000, "background", 2.0, "answer", "s", {"n": 1})
    assert 0 <= time.monotonic_ns() - ask.sent_ns < 10**10


def test_large_tensors_arrive_unchanged_and_submit_copies(client):
    value = np.random.default_rng(1).random((3, 300, 300)).astype(np.float32)
    mine = value.copy()
    future = client.submit("echo", {"x": mine})
    mine[:] = 0
    assert (future.result(10)["x"] == value).all()


def test_many_threads_share_one_client(client):
    failed = []

    def work(base):
        for i in range(30):
            if int(client.infer("echo", {"x": base + i})["x"]) != base + i:
                failed.append((base, i))

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []


def test_control_questions(client):
    for kind in wire.CONTROL_KINDS:
        if kind not in ("story", "reload"):
            assert getattr(client, kind)() == {"kind": kind, "ready": True}


def test_a_story_is_asked_for_by_the_number_of_a_request(server, client):
    server.told = {"story": ["one", "two"]}
    assert client.story(17) == ["one", "two"]
    assert server.seen(Control).word == 17
    with pytest.raises(Malformed, match="request_id = None: expected the request_id of an answer or an error"):
        client.ask("story")


def test_a_question_whose_answer_cannot_travel_gets_an_error_and_spares_the_requests(server, client):
    future = client.submit("sleep", X)
    server.seen(Ask)
    server.told = {1: "keys that are no text"}
    with pytest.raises(Failed, match="the answer to this question cannot be sent"):
        client.stats()
    server.told = {}
    assert client.health()["ready"]
    assert not future.done()


@pytest.mark.parametrize(
    ("ask", "kind"),
    [
        (lambda c: c.infer("nobody", X), UnknownApp),
        (lambda c: c.infer("echo", X, slo_ms="soon"), Malformed),
        (lambda c: c.infer("echo", {"x": object()}), BadInput),
        (lambda c: c.infer("odd", X), Failed),
        (lambda c: c.infer("echo", {"x": np.zeros(2_000_000)}), TooLarge),
    ],
)
def test_typed_errors_reach_the_caller_and_the_client_goes_on(client, ask, kind):
    client.health()  # the first reply tells the server's bounds
    with pytest.raises(kind):
        ask(client)
    assert client.infer("echo", X).outcome == "completed"


def test_a_client_that_waits_too_long_cancels(server, client):
    with pytest.raises(TimedOut):
        client.infer("sleep", X, timeout_ms=50)
    assert server.seen(Cancel).ask is server.seen(Ask)


def test_cancel_of_a_future_cancels_on_the_server(server, client):
    future = client.submit("sleep", X)
    server.seen(Ask)
    assert future.cancel()
    assert future.cancel()
    server.seen(Cancel)
    done, _ = wait([future], timeout=5)
    assert done == {future}
    with pytest.raises(CancelledError):
        future.result(0)


# --- messages by hand ----------------------------------------------------------------------------------------------


def test_a_frame_far_over_the_bound_closes_the_connection_and_others_go_on(dealer, client):
    dealer.send(bytes(40 * 1024**2))
    with pytest.raises(zmq.Again):
        dealer.rcvtimeo = 300
        dealer.recv()
    assert client.infer("echo", X).outcome == "completed"


def test_an_id_in_flight_is_refused_and_the_first_lives(server, dealer):
    tell(dealer, kind="infer", id=5, app="sleep")
    tell(dealer, kind="infer", id=5, app="sleep")
    assert "in flight" in str(reply_to(dealer).error)
    tell(dealer, kind="cancel", id=5)
    assert type(reply_to(dealer).error) is Cancelled


def test_a_req_socket_gets_its_delimiter_back_and_cannot_ask_for_pieces(server, context):
    one = bus_server.dealer(context, server.endpoint, kind=zmq.REQ)
    for key in (1, b"two"):
        one.send_multipart(wire.encode_request(key, "echo", X))
        assert wire.decode_reply(one.recv_multipart(), 10**8).key == key
    one.send(b"\x01")
    assert reply_to(one).error.code == "malformed"
    one.send_multipart(wire.encode_request(1, "echo", X, options={"pieces": True}))
    assert reply_to(one).error.code == "bad_input"


def test_a_piece_of_a_request_that_ended_is_not_the_next_ones_of_its_id(tmp_path, context):
    bus = bus_server.bus_of(f"ipc://{tmp_path}/bus")
    try:
        dealer = bus_server.dealer(context, bus.endpoints[0])

        def asked():
            dealer.send_multipart(wire.encode_request(1, "a", X, options={"pieces": True}))
            while True:
                for ask in bus.receive():
                    return ask

        first = asked()
        bus.refuse(first, Cancelled("its client wants it no more"))
        second = asked()
        bus.piece(first, {"text": "old"})
        bus.piece(second, {"text": "new"})
        assert [reply_to(dealer).kind, reply_to(dealer).outputs] == ["error", {"text": "new"}]
    finally:
        bus.close()


def test_too_many_clients_are_refused_unless_one_is_idle(tmp_path, context):
    with BusServer(f"ipc://{tmp_path}/bus", clients_max=2) as server:
        dealers = [bus_server.dealer(context, server.endpoint) for _ in range(4)]
        tell(dealers[0], kind="infer", id=1, app="sleep")
        for one in dealers[1:3]:  # each idle client makes room for the next
            tell(one, kind="infer", id=1, app="echo")
            assert reply_to(one).outcome == "completed"
        tell(dealers[1], kind="infer", id=2, app="sleep")
        tell(dealers[1], kind="health", id=3)
        reply_to(dealers[1])
        tell(dealers[3], kind="infer", id=1, app="echo")
        error = reply_to(dealers[3]).error
        assert type(error) is Rejected
        assert error.reason == "too many clients"


# --- who vanishes --------------------------------------------------------------------------------------------------

VANISH = """
import sys, time, numpy as np
from edgeserve.client import Client
client = Client(sys.argv[1])
futures = [client.submit("sleep", {"x": np.zeros(4)}) for _ in range(3)]
client.health()
print("sent", flush=True)
time.sleep(60)
"""


def test_a_killed_client_is_noticed_at_once(server):
    child = subprocess.Popen([sys.executable, "-c", VANISH, server.endpoint], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"sent\n"
        begin = time.monotonic()
        child.send_signal(signal.SIGKILL)
        gone = server.seen(ClientLost)
        assert time.monotonic() - begin < 2
        assert len(gone.asks) == 3
        assert gone.reason == "its connection closed"
    finally:
        child.kill()
        child.wait(10)
        child.stdout.close()


def test_a_client_that_closes_says_goodbye(server):
    client = Client(server.endpoint)
    future = client.submit("sleep", X)
    server.seen(Ask)
    client.close()
    assert server.seen(ClientLost).asks == [server.seen(Ask)]
    with pytest.raises(Cancelled):
        future.result(5)
    with pytest.raises(RequestError, match="closed"):
        client.infer("echo", X)


def test_a_forgotten_client_leaves(server):
    client = Client(server.endpoint)
    client.infer("echo", X)
    thread = client._courier._thread
    del client
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_silence_counts_as_gone_and_heartbeats_prevent_it(tmp_path, context):
    with BusServer(f"ipc://{tmp_path}/bus", client_silence_ns=300 * 10**6) as server:
        mute = bus_server.dealer(context, server.endpoint)
        with Client(server.endpoint) as client:
            future = client.submit("sleep", X)
            tell(mute, kind="infer", id=9, app="sleep")
            gone = server.seen(ClientLost)
            assert [ask.key for ask in gone.asks] == [9]
            assert type(reply_to(mute).error) is Cancelled
            assert not future.done()


def test_a_client_that_never_reads_is_given_up_not_waited_for(tmp_path, monkeypatch, context):
    monkeypatch.setattr("edgeserve.ipc.bus.SEND_MESSAGES_MAX", 3)
    with BusServer(f"ipc://{tmp_path}/bus") as server:
        full = bus_server.dealer(context, server.endpoint, rcvhwm=1)
        tell(full, kind="infer", id=999, app="sleep")
        for key in range(40):
            full.send_multipart(wire.encode_request(key, "echo", {"x": np.zeros(100_000)}))
        gone = server.seen(ClientLost)
        assert "unread" in gone.reason
        assert 999 in [ask.key for ask in gone.asks]
        with Client(server.endpoint) as client:
            assert client.infer("echo", X).outcome == "completed"


def test_a_server_that_goes_is_reported_and_its_successor_is_found(tmp_path):
    endpoint = f"ipc://{tmp_path}/bus"
    with Client(endpoint, timeout_ms=10_000) as client:
        with BusServer(endpoint) as server:
            future = client.submit("sleep", X)
            server.seen(Ask)
        with pytest.raises(ServerGone):
            future.result(5)
        with BusServer(endpoint) as server:
            assert client.infer("echo", X).outcome == "completed"
            assert [news.app for news in server.news] == ["echo"]  # nothing of the old connection came along


def test_no_server_at_all(tmp_path):
    with Client(f"ipc://{tmp_path}/nobody", connect_ms=100) as client, pytest.raises(
        ServerGone, match="edgeserve serve"
    ):
        client.infer("echo", X)


# --- asyncio -------------------------------------------------------------------------------------------------------


def test_the_asyncio_twin(server):
    async def main():
        async with AsyncClient(server.endpoint) as client:
            answers = await asyncio.gather(*(client.infer("echo", {"x": i}) for i in range(20)))
            assert [int(answer["x"]) for answer in answers] == list(range(20))
            assert (await client.stats())["kind"] == "stats"
            with pytest.raises(UnknownApp):
                await client.infer("nobody", X)
            task = asyncio.ensure_future(client.infer("sleep", X))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimedOut):
                await client.infer("sleep", X, timeout_ms=20)
            await client.health()

    asyncio.run(main())
    assert len([news for news in server.news if type(news) is Cancel]) == 2


# --- endpoints -----------------------------------------------------------------------------------------------------


def test_the_default_endpoint_is_this_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_endpoint() == f"ipc://{tmp_path}/edgeserve/bus"
    with BusServer(default_endpoint()), Client(timeout_ms=5000) as client:
        assert client.infer("echo", X).outcome == "completed"
        assert stat.S_IMODE(os.stat(tmp_path / "edgeserve").st_mode) == 0o700
        assert stat.S_IMODE(os.stat(tmp_path / "edgeserve" / "bus").st_mode) == 0o600
    assert os.listdir(tmp_path / "edgeserve") == []
    os.chmod(tmp_path / "edgeserve", 0o755)
    with pytest.raises(ConfigError, match="chmod 700"), BusServer(default_endpoint()):
        pass
    monkeypatch.setattr(endpoints.os, "getuid", lambda: 12345)
    with pytest.raises(ConfigError, match="belongs to user"), BusServer(default_endpoint()):
        pass


def test_a_second_server_is_refused_and_a_stale_socket_replaced(tmp_path):
    endpoint = f"ipc://{tmp_path}/bus"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(f"{tmp_path}/bus")
    stale.close()
    with BusServer(endpoint), pytest.raises(ConfigError, match="another server"), BusServer(endpoint):
        pass


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("ipc://@name", "abstract"),
        ("ipc://" + "x" * 120, "107"),
        ("http://localhost:1", "expected ipc"),
        ("tcp://0.0.0.0:5999", "curve_secret_key_file"),
        ("tcp://*:5999", "curve_secret_key_file"),
        ("tcp://127.0.0.1", "port"),
        ("ipc:///proc/none/bus", "cannot be made"),
    ],
)
def test_endpoints_that_are_refused(endpoint, words):
    with pytest.raises(ConfigError, match=words), BusServer(endpoint):
        pass


def test_tcp_ignores_send_stamps():
    with BusServer("tcp://127.0.0.1:*") as server, Client(server.endpoint) as client:
        client.infer("echo", X, slo_ms=1000)
        assert server.seen(Ask).sent_ns is None


@pytest.mark.skipif(not CURVE, reason="this libzmq was built without CURVE")
def test_tcp_beyond_loopback_with_keys(tmp_path):
    public, secret = zmq.auth.create_certificates(str(tmp_path), "server")
    with BusServer("tcp://0.0.0.0:*", secret_key_file=secret) as server:
        endpoint = server.endpoint.replace("0.0.0.0", "127.0.0.1")
        with Client(endpoint, server_key=public) as client:
            assert client.infer("echo", X).outcome == "completed"
        with Client(endpoint, connect_ms=500) as stranger, pytest.raises(ServerGone):
            stranger.infer("echo", X)
    with pytest.raises(ConfigError, match="edgeserve init --keys server"), BusServer(
        "tcp://0.0.0.0:*", secret_key_file=f"{tmp_path}/none"
    ):
        pass


@pytest.mark.skipif(not CURVE, reason="this libzmq was built without CURVE")
def test_a_message_after_a_failed_handshake_loses_the_link_and_raises_nothing(tmp_path, context):
    """libzmq has no queue for it then: the client counted as closed, without the reason."""
    _, secret = zmq.auth.create_certificates(str(tmp_path), "server")
    with BusServer("tcp://0.0.0.0:*", secret_key_file=secret) as server:
        endpoint = server.endpoint.replace("0.0.0.0", "127.0.0.1")
        link = Link(endpoint, context, time.monotonic_ns, connect_ns=10**10, silence_ns=10**10)
        wait_until(lambda: not link.socket.poll(0, zmq.POLLOUT))
        link.send((b"question",))
        assert "server_key" in link.lost
        link.close()


def test_shares_go_by_whom_a_front_asks_for(server, client):
    client.submit("echo", X, origin="address:192.0.2.7").result(20)
    client.infer("echo", X, origin="token:kitchen")
    client.stream("echo", X).answer()
    names = [news.client for news in server.news if type(news) is Ask]
    user = f"uid:{os.getuid()}"
    assert [name.partition(" #")[0] for name in names] == [
        f"address:192.0.2.7@{user}",
        f"token:kitchen@{user}",
        f"{user}/pid:{os.getpid()}",
    ]
    assert len({name.partition(" #")[2] for name in names}) == 1


def test_only_a_controller_of_the_server_may_ask_for_others():
    with BusServer("tcp://127.0.0.1:*") as server, Client(server.endpoint, timeout_ms=10_000) as client:
        client.submit("echo", X, origin="token:kitchen").result(20)
        ask = server.seen(Ask)
        assert ask.client.partition(" #")[0] == f"uid:{os.getuid()}/pid:0" and ask.origin == ""
