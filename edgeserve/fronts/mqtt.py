"""A running server on an MQTT broker, with Home Assistant's discovery.

Out go whether the server is ready, what its device and its lanes do, what its apps answered, and what a detector sees
in the pictures that cameras publish; in come questions by topic, pictures, and the wish to read the configuration
again. With ``NAME`` of the front, all topics lie below ``edgeserve/NAME``:

``status`` (``online`` or, as the last will, ``offline``), ``ready``, ``device``, ``apps/APP``; ``ask/APP`` and
``answer/APP``, or ``ask/APP/WHO`` and ``answer/APP/WHO``, where ``WHO`` has a share of its own;
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
from typing import Any, Awaitable, Callable, Dict, List, Mapping, Optional, Set

import aiomqtt

from edgeserve.answers import Answer
from edgeserve.client import AsyncClient
from edgeserve.errors import BadInput, ConfigError, EdgeServeError, Refusal, Rejected, TooLarge, UnknownApp, nearest
from edgeserve.front import (
    Front,
    Ready,
    ServedApp,
    Troubles,
    app_for,
    as_json,
    inputs_from_json,
    one_line,
    topic_part,
)
from edgeserve.front.images import decode_file
from edgeserve.fronts.detections import rows_of
from edgeserve.fronts.home_assistant import STATE_CHARS_MAX, app_of, device_of, entities
from edgeserve.fronts.image_apps import of_image
from edgeserve.fronts.mqtt_settings import ANY, Mqtt, broker_name

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

MESSAGES_WAITING_MAX = 256
"""Messages that wait to be looked at, and refusals that wait to be published; more are left out and counted."""

PAYLOAD_BYTES_MAX = 16 * 1024**2
PACKET_BYTES_MAX = PAYLOAD_BYTES_MAX + 128 * 1024
"""The bytes kept of a packet, with its topic: MQTT's own bound is 256 MiB."""

STEP_BYTES = 256 * 1024
WORDS_MAX = 1024
"""The bytes that are read of a name."""

