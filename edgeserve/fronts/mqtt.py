"""A running server on an MQTT broker, with Home Assistant's discovery.

Out go whether the server is ready, what its device and its lanes do, what its apps answered, and what a detector sees
in the pictures that cameras publish; in come questions by topic, pictures, and the wish to read the configuration
again. With ``NAME`` of the front, all topics lie below ``edgeserve/NAME``:

``status`` (``online`` or, as the last will, ``offline``), ``ready``, ``device``, ``apps/APP``; ``ask/APP`` and
``answer/APP``, or ``ask/APP/WHO`` and ``answer/APP/WHO``, where ``WHO`` has a share of its own, or with ``/ID`` behind
either, by which an asker tells several answers apart;
``detections/CAMERA`` and ``events/CAMERA``; ``reload`` and ``reloaded``.

The broker decides who may publish and read what: this front believes it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import ssl
from collections import Counter
from functools import partial
from typing import Any, AsyncIterator, Awaitable, Dict, List, Mapping, Optional, Set, cast

import aiomqtt

from edgeserve.answers import Answer
from edgeserve.client import AsyncClient
from edgeserve.errors import BadInput, ConfigError, EdgeServeError, Refusal, Rejected, UnknownApp, nearest
from edgeserve.front import (
    Front,
    Ready,
    Troubles,
    app_for,
    as_json,
    inputs_from_json,
    one_line,
    topic_part,
)
from edgeserve.fronts.home_assistant import STATE_CHARS_MAX, app_of, device_of, entities
from edgeserve.fronts.image_apps import of_image
from edgeserve.fronts.mqtt_cameras import Cameras
from edgeserve.fronts.mqtt_inbox import (
    MESSAGES_MAX,
    Arrived,
    Inbox,
    bound_packets,
    check_size,
)
from edgeserve.fronts.mqtt_settings import Mqtt, broker_name

log = logging.getLogger("edgeserve")

PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 60.0
"""Seconds before the broker is tried again: doubled from the first to the second."""

STEADY_S = 60.0
"""A connection that lasted so long was none that another front took at once: the pause is the shortest again."""

END_S = 0.5
"""Seconds that a stopping gateway may take to report so to its broker."""

TOGETHER_MAX = 64
"""Questions without an answer; one more is refused. One asker has three quarters at most, and a quarter while others
have some."""

WORDS_MAX = 1024
"""The bytes that are read of a name."""


class MqttFront(Front):
    """The link between one server and one broker."""

    Settings = Mqtt

    def __init__(self, client: AsyncClient, options: Mqtt) -> None:
        super().__init__(client, options)
        self._client = client
        self._password = options.password
        self._options = options
        self._base = options.base
        self._apps: Dict[str, Any] = {}
        self._cameras: Optional[Cameras] = None
        self._told: Dict[str, str] = {}  # what discovery has announced: topic -> configuration
        self._open: Counter[str] = Counter()  # questions without an answer, by origin
        self._self = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(4)}"
        self._has_told = self._is_known = False  # the broker who this is; before this connection
        self._troubles = Troubles("mqtt")

    @classmethod
    def check(cls, settings: Mqtt) -> None:
        """See :class:`~edgeserve.front.Front`."""
        for camera, source in settings.cameras.items():
            broker_name(camera, settings.where("cameras"))
            if any(aiomqtt.Topic(f"{settings.base}/{own}").matches(source) for own in ("status", "ask/a", "ask/a/b")):
                raise ConfigError(
                    f"{settings.where('cameras')} {camera} = {source!r}: it covers this front's own topics below "
                    f"{settings.base}; expected the topic of a camera's pictures"
                )
        if settings.cameras and not settings.detect:
            raise ConfigError(
                f"{settings.where('cameras')}: an app looks at their pictures; set {settings.where('detect')}"
            )
        known = settings.labels
        unknown = [label for label in settings.watch if known and label not in known]
        if unknown:
            where = settings.where("watch")
            raise ConfigError(f"{where} {unknown[0]!r}: no such label{nearest(unknown[0], known)}")
        settings.password  # noqa: B018 read to know that it can be

    async def look(self) -> None:
        """Ask the server for the apps. Raises :class:`EdgeServeError` where one cannot do what it is named for."""
        self._apps = await self._client.apps()
        for app in self._options.ask:
            if app not in self._apps:
                raise UnknownApp(f"no app {app!r} is served there{nearest(app, self._apps)}")
        if self._options.detect:
            example = 'image = { dtype = "uint8", shape = [320, 320, 3] }'
            detector = app_for(self._apps, self._options.detect, "pictures", of_image, example)
            self._cameras = Cameras(self._client, self._options, detector, self.counts, self._troubles)

    async def serve(self, stopped: asyncio.Event, ready: Ready) -> None:
        """Serve until ``stopped``, and at most :data:`END_S` more. A broker that is not there, or goes, is tried again;
        ``ready(place)`` is called at each connection."""
        serving = asyncio.ensure_future(self._serve(stopped, ready))
        stopping = asyncio.ensure_future(stopped.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await asyncio.wait({serving}, timeout=END_S)
        while not serving.done():  # its broker does not answer; aiomqtt waits for that at more than one place
            serving.cancel()
            await asyncio.wait({serving}, timeout=END_S / 10)
        if not serving.cancelled():
            serving.result()

    async def _serve(self, stopped: asyncio.Event, ready: Ready) -> None:
        options, loop = self._options, asyncio.get_running_loop()
        place = f"{options.host}:{options.port}"
        pause_s = PAUSE_S_MIN
        while not stopped.is_set():
            begun_s = loop.time()
            try:
                async with self._connection() as broker:
                    self._is_known = self._has_told
                    self._told.clear()  # a broker that was away may have forgotten
                    await self._tell(broker)
                    await self._subscribe(broker)
                    await broker.publish(f"{self._base}/status", "online", qos=1, retain=True)
                    await broker.publish(f"{self._base}/instance", self._self, qos=1, retain=True)
                    self._has_told = True
                    ready(f"{place} as {self._base}")
                    await self._until(stopped, broker)
                    await broker.publish(f"{self._base}/status", "offline", qos=1, retain=True)
            except aiomqtt.MqttError as error:
                self.counts["connections lost"] += 1
                pause_s = PAUSE_S_MIN if loop.time() - begun_s >= STEADY_S else pause_s
                log.warning("mqtt: broker %s: %s; trying again in %g s", place, error, pause_s)
                await _first_of(stopped.wait(), asyncio.sleep(pause_s))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _connection(self) -> aiomqtt.Client:
        options = self._options
        made = aiomqtt.Client(
            options.host,
            options.port,
            username=options.user or None,
            password=self._password or None,
            identifier=f"edgeserve-{options.name}",
            will=aiomqtt.Will(f"{self._base}/status", "offline", qos=1, retain=True),
            tls_context=ssl.create_default_context() if options.tls else None,
            queue_type=cast(Any, partial(Inbox, self._sender_of, self._leave_out)),
        )
        made.pending_calls_threshold = MESSAGES_MAX  # it would log each call beyond ten
        bound_packets(made._client)
        return made

    async def _subscribe(self, broker: aiomqtt.Client) -> None:
        options = self._options
        topics = [f"{self._base}/instance"]
        topics += [f"{self._base}/ask/#"] if options.ask else []
        topics += [f"{self._base}/reload"] if options.may_reload else []
        topics += list(options.cameras.values())
        topics += [f"{options.discovery}/+/{options.node}/+/config"] if options.discovery else []
        for topic in topics:
            await broker.subscribe(topic, qos=1)

    async def _until(self, stopped: asyncio.Event, broker: aiomqtt.Client) -> None:
        """Listen and tell; raises ``MqttError`` when the connection is lost."""
        tasks: Set[asyncio.Task[None]] = set()
        try:
            await _first_of(stopped.wait(), self._listen(broker, tasks), self._tell_often(broker))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._open.clear()

    # --- in -----------------------------------------------------------------------------------------------------------

    async def _listen(self, broker: aiomqtt.Client, tasks: Set[asyncio.Task[None]]) -> None:
        def begin(work: Awaitable[None]) -> None:
            task = asyncio.ensure_future(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(_read)

        messages = cast(AsyncIterator[Arrived], broker.messages)  # as the inbox has them
        async for message in messages:
            topic = str(message.topic)
            if topic.startswith(f"{self._base}/ask/") and not message.is_retained:  # a question is asked once
                begin(self._answer(broker, topic[len(f"{self._base}/ask/") :], message))
                continue
            elif message.refused is not None:
                self._leave_out()
            elif topic == f"{self._base}/instance":
                self._hear_of(message.payload[:WORDS_MAX].decode("utf-8", "replace"), message.is_retained)
            elif topic == f"{self._base}/reload" and not message.is_retained:
                begin(self._reload(broker, message.payload[:WORDS_MAX].decode("utf-8", "replace")))
            elif topic.startswith(f"{self._options.discovery}/") and topic.endswith("/config"):
                if topic not in self._told and message.payload:  # of an earlier start
                    await broker.publish(topic, b"", qos=1, retain=True)
            else:
                for camera in self._cameras_of(message.topic):
                    if self._cameras is not None and self._cameras.take(camera, message):
                        begin(self._cameras.look_at(broker, camera))
            message.close()

    def _cameras_of(self, topic: aiomqtt.Topic) -> List[str]:
        return [camera for camera, source in self._options.cameras.items() if topic.matches(source)]

    def _sender_of(self, topic: aiomqtt.Topic) -> str:
        """The sender whose share of the bytes a message uses."""
        own, _, asked = str(topic).partition("/ask/")
        if asked and own == self._base:
            return self._origin(_level(asked, 1))
        return next((f"camera:{camera}" for camera in self._cameras_of(topic)), "broker")

    def _leave_out(self) -> None:
        self.counts["left out"] += 1
        self._troubles.tell("left out", "messages come faster than they are answered: some are left out")

    def _hear_of(self, instance: str, is_retained: bool) -> None:
        """Take the instance that has this gateway's name on the broker. A name retained at the first connection is an
        earlier run's."""
        if instance not in ("", self._self) and (self._is_known or not is_retained):
            self.counts["takeovers"] += 1
            where = self._options.where("name")
            self._troubles.tell(
                "takeover",
                f"another front has the name {self._options.name!r} on this broker (host, process: "
                f"{one_line(instance[:80])!r}): each takes the other's connection; give one of them another {where}",
            )

    def _origin(self, who: str) -> str:
        """The owner whose share a question uses. This level of its topic is the asker's own word, unless the broker
        keeps it for one user: any other name gives no share of its own."""
        return f"mqtt:{who}" if who in self._options.askers else "mqtt"

    async def _answer(self, broker: aiomqtt.Client, asked: str, question: Arrived) -> None:
        """Answer the question that came below ``ask/`` at ``asked``: ``APP``, ``APP/WHO`` or ``APP/WHO/ID``."""
        try:
            told = await self._told_of(broker, asked, question)
            await broker.publish(f"{self._base}/answer/{asked}", json.dumps(told), qos=1)
        finally:
            question.close()

    async def _told_of(self, broker: aiomqtt.Client, asked: str, question: Arrived) -> Dict[str, Any]:
        try:
            try:
                answer = await self._ask(asked, question)
            finally:
                question.forget()  # a refused one is not kept until the broker has the refusal
            self.counts["answers"] += 1
            await self._command(broker, answer)
            return {
                "text": _state_of(answer),
                "outputs": as_json(answer.outputs),
                "late": answer.late,
                "total_ms": round(answer.total_ms, 3),
            }
        except EdgeServeError as error:
            self.counts[f"answers: {error.code}"] += 1
            told = {"text": "", "error": str(error), "code": error.code}
            return {**told, "reason": error.reason} if isinstance(error, Refusal) else told

    async def _ask(self, asked: str, question: Arrived) -> Answer:
        if question.refused is not None:
            raise question.refused
        level, who = _level(asked, 0), _level(asked, 1)
        origin = self._origin(who)
        self._check_room(origin)
        app = next((each for each in self._options.ask if topic_part(each) == level), None)
        if app is None:
            level, apps = level[:128], self._options.ask
            where = self._options.where("ask")
            raise UnknownApp(f"no app {level!r} is asked here{nearest(level, apps)}; {where} names them")
        check_size("a question", question.payload)
        inputs = inputs_from_json(app, self._apps[app]["inputs"], question.payload)
        question.payload = b""
        options: Dict[str, Any] = {"stream": f"questions-{who}"} if self._apps[app].get("needs_stream") else {}
        self._open[origin] += 1
        try:
            return await self._client.infer(app, inputs, origin=origin, **options)
        finally:
            self._open[origin] -= 1

    def _check_room(self, origin: str) -> None:
        """Raises :class:`Rejected` where there is no room for another question of ``origin``."""
        own, others = self._open[origin], sum(self._open.values()) - self._open[origin]
        if own + others >= TOGETHER_MAX or own >= TOGETHER_MAX // 4 * (1 if others else 3):
            raise Rejected(
                f"this front has {own + others} questions without an answer, {own} of them of {origin}",
                "too many in flight",
            )

    async def _command(self, broker: aiomqtt.Client, answer: Answer) -> None:
        """An answer with a topic and a payload is published there, where a filter allows it."""
        topic, payload = answer.outputs.get("topic"), answer.outputs.get("payload")
        if not isinstance(topic, str) or not topic or payload is None:
            return
        try:
            allowed = any(aiomqtt.Topic(topic).matches(each) for each in self._options.publish)
        except ValueError:
            allowed = False
        if not allowed or topic.startswith(f"{self._base}/"):
            raise BadInput(f"the answer's topic {topic[:128]!r} is none that {self._options.where('publish')} allows")
        self.counts["commands"] += 1
        told = payload if isinstance(payload, str) else json.dumps(as_json(payload))
        await broker.publish(topic, told, qos=1)

    async def _reload(self, broker: aiomqtt.Client, model: str) -> None:
        try:
            told = await self._client.reload("" if model == "PRESS" else model)
        except EdgeServeError as error:
            told = {"error": str(error), "code": error.code}
        await broker.publish(f"{self._base}/reloaded", json.dumps(as_json(told)), qos=1)

    # --- out ----------------------------------------------------------------------------------------------------------

    async def _tell_often(self, broker: aiomqtt.Client) -> None:
        while True:
            await asyncio.sleep(self._options.every_s)
            await self._tell(broker)

    async def _tell(self, broker: aiomqtt.Client) -> None:
        """The server's state, after the configuration of its new entities."""
        try:
            is_ready = bool((await self._client.health())["ready"])
            stats: Mapping[str, Any] = await self._client.stats()
        except EdgeServeError:
            is_ready, stats = False, {}
        device = device_of(stats)
        if self._options.discovery:
            for topic, configuration in entities(self._options, self._apps, stats, device).items():
                if self._told.get(topic) != configuration:
                    self._told[topic] = configuration
                    await broker.publish(topic, configuration, qos=1, retain=True)
        await broker.publish(f"{self._base}/ready", "ON" if is_ready else "OFF", qos=1, retain=True)
        if stats:
            await broker.publish(f"{self._base}/device", json.dumps(device), retain=True)
        for app, row in stats.get("apps", {}).items():
            await broker.publish(f"{self._base}/apps/{topic_part(app)}", json.dumps(app_of(row)), retain=True)


def _level(topic: str, number: int) -> str:
    levels = topic.split("/", 3)
    return levels[number] if number < len(levels) else ""


def _state_of(answer: Answer) -> str:
    """Output ``text``, or the first that is text, short enough for a state."""
    texts = [value for value in answer.outputs.values() if isinstance(value, str)]
    return str(answer.outputs.get("text", texts[0] if texts else ""))[:STATE_CHARS_MAX]


async def _first_of(*works: Awaitable[Any]) -> None:
    """Wait until one of them ends, and cancel the others. Raises the error of the first to end."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _read(task: asyncio.Task[None]) -> None:
    """A broker that goes while an answer is published ends the connection anyway."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, aiomqtt.MqttError):
        log.error("mqtt: %r", error)
