"""Shared memory between a server and its clients: who gets some, what comes back, what remains when one is killed."""

from __future__ import annotations

import array
import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import time

import msgpack
import numpy as np
import pytest
from bus_server import BusServer, dealer
from serving import wait_until

from edgeserve.client import AsyncClient, Client
from edgeserve.errors import BadInput, NotAllowed, Rejected, RequestError, ServerGone, TooLarge
from edgeserve.ipc import segments, wire
from edgeserve.ipc.bus import Ask
from edgeserve.ipc.segments import OFFER, SUFFIX, Offers, is_supported
from edgeserve.owners import process_owner

X = np.random.default_rng(1).random((3, 150, 150)).astype(np.float32)  # 270 KB
MIB = 1024**2

pytestmark = pytest.mark.skipif(not is_supported(), reason="this system has no sealed memory without a name")


@contextlib.contextmanager
def pair(endpoint, shared_memory=True, **options):
    """A server with shared memory and its client."""
    with BusServer(endpoint, **{"shared_memory_bytes": 4 * MIB, **options}) as server:
        with Client(server.endpoint, timeout_ms=30_000, shared_memory=shared_memory) as client:
            yield server, client


@pytest.fixture
def server(tmp_path):
    with BusServer(f"ipc://{tmp_path}/run/bus", shared_memory_bytes=4 * MIB) as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.endpoint, timeout_ms=30_000) as one:
        share(one)
        yield one


def share(client, app="echo"):
    """Ask until the client has its memory, and knows what room the app's answers need."""

    def is_shared():
        answer = client.infer(app, {"x": X})
        return client._courier.slab is not None and np.shares_memory(answer["x"], client._courier.slab.memory)

    wait_until(is_shared)
    return client._courier.slab


def free_again(slab):
    gc.collect()
    return slab.free_bytes() == slab.bytes


def segments_of(server):
    return len(server.bus._offers._segments)


# --- what it does --------------------------------------------------------------------------------------------------


def test_large_tensors_go_through_memory_and_all_of_it_comes_back(server, client):
    slab = client._courier.slab
    answer = client.infer("echo", {"x": X, "n": 3, "t": "text"})
    assert (answer["x"] == X).all()
    assert (int(answer["n"]), answer["t"]) == (3, "text")
    ask = server.news[-1]
    assert ask.bytes > X.nbytes, "what lies in memory counts"
    assert slab.free_bytes() < slab.bytes
    kept = answer["x"][1:2]
    del answer
    gc.collect()
    assert (kept == X[1:2]).all()
    del kept
    wait_until(lambda: free_again(slab))


def test_answers_that_are_kept_use_the_memory_up_and_frames_go_on(client):
    slab = client._courier.slab
    kept = [client.infer("echo", {"x": X + index}) for index in range(30)]  # 8 MB of answers, 4 MiB of memory
    assert slab.free_bytes() < X.nbytes * 2
    shared = [np.shares_memory(answer["x"], slab.memory) for answer in kept]
    assert any(shared)
    assert not all(shared)
    assert all((answer["x"] == X + index).all() for index, answer in enumerate(kept))
    del kept
    wait_until(lambda: free_again(slab))


def test_a_cancelled_request_gives_back_after_its_reply(server, client):
    slab = client._courier.slab
    future = client.submit("sleep", {"x": X})
    wait_until(lambda: any(type(news) is Ask and news.app == "sleep" for news in list(server.news)))
    assert not free_again(slab)
    future.cancel()
    wait_until(lambda: free_again(slab))


def test_an_error_gives_back(client):
    slab = client._courier.slab
    with pytest.raises(RequestError):
        client.infer("nothing", {"x": X})
    with pytest.raises(RequestError):
        client.infer("echo", {"x": X, "bad": object()})
    wait_until(lambda: free_again(slab))


def test_an_answer_that_outgrows_its_room_comes_in_a_frame(client):
    twice = np.concatenate([X, X])
    answer = client.infer("echo", {"x": twice})
    assert (answer["x"] == twice).all()
    assert not np.shares_memory(answer["x"], client._courier.slab.memory)
    assert np.shares_memory(client.infer("echo", {"x": twice})["x"], client._courier.slab.memory), "learnt"


