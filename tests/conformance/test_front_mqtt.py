"""The front for MQTT against the contract of fronts, asked over a real broker by ``aiomqtt``."""

from __future__ import annotations

import json
import secrets
from contextlib import ExitStack
from typing import Any, Callable

import pytest
from mqtt_broker import broker

from edgeserve.client import AsyncClient
from edgeserve.front import Front, topic_part
from edgeserve.testing.front_conformance import ANSWERED, KIND_OF_CODE, FrontConformance

pytest.importorskip("aiomqtt", reason="pip install -e '.[mqtt]'")

import aiomqtt

from edgeserve.fronts.mqtt import Mqtt, MqttFront
from edgeserve.fronts.mqtt_inbox import PAYLOAD_BYTES_MAX


class TestMqtt(FrontConformance):
    INPUTS = {"text": {"dtype": "text"}}
    OUTPUTS = {"text": "yes", "topic": "", "payload": ""}
    CLIENTS_NAME_APPS = False  # of the settings' apps
    CANNOT = {
        "a_client_that_goes_ends_its_request": "the broker stands between: it does not tell who has gone",
    }

    @classmethod
    def setup_class(cls) -> None:
        with ExitStack() as started:
            cls.port = started.enter_context(broker())  # skips where none is installed: nothing may run by then
            super().setup_class()
            cls._ended.push(started.pop_all())

    def make(self, client: AsyncClient, app: str) -> Front:
        apps = dict.fromkeys(["answers", app])
        return MqttFront(client, Mqtt(port=self.port, name="suite", ask=tuple(apps), askers=("crowd",)))

    def place_of(self, places: Any) -> str:
        return "edgeserve/suite"

    async def ask(self, place: str, app: str, said: Any = "hi") -> str:
        who = secrets.token_hex(4)
        answer = f"{place}/answer/{topic_part(app)}/{who}"
        async with aiomqtt.Client("127.0.0.1", self.port) as client:
            await client.subscribe(answer, qos=1)
            await client.publish(f"{place}/ask/{topic_part(app)}/{who}", said, qos=1)
            async for message in client.messages:
                if str(message.topic) != answer:
                    continue  # amqtt sends what is retained elsewhere
                told = json.loads(message.payload)
                code = told.get("code", str(told))
                return ANSWERED if told["text"] == "yes" else KIND_OF_CODE.get(code, code)
        raise AssertionError("the broker ended the connection")

    async def ask_too_much(self, place: str, app: str) -> str:
        return await self.ask(place, app, b"x" * (PAYLOAD_BYTES_MAX + 1))

    async def ask_unread(self, place: str, app: str) -> Callable[[], Any]:
        client = aiomqtt.Client("127.0.0.1", self.port, max_queued_incoming_messages=1)
        await client.__aenter__()
        await client.subscribe(f"{place}/#")
        for _ in range(200):
            await client.publish(f"{place}/ask/{topic_part(app)}/crowd", "hi")
        return client._client.disconnect