DETECTIONS_MAX = 20


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
        self._detector: Optional[ServedApp] = None
        self._told: Dict[str, str] = {}  # what discovery has announced: topic -> configuration
        self._pictures: Dict[str, bytes] = {}  # the newest that waits, by camera
        self._looking: Set[str] = set()
        self._seen: Dict[str, Counter[str]] = {}
        self._open: Counter[str] = Counter()  # questions without an answer, by origin
        self._self = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(4)}"
        self._has_told = self._is_known = False  # the broker who this is; before this connection
        self._troubles = Troubles("mqtt")

    @classmethod
    def check(cls, settings: Mqtt) -> None:
        """See :class:`~edgeserve.front.Front`."""
        for camera in settings.cameras:
            broker_name(camera, settings.where("cameras"))
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
            self._detector = app_for(self._apps, self._options.detect, "pictures", of_image, example)

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
            max_queued_incoming_messages=MESSAGES_WAITING_MAX,
        )
        _bound_packets(made._client)
        return made

    async def _subscribe(self, broker: aiomqtt.Client) -> None:
        options = self._options
        topics = [f"{self._base}/instance"]
        topics += [f"{self._base}/ask/+", f"{self._base}/ask/+/+"] if options.ask else []
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
            self._looking.clear()
            self._open.clear()

    # --- in -----------------------------------------------------------------------------------------------------------

    async def _listen(self, broker: aiomqtt.Client, tasks: Set[asyncio.Task[None]]) -> None:
        def begin(work: Awaitable[None]) -> None:
            task = asyncio.ensure_future(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(_read)

        async for message in broker.messages:
            topic, payload = str(message.topic), bytes(message.payload or b"")
            if len(tasks) >= MESSAGES_WAITING_MAX + TOGETHER_MAX:
                self.counts["left out"] += 1
            elif topic.startswith(f"{self._base}/ask/") and not message.retain:  # a question is asked once
                begin(self._answer(broker, topic, payload))
            elif topic == f"{self._base}/instance":
                self._hear_of(payload[:WORDS_MAX].decode("utf-8", "replace"), message.retain)
            elif topic == f"{self._base}/reload" and not message.retain:
                begin(self._reload(broker, payload[:WORDS_MAX].decode("utf-8", "replace")))
            elif topic.startswith(f"{self._options.discovery}/") and topic.endswith("/config"):
                if topic not in self._told and payload:  # of an earlier start
                    await broker.publish(topic, b"", qos=1, retain=True)
            else:
                for camera, source in self._options.cameras.items():
                    if message.topic.matches(source):
                        self._pictures[camera] = payload
                        if camera not in self._looking:
                            self._looking.add(camera)
                            begin(self._look_at(broker, camera))

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
        """The owner whose share a question uses. The last level of its topic is the asker's own word, unless the broker
        keeps it for one user: any other name gives no share of its own."""
        return f"mqtt:{who}" if who in self._options.askers else "mqtt"

    async def _answer(self, broker: aiomqtt.Client, topic: str, payload: bytes) -> None:
        level, _, who = topic[len(self._base) + len("/ask/") :].partition("/")
        place = f"{self._base}/answer/{topic[len(self._base) + len('/ask/') :]}"
        app = next((each for each in self._options.ask if topic_part(each) == level), None)
        try:
            origin = self._origin(who)
            try:
                self._check_room(origin)
                if app is None:
                    level, asked = level[:128], self._options.ask
                    where = self._options.where("ask")
                    raise UnknownApp(f"no app {level!r} is asked here{nearest(level, asked)}; {where} names them")
                check_size("a question", payload)
                inputs = inputs_from_json(app, self._apps[app]["inputs"], payload)
            finally:
                del payload  # a refused one is not kept until the broker has the refusal
            self._open[origin] += 1
            try:
                options: Dict[str, Any] = {"stream": "questions"} if self._apps[app].get("needs_stream") else {}
                answer = await self._client.infer(app, inputs, origin=origin, **options)
            finally:
                self._open[origin] -= 1
                del inputs
            self.counts["answers"] += 1
            await self._command(broker, answer)
            told = {
                "text": _state_of(answer),
                "outputs": as_json(answer.outputs),
                "late": answer.late,
                "total_ms": round(answer.total_ms, 3),
            }
        except EdgeServeError as error:
            self.counts[f"answers: {error.code}"] += 1
            told = {"text": "", "error": str(error), "code": error.code}
            if isinstance(error, Refusal):
                told["reason"] = error.reason
        await broker.publish(place, json.dumps(told), qos=1)

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
        await broker.publish(topic, str(payload), qos=1)

    async def _reload(self, broker: aiomqtt.Client, model: str) -> None:
        try:
            told = await self._client.reload("" if model == "PRESS" else model)
        except EdgeServeError as error:
            told = {"error": str(error), "code": error.code}
        await broker.publish(f"{self._base}/reloaded", json.dumps(as_json(told)), qos=1)

    # --- cameras ------------------------------------------------------------------------------------------------------

    async def _look_at(self, broker: aiomqtt.Client, camera: str) -> None:
        """The newest picture of a camera, until none waits. What came between two is never looked at."""
        try:
            while camera in self._pictures:
                picture = self._pictures.pop(camera)
                try:
                    found = await self._detections(camera, picture)
                except Exception as error:  # noqa: BLE001 outputs of any form come from the app: the next picture is looked at
                    kind = error.code if isinstance(error, EdgeServeError) else type(error).__name__
                    self.counts[f"pictures: {kind}"] += 1
                    self._troubles.tell(kind, f"a picture of {camera} is not looked at: {kind}: {error}")
                    continue
                self.counts["pictures"] += 1
                await self._show(broker, camera, found)
        finally:
            self._looking.discard(camera)

    async def _detections(self, camera: str, picture: bytes) -> List[Dict[str, Any]]:
        app = self._detector
        assert app is not None, "checked with the cameras"
        about, loop = app.inputs[app.input], asyncio.get_running_loop()
        check_size("a picture", picture)
        array = await loop.run_in_executor(None, decode_file, app.input, picture, about, PAYLOAD_BYTES_MAX)
        options: Dict[str, Any] = {"stream": f"camera-{camera}"} if app.streams else {}
        answer = await self._client.infer(app.name, {app.input: array}, origin=f"camera:{camera}", **options)
        shape = array.shape
        height, width = (shape[-3], shape[-2]) if shape[-1] in (1, 3) else (shape[-2], shape[-1])
        rows = rows_of(answer.outputs, self._options.form, height, width, self._options.score_min, DETECTIONS_MAX)
        return [self._told_of(row) for row in rows if row[1] > 0]

    def _told_of(self, row: Any) -> Dict[str, Any]:
        number, labels = int(row[0]), self._options.labels
        label = labels[number] if number < len(labels) else str(number)
        return {"label": label, "score": round(float(row[1]), 3), "box": [round(float(side), 4) for side in row[2:]]}

    async def _show(self, broker: aiomqtt.Client, camera: str, found: List[Dict[str, Any]]) -> None:
        labels = Counter(each["label"] for each in found)
        labels[ANY] = len(found)
        told = {"count": len(found), "labels": labels, "detections": found}
        await broker.publish(f"{self._base}/detections/{camera}", json.dumps(told))
        before, self._seen[camera] = self._seen.get(camera, Counter()), labels
        for label in self._options.watched:
            if labels[label] and not before[label]:
                best = next((each for each in found if label in (ANY, each["label"])), {})
                event = {**best, "event_type": label, "count": labels[label]}
                await broker.publish(f"{self._base}/events/{camera}", json.dumps(event), qos=1)

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


def check_size(what: str, payload: bytes) -> None:
    """Raise :class:`TooLarge` for a payload of which more came than is read."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise TooLarge(f"{what} of more than {PAYLOAD_BYTES_MAX} bytes: no more are read")


def _bound_packets(client: Any) -> None:
    """Keep :data:`PACKET_BYTES_MAX` of each packet that a client of paho reads, and throw the rest away as it comes."""
    receive: Callable[[int], bytes] = client._sock_recv

    def received(count: int) -> bytes:
        packet, data = client._in_packet, receive(min(count, STEP_BYTES))
        over = len(packet["packet"]) + len(data) - PACKET_BYTES_MAX
        if over <= 0:
            return data
        kept = max(1, len(data) - over)  # nothing would be the end of the connection
        packet["to_process"] -= len(data) - kept
        return data[:kept]

    client._sock_recv = received


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