def test_small_tensors_ask_for_no_memory(server):
    with Client(server.endpoint, timeout_ms=30_000) as client:
        client.infer("echo", {"x": np.zeros(10)})
        client.infer("echo", {"x": np.zeros(10)})
        assert client._courier.slab is None
    assert segments_of(server) == 0


@pytest.mark.parametrize("lacks", ["server", "client", "tcp"])
def test_without_it_on_either_side_or_over_tcp_frames_do_and_buffers_are_ordinary_arrays(tmp_path, lacks):
    endpoint = "tcp://127.0.0.1:*" if lacks == "tcp" else f"ipc://{tmp_path}/bus"
    given = {"shared_memory": lacks != "client", "shared_memory_bytes": 0 if lacks == "server" else 4 * MIB}
    with pair(endpoint, **given) as (server, client):
        assert os.path.exists(f"{tmp_path}/bus{SUFFIX}") is (lacks == "client")
        for _ in range(5):
            assert (client.infer("echo", {"x": X})["x"] == X).all()
        began = time.monotonic()
        mine = client.buffer(np.int64(X.size)).reshape(X.shape)
        assert time.monotonic() - began < 2, "it waited for what never comes"
        mine[...] = X
        assert (client.infer("echo", {"x": mine})["x"] == X).all()
        assert client._courier.slab is None


# --- buffers -------------------------------------------------------------------------------------------------------


def test_a_buffer_is_sent_from_where_it_lies(server):
    with Client(server.endpoint, timeout_ms=30_000) as client:
        mine = client.buffer(X.shape)
        slab = client._courier.slab
        assert np.shares_memory(mine, slab.memory), "the first buffer waits for the memory"
        assert (mine.dtype, mine.shape) == (np.float32, X.shape)
        mine[...] = X
        free = slab.free_bytes()
        waiting = client.submit("sleep", {"x": mine}, copy=False)
        wait_until(lambda: any(type(news) is Ask for news in list(server.news)))
        assert slab.free_bytes() == free, "it was copied"
        assert (server.seen(Ask).inputs["x"] == X).all()
        del mine
        gc.collect()
        assert not free_again(slab), "a request is under way with it"
        waiting.cancel()
        wait_until(lambda: free_again(slab))
        assert (client.infer("echo", {"x": X})["x"] == X).all()


def test_the_inputs_of_submit_may_change_at_once_also_in_a_buffer(server, client):
    mine = client.buffer(X.shape)
    for copy in (True, False):
        mine[...] = X
        future = client.submit("echo", {"x": mine}, copy=copy)
        if copy:
            mine[...] = 0
        assert (future.result(10)["x"] == X).all()


def test_an_answer_is_sent_on_from_where_it_lies(client):
    slab = client._courier.slab
    answer = client.infer("echo", {"x": X})["x"]
    assert np.shares_memory(answer, slab.memory)
    again = client.infer("echo", {"x": answer})["x"]
    assert (again == X).all()
    assert (answer == X).all()
    assert not np.shares_memory(again, answer), "the answer is not written over what is read"


def test_requests_that_differ_in_their_place_alone_are_not_mixed_up(server, client):
    buffers = [client.buffer(X.shape) for _ in range(4)]
    for round_ in range(8):
        for index, buffer in enumerate(buffers):
            buffer[...] = X + round_ * 4 + index
        futures = [client.submit("echo", {"x": buffer}, copy=False) for buffer in buffers]
        for index, future in enumerate(futures):
            assert (future.result(10)["x"] == X + round_ * 4 + index).all()


def test_buffers_that_find_no_room_or_no_server_are_ordinary_arrays(server, client, monkeypatch):
    slab = client._courier.slab
    kept = [client.buffer(MIB, np.uint8) for _ in range(6)]
    inside = [np.shares_memory(one, slab.memory) for one in kept]
    assert any(inside)
    assert not all(inside)
    assert not np.shares_memory(client.buffer((2, 3)), slab.memory), "a small one is sent in a frame"
    for shape, dtype in (((-1, 5), "float32"), ((3,), object)):
        with pytest.raises(BadInput, match="buffer"):
            client.buffer(shape, dtype)
    monkeypatch.setattr("edgeserve.ipc.courier.MEMORY_S", 0.05)
    with Client(server.endpoint + "-not-there") as lost:
        assert lost.buffer(X.shape).shape == X.shape


