"""The front for Home Assistant's voice protocol against the contract of fronts, asked by the package ``wyoming``."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Callable, Tuple

import numpy as np
import pytest

from edgeserve.client import AsyncClient
from edgeserve.front import Front
from edgeserve.testing.front_conformance import ANSWERED, EMPTY, FAILED, LATE, REFUSED, SERVER_GONE, FrontConformance

pytest.importorskip("wyoming", reason="pip install -e '.[wyoming]'")

from wyoming.asr import Transcript
from wyoming.audio import AudioChunk, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.handle import Handled, NotHandled
from wyoming.intent import Intent, Recognize
from wyoming.tts import Synthesize

from edgeserve.fronts.wyoming import Voice, WyomingFront
from edgeserve.fronts.wyoming_events import PART_BYTES_MAX

SORRY = "a sentence that is not handled; Home Assistant waits for no other event"


def address(place: str) -> Tuple[str, int]:
    host, _, port = place.split("//")[1].rpartition(":")
    return host, int(port)


class TestWyoming(FrontConformance):
    INPUTS = {"text": {"dtype": "text"}}
    OUTPUTS = {"text": "yes"}
    APP = {"outputs": ["text"]}
    CLIENTS_NAME_APPS = False
    SAYS = dict.fromkeys((LATE, REFUSED, FAILED, SERVER_GONE), (EMPTY, SORRY))

    def make(self, client: AsyncClient, app: str) -> Front:
        return WyomingFront(client, Voice(apps={"intent": app}, listen="127.0.0.1:0"))

    async def ask(self, place: str, app: str) -> str:
        async with AsyncTcpClient(*address(place)) as client:
            await client.write_event(Transcript("hi").event())
            while True:
                event = await client.read_event()
                assert event is not None, "the front ended the connection"
                if Handled.is_type(event.type):
                    return ANSWERED if Handled.from_event(event).text == "yes" else str(event)
                if NotHandled.is_type(event.type):
                    return EMPTY

    async def ask_too_much(self, place: str, app: str) -> str:
        async with AsyncTcpClient(*address(place)) as client:
            client._writer.write(json.dumps({"type": "transcript", "data_length": PART_BYTES_MAX + 1}).encode() + b"\n")
            event = await client.read_event()
            assert event is not None and Error.is_type(event.type)
            return "too_large" if "bytes" in Error.from_event(event).text else str(event)

    async def ask_unread(self, place: str, app: str) -> Callable[[], Any]:
        client = AsyncTcpClient(*address(place))
        await client.connect()
        for _ in range(500):
            try:
                await asyncio.wait_for(client.write_event(Event("describe")), 0.1)
            except asyncio.TimeoutError:
                break
        return client._writer.transport.abort


class TestIntents(TestWyoming):
    OUTPUTS = {"text": "yes", "intent": "Nod", "entities": "{}"}
    APP = {"outputs": ["text", "intent", "entities"]}

    async def ask(self, place: str, app: str) -> str:
        async with AsyncTcpClient(*address(place)) as client:
            await client.write_event(Recognize("hi").event())
            event = await client.read_event()
            assert event is not None, "the front ended the connection"
            return ANSWERED if Intent.is_type(event.type) else EMPTY


class TestSpeech(TestWyoming):
    OUTPUTS = {"audio": np.ones(8, np.int16), "rate": np.int32(16_000)}
    APP = {"outputs": ["audio", "rate"]}
    SAYS = dict.fromkeys((LATE, REFUSED, FAILED, SERVER_GONE), (EMPTY, "an error, and speech of no length"))

    def make(self, client: AsyncClient, app: str) -> Front:
        return WyomingFront(client, Voice(apps={"tts": app}, listen="127.0.0.1:0"))

    async def ask(self, place: str, app: str) -> str:
        async with AsyncTcpClient(*address(place)) as client:
            await client.write_event(Synthesize("hi").event())
            found = EMPTY
            while True:
                event = await client.read_event()
                assert event is not None, "the front ended the connection"
                found = ANSWERED if AudioChunk.is_type(event.type) else found
                if AudioStop.is_type(event.type):
                    return found
