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
import re
import secrets
import socket
import ssl
from collections import Counter
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, ClassVar, Dict, List, Mapping, Optional, Set, Tuple

import aiomqtt
import numpy as np

from edgeserve import __version__
from edgeserve.answers import Answer
from edgeserve.client import AsyncClient
from edgeserve.errors import BadInput, ConfigError, EdgeServeError, Refusal, Rejected, TooLarge, UnknownApp, nearest
from edgeserve.front import (
    Front,
    FrontSettings,
    Ready,
    ServedApp,
    Troubles,
    app_for,
    as_json,
    boolean,
    entry,
    inputs_from_json,
    integer,
    key_of,
    label_of,
    lines_of,
    number,
    of_text,
    one_line,
    one_of,
    string,
    table_of,
    takes,
    topic_part,
    tuple_of,
)
from edgeserve.front.images import decode_file
from edgeserve.fronts.detections import FORMS, rows_of
from edgeserve.fronts.image_apps import of_image

log = logging.getLogger("edgeserve")

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
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
STATE_CHARS_MAX = 255
"""The most characters of a state in Home Assistant."""

STALE_S = 60
"""Seconds without a new picture after which a camera's state is unknown."""

ANY = "object"
"""The label of objects of any kind, watched for where no label is named."""

READINGS = {
    "temperature_c": ("Temperature", "temperature", "°C", 1.0),
    "power_w": ("Power", "power", "W", 1.0),
    "gpu_load": ("GPU load", None, "%", 100.0),
    "cpu_load": ("CPU load", None, "%", 100.0),
    "memory_available_bytes": ("Memory available", "data_size", "MiB", 1 / 1024**2),
    "gpu_memory_free_bytes": ("GPU memory free", "data_size", "MiB", 1 / 1024**2),
    "fan": ("Fan", None, "%", 100.0),
}
"""Reading of a device's monitor -> its name, Home Assistant's class, unit and factor."""


@takes(type="string", pattern="^[A-Za-z0-9_-]{1,64}$")
def broker_name(value: Any, where: str) -> str:
    """A name in topics."""
    name = string(value, where)
    if not NAME.match(name):
        raise ConfigError(f"{where} = {name!r}: expected 1 to 64 letters, digits, _ and -")
    return name


@takes(type="string", minLength=1)
def topic_filter(value: Any, where: str) -> str:
    """A filter of topics, with wildcards or without."""
    levels = string(value, where).split("/")
    is_filter = all(level in ("+", "#") or not {*level} & {*"+#\0"} for level in levels) and "#" not in levels[:-1]
    if not value or not is_filter:
        raise ConfigError(
            f"{where} = {value!r}: expected a topic such as cameras/door; + is any level, # all at the end"
        )
    return str(value)


@takes(type="string", pattern="^[^+#]*$")
def topic(value: Any, where: str) -> str:
    """A topic without wildcards, or nothing."""
    if value and ("+" in topic_filter(value, where) or "#" in value):
        raise ConfigError(f"{where} = {value!r}: a topic that is published to has no + and no #")
    return string(value, where)


@dataclass(frozen=True)
class Mqtt(FrontSettings):
    """``[front.mqtt]``: the broker, and the topics that it gets and asks."""

    FILES: ClassVar[Tuple[str, ...]] = (*FrontSettings.FILES, "password_file")

    host: str = entry(string, "127.0.0.1")  # of the broker
    port: int = entry(integer(1, 65_535), 1883)  # of the broker
    tls: bool = entry(boolean, False)  # the broker speaks TLS
    user: str = entry(string, "")  # at the broker
    password_file: str = entry(string, "")  # whose first line is the user's password
    name: str = entry(broker_name, factory=lambda: host_name())  # of this front on the broker; default: the host's
    discovery: str = entry(topic, "homeassistant")  # the prefix of Home Assistant's discovery; empty: none
    ask: Tuple[str, ...] = entry(tuple_of(string), ())  # apps that are asked by topic
    askers: Tuple[str, ...] = entry(tuple_of(broker_name), ())  # names that the broker keeps for one user each
    publish: Tuple[str, ...] = entry(tuple_of(topic_filter), ())  # filters of the topics that answers may publish to
    cameras: Dict[str, str] = entry(table_of(topic_filter), factory=dict)  # camera -> the topic of its pictures
    detect: str = entry(string, "")  # the app that looks at them
    form: str = entry(one_of(*FORMS), "yolo")  # how it answers
    score_min: float = entry(number(0.0, 1.0), 0.4)  # the least score of a box
    labels: Tuple[str, ...] = entry(tuple_of(string), ())  # by the number of a class
    watch: Tuple[str, ...] = entry(tuple_of(string), ())  # labels with a sensor of their own; empty: one for any
    every_s: float = entry(number(1.0), 10.0)  # between two states
    may_reload: bool = entry(boolean, False)  # the broker may have the configuration read again