def test_a_buffer_of_a_server_that_is_gone_is_copied_for_its_successor(tmp_path):
    endpoint = f"ipc://{tmp_path}/bus"
    with Client(endpoint, timeout_ms=30_000) as client:
        with BusServer(endpoint, shared_memory_bytes=4 * MIB):
            mine = client.buffer(X.shape)
            mine[...] = X
            share(client)
        wait_until(lambda: client._courier.slab is None)
        with BusServer(endpoint, shared_memory_bytes=4 * MIB):
            slab = share(client)
            assert not np.shares_memory(mine, slab.memory)
            assert (client.infer("echo", {"x": mine})["x"] == X).all()


def test_an_asyncio_client_has_buffers(server):
    async def ask():
        async with AsyncClient(server.endpoint, timeout_ms=30_000) as client:
            mine = await client.buffer(X.shape)
            mine[...] = X
            assert np.shares_memory(mine, client._client._courier.slab.memory)
            return (await client.infer("echo", {"x": mine}))["x"].copy()

    assert (asyncio.run(ask()) == X).all()


# --- bounds --------------------------------------------------------------------------------------------------------


def test_memory_counts_in_the_bounds_of_messages_and_clients(tmp_path):
    with pair(f"ipc://{tmp_path}/bus", message_bytes_max=MIB, client_bytes_max=MIB) as (_, client):
        share(client)
        with pytest.raises(TooLarge):
            client.infer("echo", {"x": np.zeros(MIB + 1, np.uint8)})
        waiting = [client.submit("sleep", {"x": X}) for _ in range(3)]
        with pytest.raises(Rejected) as refused:
            client.infer("echo", {"x": X})
        assert refused.value.reason == "client_bytes"
        for future in waiting:
            future.cancel()


def test_one_process_has_at_most_half_of_the_memory(tmp_path):
    with BusServer(f"ipc://{tmp_path}/bus", shared_memory_bytes=4 * MIB, pending_bytes_max=17 * MIB) as server:
        clients = [Client(server.endpoint, timeout_ms=30_000) for _ in range(3)]
        try:
            for one in clients[:2]:
                share(one)
            for _ in range(5):
                assert (clients[2].infer("echo", {"x": X})["x"] == X).all()
            assert segments_of(server) == 2
            code = "import sys; from edgeserve.client import Client; one = Client(sys.argv[1]); one.buffer(1 << 17)"
            subprocess.run(
                [sys.executable, "-c", code + "; print(one._courier.slab.bytes)", server.endpoint], check=True
            )
            clients[0].close()
            wait_until(lambda: segments_of(server) == 1)
        finally:
            for one in clients:
                one.close()


# --- strangers and attackers ---------------------------------------------------------------------------------------


def offered(path):
    """A connection beside the bus: itself, the file and the token that it was offered, how large that memory is."""
    side = socket.socket(socket.AF_UNIX)
    side.settimeout(20)
    side.connect(path)
    said, ancillary, _, _ = side.recvmsg(OFFER.size, socket.CMSG_SPACE(4))
    return (side, array.array("i", ancillary[0][2])[0], *OFFER.unpack(said))


class ByHand:
    """A client that says what it likes."""

    def __init__(self, server, context):
        self.dealer = dealer(context, server.endpoint, rcvtimeo=20_000)
        self.side, self.file, self.token, self.bytes = offered(server.endpoint[len("ipc://") :] + SUFFIX)

    def ask(self, *frames, **fields):
        self.dealer.send_multipart([wire.pack_header(fields), *frames])
        return wire.decode_reply(self.dealer.recv_multipart(), 10**8)

    def claim(self, token=None):
        return self.ask(kind="memory", id=1, token=self.token if token is None else token)

    def close(self):
        self.side.close()
        os.close(self.file)


@pytest.fixture
def by_hand(server, context):
    one = ByHand(server, context)
    yield one
    one.close()


