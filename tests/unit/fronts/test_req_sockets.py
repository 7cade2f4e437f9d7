"""Requests of ZeroMQ's REQ and DEALER sockets, read from asyncio's connections: real sockets of libzmq, and bytes that
none sends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct

import pytest
import zmq
import zmq.asyncio

from edgeserve.front import AcceptedConnections
from edgeserve.fronts.req_sockets import GREETING, OddPeer, as_message, read_message, shake_hands

BYTES_MAX = (4096, 10**6)


@contextlib.asynccontextmanager
async def listening(serve, place=""):
    """The endpoint at which ``serve(reader, writer, origin)`` is asked."""
    connections = AcceptedConnections(serve, 64, 64)
    if place:
        server, endpoint = await asyncio.start_unix_server(connections.accept, place), f"ipc://{place}"
    else:
        server = await asyncio.start_server(connections.accept, "127.0.0.1", 0)
        endpoint = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield endpoint
    finally:
        server.close()
        await connections.close()


@contextlib.contextmanager
def dialled(kind, endpoint, **options):
    one = zmq.asyncio.Context.instance().socket(kind)
    one.setsockopt(zmq.LINGER, 0)
    for name, value in options.items():
        one.setsockopt(getattr(zmq, name), value)
    one.connect(endpoint)
    try:
        yield one
    finally:
        one.close()


def within(work, seconds=20):
    return asyncio.run(asyncio.wait_for(work, seconds))


async def echo(reader, writer, origin):
    """Answer the number of frames thrown away, and the frames, in one frame."""
    await shake_hands(reader, writer)
    while True:
        frames, too_long = await read_message(reader, BYTES_MAX, lambda kept: None)
        writer.write(as_message(bytes([too_long]) + b"|".join(frames)))
        await writer.drain()


@pytest.mark.parametrize("is_local", [False, True])
def test_every_size_comes_and_goes_whole(is_local, tmp_path):
    draw = random.Random(3)
    sizes = [0, 1, 254, 255, 256, 257, 4096, 10**6 - 1, 10**6, *(draw.randrange(10**5) for _ in range(20))]

    async def run():
        async with listening(echo, str(tmp_path / "s") if is_local else "") as endpoint:
            with dialled(zmq.REQ, endpoint) as one:
                for size in sizes:
                    image = draw.randbytes(size) if hasattr(draw, "randbytes") else bytes(size)
                    head = b"h" * min(size, 4096)
                    await one.send_multipart([head, image])
                    assert await one.recv_multipart() == [b"\0" + head + b"|" + image]

    within(run())


def test_a_frame_that_is_too_long_is_thrown_away_and_the_connection_goes_on():
    async def run():
        async with listening(echo) as endpoint:
            with dialled(zmq.REQ, endpoint) as one:
                await one.send_multipart([b"h" * 4097, b"image"])
                assert await one.recv() == b"\1|image"
                await one.send_multipart([b"h", b"image"])
                assert await one.recv() == b"\0h|image"

    within(run())


def ready(kind=b"REQ"):
    body = b"\x05READY\x08Identity\0\0\0\0\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    return bytes([4, len(body)]) + body


PEER = GREETING + ready()


@pytest.mark.parametrize(
    "sent",
    {
        "HTTP": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x" * 64,
        "noise": random.Random(1).getrandbits(8 * 300).to_bytes(300, "big"),
        "ZMTP 2.0": GREETING[:10] + b"\x01\x05" + bytes(52),
        "CURVE": GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32),
        "a subscriber": GREETING + ready(b"SUB"),
        "no socket": GREETING + b"\x04\x06\x05READY",
        "properties that end early": GREETING + b"\x04\x0a\x05READY\x0bSoc",
        "a READY without end": GREETING + b"\x06" + bytes([255] * 8),
        "a message for READY": GREETING + b"\x00\x01x",
        "no empty frame": PEER + b"\x01\x01x\x00\x01y",
        "an empty frame alone": PEER + b"\x00\x00",
        "a command": PEER + b"\x04\x05\x04PING",
        "a command in a message": PEER + b"\x01\x00\x05\x05\x04PING",
        "three frames": PEER + b"\x01\x00" + b"\x01\x01x" * 3,
        "a frame of 2^64 bytes": PEER + b"\x01\x00\x02" + bytes([255] * 8),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_no_such_socket_sends_ends_the_connection_alone(sent):
    ends = []

    async def told(reader, writer, origin):
        try:
            await echo(reader, writer, origin)
        except OddPeer as error:
            ends.append(str(error))

    async def run():
        async with listening(told) as endpoint:
            with dialled(zmq.REQ, endpoint) as other:
                reader, writer = await asyncio.open_connection("127.0.0.1", int(endpoint.rpartition(":")[2]))
                writer.write(sent[1])
                await reader.read()  # up to its end
                writer.close()
                await other.send_multipart([b"h", b"image"])
                assert await other.recv() == b"\0h|image"

    within(run())
    assert len(ends) == 1 and len(ends[0]) < 300


def test_no_more_is_read_than_the_next_message():
    """A DEALER that does not wait fills the system's buffers, and not ours."""
    held = []

    async def slow(reader, writer, origin):
        await shake_hands(reader, writer)
        await read_message(reader, BYTES_MAX, held.append)
        await asyncio.Event().wait()

    async def run():
        async with listening(slow) as endpoint:
            with dialled(zmq.DEALER, endpoint, SNDHWM=1) as one:
                sent = 0
                with contextlib.suppress(asyncio.TimeoutError):
                    while sent < 1000:
                        await asyncio.wait_for(one.send_multipart([b"", b"h", bytes(10**6)]), 1.0)
                        sent += 1
                return sent

    assert within(run()) < 50
    assert max(held) == 10**6 + 1
