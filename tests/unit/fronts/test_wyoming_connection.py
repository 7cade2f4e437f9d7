"""One connection of the voice front: a client that has gone is no fault of the front."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("wyoming", reason="the front needs wyoming: pip install '.[wyoming]'")

from wyoming.ping import Pong

from edgeserve.front import Places
from edgeserve.fronts import wyoming_events
from edgeserve.fronts.wyoming import WyomingConnection


def test_an_event_to_a_client_that_has_gone_is_a_connection_error():
    async def run():
        ended = asyncio.get_running_loop().create_future()

        async def accept(reader, writer):
            front = SimpleNamespace(client=None, places=Places(1), apps={}, voice=None)
            connection = WyomingConnection(front, reader, writer, "one", "stream")
            writer.transport.abort()
            for _ in range(5):
                await asyncio.sleep(0)
            try:
                await connection.send(Pong("x"))
                ended.set_result("sent")
            except Exception as error:  # noqa: BLE001 told below
                ended.set_result(error)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        found = await asyncio.wait_for(ended, 10)
        writer.close()
        server.close()
        assert isinstance(found, ConnectionError), found

    asyncio.run(run())


def test_half_an_event_does_not_hold_its_room_for_ever(monkeypatch):
    monkeypatch.setattr(wyoming_events, "PARTS_S", 0.01)

    async def run():
        reader = asyncio.StreamReader()
        reader.feed_data(b'{"type": "audio-chunk", "payload_length": 100}\n' + bytes(50))
        with pytest.raises(ValueError, match="the 100 bytes of an event did not come within"):
            await asyncio.wait_for(wyoming_events.read_event(reader), 20)

    asyncio.run(run())