def test_what_an_attacker_says_of_its_memory_is_checked(server, by_hand):
    table = [["x", "uint8", [MIB], 0, MIB]]
    assert by_hand.ask(kind="infer", id=2, app="echo", tensors=table).error.code == "malformed", "nothing claimed"
    assert by_hand.ask(kind="infer", id=2, app="echo", room=[0, 5]).error.code == "malformed"
    assert by_hand.claim(b"x" * 16).error.code == "not_allowed"
    assert by_hand.claim(b"").error.code == "not_allowed"
    assert by_hand.claim().info == {"bytes": by_hand.bytes}
    assert by_hand.claim().error.code == "malformed", "one has it already"
    for offset, nbytes in ((by_hand.bytes - MIB + 1, MIB), (2**62, MIB), (0, MIB - 1), (-1, MIB)):
        reply = by_hand.ask(kind="infer", id=2, app="echo", tensors=[["x", "uint8", [MIB], offset, nbytes]])
        assert (reply.error.code, reply.key) == ("malformed", 2), (offset, nbytes)
    assert by_hand.ask(kind="infer", id=2, app="echo", tensors=table, room=[1, by_hand.bytes]).error.code == "malformed"
    assert by_hand.ask(b"more", kind="infer", id=2, app="echo", tensors=table).error.code == "malformed"
    os.pwrite(by_hand.file, b"\2" * 10, 0)
    boolean = [["x", "bool", [10], 0, 10]]
    assert by_hand.ask(kind="infer", id=2, app="echo", tensors=boolean).error.code == "malformed", "2 is no bool"
    by_hand.dealer.send(wire.pack_header({"kind": "infer", "id": 3, "app": "echo", "tensors": table}))
    header, frame = by_hand.dealer.recv_multipart()
    assert msgpack.unpackb(header[1:])["kind"] == "answer"
    assert frame[:11] == b"\2" * 10 + b"\0"
    assert by_hand.ask(kind="health", id=4).info["ready"]


def test_later_requests_are_checked_like_the_first(server, by_hand):
    by_hand.claim()

    def fields(key, offset, room=2**16):
        table = [["x", "uint8", [MIB], offset, MIB]]
        return {"kind": "infer", "id": key, "app": "sleep", "room": [room, MIB], "sent_ns": 2**40, "tensors": table}

    for key in range(2, 6):
        by_hand.dealer.send(wire.pack_header(fields(key, 2**16 * key)))
    wait_until(lambda: len([news for news in list(server.news) if type(news) is Ask]) == 4)
    for key, offset, frames, room in (
        (9, by_hand.bytes - MIB + 1, (), 2**16),
        (10, 2**32 - 1, (), 2**16),
        (11, 2**16, (b"more",), 2**16),
        (12, 2**16, (), by_hand.bytes - MIB + 1),
        (5, 2**16, (), 2**16),
    ):
        assert by_hand.ask(*frames, **fields(key, offset, room)).error.code == "malformed", (key, offset)
    assert by_hand.ask(kind="health", id=20).info["ready"]


def test_what_the_client_writes_while_its_request_waits_is_not_seen(server, by_hand):
    by_hand.claim()
    os.pwrite(by_hand.file, b"\1" * MIB, 0)
    by_hand.dealer.send(
        wire.pack_header({"kind": "infer", "id": 2, "app": "sleep", "tensors": [["x", "uint8", [MIB], 0, MIB]]})
    )
    ask = server.seen(Ask, 20)
    os.pwrite(by_hand.file, b"\2" * MIB, 0)
    assert (ask.inputs["x"] == 1).all()


