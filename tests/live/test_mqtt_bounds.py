"""The memory that MQTT's packets can make the front keep: a broker that speaks the protocol by hand sends more than is
read."""

from __future__ import annotations

import asyncio
import json
import tracemalloc

import pytest

from edgeserve.errors import ServerGone

pytest.importorskip("aiomqtt", reason="the front needs aiomqtt: pip install '.[mqtt]'")

from edgeserve.fronts.mqtt import TOGETHER_MAX, Mqtt, MqttFront
from edgeserve.fronts.mqtt_inbox import MESSAGES_MAX, PAYLOAD_BYTES_MAX, WAITING_BYTES_MAX

MIB = 1024**2


class Server:
    """A server that answers no question. ``asked``: who asked."""

    asked = []

    async def apps(self):
        return {"a": {"inputs": {"text": {"dtype": "text", "shape": []}}, "stream": "none"}}

    async def health(self):
        raise ServerGone("gone")

    async def infer(self, app, inputs, origin):
        self.asked.append(origin)
        await asyncio.Event().wait()


class Broker:
    """A broker by hand, with the number of answers by topic. ``acknowledges``: it acknowledges answers."""

    def __init__(self, acknowledges=True):
        self.acknowledges, self.heard = acknowledges, asyncio.Queue()
        self.writing = asyncio.Lock()  # one packet after the other

    async def serve(self, reader, writer):
        self.writer = writer
        try:
            while True:
                kind = (await reader.readexactly(1))[0]
                size, shift, more = 0, 0, True
                while more:
                    byte = (await reader.readexactly(1))[0]
                    size, shift, more = size | (byte & 127) << shift, shift + 7, byte & 128
                body = await reader.readexactly(size)
                if kind >> 4 == 3:
                    end = 2 + int.from_bytes(body[:2], "big")
                    topic, has_id = body[2:end].decode(), bool(kind & 6)
                    self.heard.put_nowait((topic, body[end + 2 * has_id :]))
                    is_told = has_id and (self.acknowledges or "/answer/" not in topic)
                    answer = b"\x40\x02" + body[end : end + 2] if is_told else b""
                else:
                    answers = {1: b"\x20\x02\0\0", 8: b"\x90\x03" + body[:2] + b"\1", 12: b"\xd0\0"}
                    answer = answers.get(kind >> 4, b"")
                async with self.writing:
                    writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def ask(self, topic, size, payload=b""):
        size = size or len(payload)
        head = len(topic).to_bytes(2, "big") + topic.encode()
        left, length = len(head) + size, b""
        while left or not length:
            left, low = divmod(left, 128)
            length += bytes([low | (128 if left else 0)])
        async with self.writing:
            self.writer.write(b"\x30" + length + head + payload)
            for _ in range(0 if payload else size // MIB):
                self.writer.write(bytes(MIB))
                await self.writer.drain()


def live(story, **options):
    """Run ``story(broker)`` beside a front; the most memory that it took."""

    async def run():
        broker, ready, stopped = Broker(**options), asyncio.Event(), asyncio.Event()
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        front = MqttFront(Server(), Mqtt(port=port, name="cellar", ask=("a",), askers=("kitchen",), discovery=""))
        await front.look()
        serving = asyncio.ensure_future(front.serve(stopped, lambda place: ready.set()))
        await asyncio.wait_for(ready.wait(), 20)
        tracemalloc.start()
        try:
            await asyncio.wait_for(story(broker, front), 60)
            return tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            stopped.set()
            await serving
            server.close()

    return asyncio.run(run())


async def answer_of(broker):
    while True:
        topic, payload = await broker.heard.get()
        if topic.startswith("edgeserve/cellar/answer/"):
            return json.loads(payload)


def test_a_packet_as_large_as_the_protocol_allows_is_refused_and_not_kept():
    async def story(broker, front):
        await broker.ask("edgeserve/cellar/ask/a", 200 * MIB)
        told = await answer_of(broker)
        assert told["code"] == "too_large" and str(PAYLOAD_BYTES_MAX) in told["error"]
        await broker.ask("edgeserve/cellar/ask/a", 0)  # where the next packet begins is known

    assert live(story)[1] < 4 * PAYLOAD_BYTES_MAX


def test_a_refused_question_keeps_no_payload_while_its_broker_does_not_acknowledge():
    async def story(broker, front):
        for _ in range(3 * TOGETHER_MAX):
            await broker.ask("edgeserve/cellar/ask/a", MIB)
        while front.counts["answers: rejected"] < 2 * TOGETHER_MAX:
            await asyncio.sleep(0.01)

    assert live(story, acknowledges=False)[0] < 1.5 * TOGETHER_MAX * MIB


def test_questions_without_an_answer_are_bounded_in_bytes_and_each_refusal_is_said():
    payload = json.dumps({"text": "x" * (10 * MIB)}).encode()
    fitting = WAITING_BYTES_MAX * 3 // 4 // len(payload)  # of one asker

    async def story(broker, front):
        for _ in range(fitting + 8):
            await broker.ask("edgeserve/cellar/ask/a", 0, payload)
        for _ in range(8):
            told = await answer_of(broker)
            assert told["code"] == "rejected" and "bytes" in told["error"]

    assert live(story)[0] < WAITING_BYTES_MAX


def test_a_flood_of_one_asker_is_left_out_with_one_line_and_leaves_places_to_others(caplog):
    async def story(broker, front):
        for _ in range(2 * MESSAGES_MAX):
            await broker.ask("edgeserve/cellar/ask/a", 0, b"x")
        while not front.counts["left out"]:
            await asyncio.sleep(0.01)
        await broker.ask("edgeserve/cellar/ask/a/kitchen", 0, b"x")
        while "mqtt:kitchen" not in Server.asked:
            await asyncio.sleep(0.01)

    live(story, acknowledges=False)
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "left out" in line]) == 1
    assert not [line for line in said if "Discarding" in line or "pending" in line]