class MqttFront(Front):
    """The link between one server and one broker."""

    Settings = Mqtt

    def __init__(self, client: AsyncClient, options: Mqtt) -> None:
        super().__init__(client, options)
        self._client = client
        self._password = _password_of(options)
        self._options = options
        self._base = f"edgeserve/{options.name}"
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
        unknown = [label for label in settings.watch if settings.labels and label not in settings.labels]
        if unknown:
            where = settings.where("watch")
            raise ConfigError(f"{where} {unknown[0]!r}: no such label{nearest(unknown[0], settings.labels)}")
        _password_of(settings)

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
        topics += [f"{options.discovery}/+/{self._node}/+/config"] if options.discovery else []
        for topic in topics:
            await broker.subscribe(topic, qos=1)

    @property
    def _node(self) -> str:
        return f"edgeserve_{self._options.name}"

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
        if app is None:
            return  # the configuration does not allow it
        try:
            origin = self._origin(who)
            try:
                self._check_room(origin)
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
        for label in self._watched:
            if labels[label] and not before[label]:
                best = next((each for each in found if label in (ANY, each["label"])), {})
                event = {**best, "event_type": label, "count": labels[label]}
                await broker.publish(f"{self._base}/events/{camera}", json.dumps(event), qos=1)

    @property
    def _watched(self) -> Tuple[str, ...]:
        return self._options.watch or (ANY,)

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
        device = _device_of(stats)
        if self._options.discovery:
            for topic, configuration in self._entities(stats, device).items():
                if self._told.get(topic) != configuration:
                    self._told[topic] = configuration
                    await broker.publish(topic, configuration, qos=1, retain=True)
        await broker.publish(f"{self._base}/ready", "ON" if is_ready else "OFF", qos=1, retain=True)
        if stats:
            await broker.publish(f"{self._base}/device", json.dumps(device), retain=True)
        for app, row in stats.get("apps", {}).items():
            await broker.publish(f"{self._base}/apps/{topic_part(app)}", json.dumps(_app_of(row)), retain=True)

    def _entities(self, stats: Mapping[str, Any], device: Mapping[str, Any]) -> Dict[str, str]:
        """The entities that Home Assistant shows: topic -> configuration."""
        options, base = self._options, self._base
        found: Dict[str, str] = {}
        common = {
            "availability_topic": f"{base}/status",
            "device": {
                "identifiers": [self._node],
                "name": f"EdgeServe {options.name}",
                "manufacturer": "EdgeServe",
                "model": str(stats.get("device", {}).get("model") or "server"),
                "sw_version": __version__,
            },
            "origin": {"name": "EdgeServe", "sw_version": __version__},
        }

        def put(kind: str, key: str, name: str, **more: Any) -> None:
            about = {"name": name, "unique_id": f"{self._node}_{key}", **common, **more}
            topic = f"{options.discovery}/{kind}/{self._node}/{key}/config"
            found[topic] = json.dumps({each: value for each, value in about.items() if value is not None})

        def sensor(key: str, name: str, topic: str, value: str, unit: Optional[str] = None, **more: Any) -> None:
            put("sensor", key, name, state_topic=topic, value_template=value, unit_of_measurement=unit, **more)

        put("binary_sensor", "ready", "Ready", state_topic=f"{base}/ready", device_class="running")
        for key, (name, kind, unit, _) in READINGS.items():
            if key in device:
                value = f"{{{{ value_json.{key} }}}}"
                sensor(key, name, f"{base}/device", value, unit, device_class=kind, state_class="measurement")
        for lane in device.get("lanes", {}):
            value = f"{{{{ value_json.lanes[{json.dumps(lane)}] }}}}"
            sensor(f"lane_{key_of(lane)}", f"Lane {lane}", f"{base}/device", value, "%", state_class="measurement")
        for app in stats.get("apps", {}):
            for key, name in (("completed", "answered"), ("refused", "refused"), ("late", "late")):
                topic, value = f"{base}/apps/{topic_part(app)}", f"{{{{ value_json.{key} }}}}"
                sensor(f"app_{key_of(app)}_{key}", f"{app} {name}", topic, value, state_class="total_increasing")
        for app in options.ask:
            topic = f"{base}/answer/{topic_part(app)}"
            sensor(
                f"answer_{key_of(app)}", f"{app} answer", topic, "{{ value_json.text }}", json_attributes_topic=topic
            )
            if any(of_text(about) for about in self._apps[app]["inputs"].values()):
                put(
                    "text",
                    f"ask_{key_of(app)}",
                    f"Ask {app}",
                    command_topic=f"{base}/ask/{topic_part(app)}",
                    max=STATE_CHARS_MAX,
                )
        for camera in options.cameras:
            topic = f"{base}/detections/{camera}"
            shown: Dict[str, Any] = {"expire_after": STALE_S, "json_attributes_topic": topic}
            sensor(f"{camera}_count", f"{camera} objects", topic, "{{ value_json.count }}", None, **shown)
            for label in self._watched:
                put(
                    "binary_sensor",
                    f"{camera}_{label_of(label)}",
                    f"{camera} {label}",
                    state_topic=topic,
                    value_template=f"{{{{ 'ON' if value_json.labels.get({json.dumps(label)}, 0) else 'OFF' }}}}",
                    device_class="occupancy",
                    expire_after=STALE_S,
                )
            types, topic = list(self._watched), f"{base}/events/{camera}"
            put("event", f"{camera}_event", f"{camera} sees", state_topic=topic, event_types=types)
        if options.may_reload:
            put("button", "reload", "Reload", command_topic=f"{base}/reload", device_class="restart")
        return found