def test_the_memory_cannot_be_made_shorter(by_hand):
    for size in (0, by_hand.bytes * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(by_hand.file, size)


def test_a_token_is_good_for_its_own_process_once(tmp_path):
    with contextlib.closing(Offers(f"ipc://{tmp_path}/bus", MIB, 8 * MIB, time.monotonic_ns)) as offers:
        (side, file, stolen, _), (other, other_file, token, _) = offered(offers.path), offered(offers.path)
        me = process_owner(os.getuid(), os.getpid())
        with pytest.raises(NotAllowed):
            offers.claim(stolen, process_owner(os.getuid(), 1))
        with pytest.raises(NotAllowed):  # shown by another, so it is void
            offers.claim(stolen, me)
        assert offers.claim(token, me).bytes == MIB
        with pytest.raises(NotAllowed):
            offers.claim(token, me)
        for one in (side, other):
            one.close()
        for one in (file, other_file):
            os.close(one)
        wait_until(lambda: len(offers._segments) == 0)
    assert not os.path.exists(offers.path)
    offers.close()


def test_offers_without_a_claim_end(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "LOOK_MS", 5)
    now = [0]
    with contextlib.closing(Offers(f"ipc://{tmp_path}/bus", MIB, 8 * MIB, lambda: now[0])) as offers:
        side, file, _, _ = offered(offers.path)
        os.close(file)
        assert len(offers._segments) == 1
        now[0] = segments.OFFER_NS_MAX + 1
        assert side.recv(1) == b""
        wait_until(lambda: len(offers._segments) == 0)
        side.close()


def test_another_user_gets_none(tmp_path):
    offers = Offers(f"ipc://{tmp_path}/bus", MIB, 8 * MIB, time.monotonic_ns, uids=(os.getuid() + 1,))
    try:
        assert os.stat(offers.path).st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as side:
            side.settimeout(20)
            side.connect(offers.path)
            assert side.recvmsg(OFFER.size, socket.CMSG_SPACE(4))[:2] == (b"", [])
        assert len(offers._segments) == 0
    finally:
        offers.close()


# --- ends ----------------------------------------------------------------------------------------------------------

ASKS = """
import sys, time
import numpy as np
from edgeserve.client import Client
client = Client(sys.argv[1])
while client._courier.slab is None:
    client.infer("echo", {"x": np.zeros(100_000)})
client.submit("sleep", {"x": np.zeros(100_000)})
print("shared", flush=True)
time.sleep(600)
"""


def test_a_killed_client_leaves_nothing_behind(server):
    child = subprocess.Popen([sys.executable, "-c", ASKS, server.endpoint], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"shared\n"
        assert segments_of(server) == 1
        wait_until(lambda: any(type(news) is Ask and news.app == "sleep" for news in list(server.news)))
        child.send_signal(signal.SIGKILL)
        child.wait(20)
        server.news.clear()  # the records of its requests, which know their connection
        wait_until(lambda: segments_of(server) == 0)
    finally:
        child.kill()
        child.wait(20)
        child.stdout.close()


def test_answers_outlive_the_server_and_its_successor_shares_anew(tmp_path):
    endpoint = f"ipc://{tmp_path}/bus"
    with Client(endpoint, timeout_ms=30_000) as client:
        with BusServer(endpoint, shared_memory_bytes=4 * MIB) as server:
            first = share(client)
            answer = client.infer("echo", {"x": X})
            assert np.shares_memory(answer["x"], first.memory)
            future = client.submit("sleep", {"x": X})
            wait_until(lambda: any(news.app == "sleep" for news in list(server.news)))
        with pytest.raises(ServerGone):
            future.result(20)
        assert not os.path.exists(f"{tmp_path}/bus{SUFFIX}")
        with BusServer(endpoint, shared_memory_bytes=4 * MIB):
            assert share(client) is not first
        assert (answer["x"] == X).all()


def test_a_socket_left_behind_is_replaced(tmp_path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/bus{SUFFIX}")
    with pair(f"ipc://{tmp_path}/bus") as (_, client):
        share(client)


def test_a_server_that_cannot_listen_beside_its_bus_serves_frames(tmp_path):
    (tmp_path / f"bus{SUFFIX}").write_text("something else")
    with pair(f"ipc://{tmp_path}/bus") as (_, client):
        assert (client.infer("echo", {"x": X})["x"] == X).all()
    assert (tmp_path / f"bus{SUFFIX}").read_text() == "something else"


def test_a_forked_child_cannot_touch_it(client):
    slab = client._courier.slab
    before = slab.memory.copy()
    child = os.fork()
    if child == 0:
        try:
            client.infer("echo", {"x": X + 1})
        except RequestError:
            os._exit(7)
        os._exit(1)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 7
    assert (slab.memory == before).all()
    assert (client.infer("echo", {"x": X})["x"] == X).all()