def _password_of(settings: Mqtt) -> str:
    return "".join(lines_of(settings.where("password_file"), settings.password_file)[:1]).strip()


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


def host_name() -> str:
    """This host's name as the name of a front: two hosts do not take each other's place on a broker."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:64] or "edgeserve"


def _state_of(answer: Answer) -> str:
    """Output ``text``, or the first that is text, short enough for a state."""
    texts = [value for value in answer.outputs.values() if isinstance(value, str)]
    return str(answer.outputs.get("text", texts[0] if texts else ""))[:STATE_CHARS_MAX]


def _device_of(stats: Mapping[str, Any]) -> Dict[str, Any]:
    """Readings that are known, of the first monitor that has them, and how busy the lanes are (percent)."""
    told: Dict[str, Any] = {"open": stats.get("open", 0)}
    for row in stats.get("device", {}).get("monitors", {}).values():
        for key, (_, _, _, factor) in READINGS.items():
            value = (row["readings"] or {}).get(key)
            if value is not None and key not in told:
                told[key] = round(float(value) * factor, 1)
    lanes = stats.get("lanes", {})
    told["lanes"] = {lane: round(100 * float(row["busy"]), 1) for lane, row in lanes.items()}
    return told


def _app_of(row: Mapping[str, Any]) -> Dict[str, Any]:
    ends = row["outcomes"]
    return {
        "completed": ends["completed"],
        "refused": row["refused"] + ends["rejected"] + ends["dropped"],
        "failed": ends["failed"],
        "late": row["late"],
        "open": row["open"],
        "latency_ms": as_json({key: np.float64(value) for key, value in row["latency_ms"].items()}),
    }


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
